//! What tenants' links are called, whose they are, and what address their bridges have.

use berth_api::infra_node::NetworkSpec;
use berth_api::names::LINK_ALIAS_PREFIX;
use berth_api::{LinkName, MacAddress};

use crate::manifest::Fault;
use berth_host_facts::links::{Link, LinkKind, Links};

/// The group of all links that Berth makes, for `ip link show group`. The alias says whose they are; the group
/// is set in the same moment as the link is made, the alias just after.
pub const LINK_GROUP: u32 = 0xBE27;

/// The name of a shared bridge.
pub(super) fn bridge_name(spec: &NetworkSpec, place: &str) -> Result<LinkName, Fault> {
    spec.shared_bridge().map_err(|_| {
        let name = format!("br-{}", spec.name);
        let message =
            format!("is missing, and `{name}` is longer than a link's 15 bytes; name a bridge");
        Fault::new(format!("{place}.bridge"), "", message)
    })
}

/// The hardware addresses of an uplink, and of the ports of one that is a bond.
pub(super) fn hardware_below(links: &Links, uplink: &Link) -> String {
    let ports = links.ports(&uplink.name).filter(|port| port.kind == LinkKind::Physical);
    let mut all: Vec<String> = ports.chain([uplink]).filter_map(hardware_address).collect();
    all.sort_unstable();
    all.dedup();
    all.concat()
}

/// An address for a bridge: the same after every reboot, and another on every host, also where hosts were
/// cloned from one image, as it comes from the hardware addresses beneath it (FNV-1a of them and the name).
/// It is locally administered, so that it is no vendor's.
pub(super) fn bridge_mac(seed: &str, bridge: &LinkName) -> MacAddress {
    let bytes = [seed, bridge.as_str()].into_iter().flat_map(str::bytes);
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    // The last bytes reach few bits of it; Murmur's last step brings them to all.
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let [a, b, c, d, e, ..] = (hash ^ (hash >> 33)).to_be_bytes();
    MacAddress([0x02, a, b, c, d, e])
}

/// The hardware's own address; a bond has its first port's, or whatever it was given.
fn hardware_address(link: &Link) -> Option<String> {
    let own = link.permanent_mac.filter(|mac| mac.0 != [0; 6]).map(|mac| mac.to_string());
    own.or_else(|| link.mac.clone())
}

/// Whose a link is: `berth:<network>` or `berth:<network>/<tenant>`.
pub(super) fn alias(network: &str, tenant: Option<&str>) -> String {
    match tenant {
        None => format!("{LINK_ALIAS_PREFIX}{network}"),
        Some(tenant) => format!("{LINK_ALIAS_PREFIX}{network}/{tenant}"),
    }
}

/// Network and tenant of a link that Berth made.
pub(super) fn owner(link: &Link) -> Option<(&str, Option<&str>)> {
    let rest = link.alias.as_deref()?.strip_prefix(LINK_ALIAS_PREFIX)?;
    Some(rest.split_once('/').map_or((rest, None), |(network, tenant)| (network, Some(tenant))))
}

pub(super) const NO_LABEL: &str =
    "must be 1 to 63 lower-case letters, digits and `-`, as a DNS label is";

pub(super) fn is_label(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let ends = [name.bytes().next(), name.bytes().next_back()];
    let hyphen_ends = ends.contains(&Some(b'-'));
    (1..=63).contains(&name.len()) && name.bytes().all(inner) && !hyphen_ends
}
