//! Names and aliases of tenants' links, and MAC addresses of their bridges.

use berth_api::infra_node::NetworkSpec;
use berth_api::names::LINK_ALIAS_PREFIX;
use berth_api::{LinkName, MacAddress};

use crate::manifest::Fault;
use crate::plan::field_path::FieldPath;
use berth_host_facts::links::{Link, LinkKind, Links};

/// Link group of all links that Berth creates, for `ip link show group`. The netlink message that creates a link
/// also sets its group; only a later message sets its alias, which names the owner.
pub const LINK_GROUP: u32 = 0xBE27;

/// Returns the name of a shared bridge, from the spec or derived from the network's name. `path` is the path of the
/// field `bridge`, for the error message.
pub(super) fn bridge_name(spec: &NetworkSpec, path: &FieldPath) -> Result<LinkName, Fault> {
    spec.shared_bridge().map_err(|_| {
        let name = format!("br-{}", spec.name);
        let message =
            format!("is missing, and `{name}` exceeds the 15 bytes of a link's name; set spec.networks[].bridge");
        path.fault("", message)
    })
}

/// Returns the hardware addresses of an uplink and, if the uplink is a bond, of its ports, as one string.
pub(super) fn hardware_addresses(links: &Links, uplink: &Link) -> String {
    let ports = links.ports_of(&uplink.name).filter(|port| port.kind == LinkKind::Physical);
    let mut all: Vec<String> = ports.chain([uplink]).filter_map(hardware_address).collect();
    all.sort_unstable();
    all.dedup();
    all.concat()
}

/// Returns the MAC address of a bridge: the FNV-1a hash of `seed` and the name of the bridge. `seed` consists of
/// the MAC addresses of the uplink, so the bridge has the same address after every reboot, and different addresses
/// on different hosts, even if the hosts were cloned from one image. The address is locally administered, so it
/// collides with no vendor's address.
pub(super) fn bridge_mac(seed: &str, bridge: &LinkName) -> MacAddress {
    let bytes = [seed, bridge.as_str()].into_iter().flat_map(str::bytes);
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    // In FNV-1a, the last bytes of the input affect only a few bits; the final mix of MurmurHash spreads them over
    // all bits.
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let [a, b, c, d, e, ..] = (hash ^ (hash >> 33)).to_be_bytes();
    MacAddress([0x02, a, b, c, d, e])
}

/// Returns the permanent MAC address. A bond has none, so its current address is returned, which comes from its
/// first port or was set by an administrator.
fn hardware_address(link: &Link) -> Option<String> {
    let own = link.permanent_mac.filter(|mac| mac.0 != [0; 6]).map(|mac| mac.to_string());
    own.or_else(|| link.mac.clone())
}

/// Returns the alias that names the owner of a link: `berth:<network>` or `berth:<network>/<tenant>`.
pub(super) fn link_alias(network: &str, tenant: Option<&str>) -> String {
    match tenant {
        None => format!("{LINK_ALIAS_PREFIX}{network}"),
        Some(tenant) => format!("{LINK_ALIAS_PREFIX}{network}/{tenant}"),
    }
}

/// Returns the network and the tenant of a link that Berth created.
pub(crate) fn link_owner(link: &Link) -> Option<(&str, Option<&str>)> {
    let rest = link.alias.as_deref()?.strip_prefix(LINK_ALIAS_PREFIX)?;
    Some(rest.split_once('/').map_or((rest, None), |(network, tenant)| (network, Some(tenant))))
}

/// Returns the name of a link as a key of an nftables set: padded with zero bytes to `IFNAMSIZ`.
pub(super) fn name_key(name: &LinkName) -> Vec<u8> {
    const IFNAMSIZ: usize = 16;
    let mut key = name.as_str().as_bytes().to_vec();
    key.resize(IFNAMSIZ, 0);
    key
}

pub(super) const DNS_LABEL_RULE: &str =
    "must be a DNS label: 1 to 63 lower-case letters, digits and `-`";

pub(super) fn is_dns_label(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let ends = [name.bytes().next(), name.bytes().next_back()];
    let hyphen_ends = ends.contains(&Some(b'-'));
    (1..=63).contains(&name.len()) && name.bytes().all(inner) && !hyphen_ends
}
