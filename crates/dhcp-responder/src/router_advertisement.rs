//! Router advertisements. They make guests start DHCPv6, and announce what DHCPv6 has no options for.

use std::net::Ipv6Addr;

use etherparse::icmpv6::{NdpOptionType, PrefixInformation, RouterAdvertisementHeader};
use etherparse::{Icmpv6Type, icmpv6::RouterAdvertisementPayload};

use crate::domain_name::encode_all;
use crate::frame::{ALL_NODES, ALL_NODES_MAC, FrameAddresses};
use crate::identity::{LEASE_TIME, ROUTER_LIFETIME_SECONDS, SERVER_LINK_LOCAL, seconds};
use crate::outcome::{AnswerKind, IgnoredReason, Outcome};
use crate::settings::{Ipv6Settings, Settings};

/// Lifetime of the prefix: infinite, because the prefix remains on this link as long as the network exists.
const INFINITE_LIFETIME: u32 = u32::MAX;
/// Type of the option with name servers (RFC 8106).
const RECURSIVE_DNS_SERVERS: u8 = 25;
/// Type of the option with search domains (RFC 8106).
const DNS_SEARCH_LIST: u8 = 31;
/// Minimum MTU of IPv6 in bytes (RFC 8200). Guests ignore smaller values in advertisements.
const MIN_MTU: u16 = 1280;
/// Maximum number of bytes for options: the minimum MTU minus the headers of IPv6 (40) and of the router advertisement
/// (8).
const MAX_PAYLOAD_LENGTH: usize = MIN_MTU as usize - 40 - 8;

pub(crate) fn answer_router_solicitation(
    settings: &Settings,
    source: Ipv6Addr,
) -> Result<Outcome, IgnoredReason> {
    let ipv6 = settings.ipv6.as_ref().ok_or(IgnoredReason::NotConfigured)?;
    let destination = Some(source).filter(Ipv6Addr::is_unicast_link_local);
    let frame = advertisement_frame(settings, ipv6, destination).ok_or(IgnoredReason::Malformed)?;
    Ok(Outcome::Answer { kind: AnswerKind::RouterAdvertisement, frame })
}

/// Returns a frame with a router advertisement to `destination`, or to all nodes if `destination` is `None`.
pub(crate) fn advertisement_frame(
    settings: &Settings,
    ipv6: &Ipv6Settings,
    destination: Option<Ipv6Addr>,
) -> Option<Vec<u8>> {
    let gateway = ipv6.link_local_gateway;
    let header = RouterAdvertisementHeader {
        cur_hop_limit: 64,
        managed_address_config: true,
        other_config: true,
        router_lifetime: if gateway.is_some() { ROUTER_LIFETIME_SECONDS } else { 0 },
    };
    let mut payload =
        RouterAdvertisementPayload { reachable_time: 0, retrans_timer: 0 }.to_bytes().to_vec();
    if gateway.is_none() {
        payload.extend([NdpOptionType::SOURCE_LINK_LAYER_ADDRESS.0, 1]);
        payload.extend(settings.server_mac.0);
    }
    if let Some(mtu) = settings.mtu.filter(|mtu| *mtu >= MIN_MTU) {
        payload.extend([NdpOptionType::MTU.0, 1, 0, 0]);
        payload.extend(u32::from(mtu).to_be_bytes());
    }
    let prefix = PrefixInformation {
        prefix_length: ipv6.address.prefix_len(),
        on_link: true,
        autonomous_address_configuration: false,
        valid_lifetime: INFINITE_LIFETIME,
        preferred_lifetime: INFINITE_LIFETIME,
        prefix: ipv6.address.network().octets(),
    };
    payload.extend(prefix.to_bytes());
    if !ipv6.nameservers.is_empty() {
        let servers: Vec<u8> = ipv6.nameservers.iter().flat_map(Ipv6Addr::octets).collect();
        append_dns_option(&mut payload, RECURSIVE_DNS_SERVERS, &servers);
    }
    if !ipv6.search_domains.is_empty() {
        append_dns_option(&mut payload, DNS_SEARCH_LIST, &encode_all(ipv6.search_domains));
    }
    let destination_mac = if destination.is_some() { settings.mac } else { ALL_NODES_MAC };
    let addresses = FrameAddresses { source: settings.server_mac, destination: destination_mac };
    addresses.icmpv6_frame(
        gateway.unwrap_or(SERVER_LINK_LOCAL),
        destination.unwrap_or(ALL_NODES),
        Icmpv6Type::RouterAdvertisement(header),
        &payload,
    )
}

/// Appends an option of RFC 8106, padded to a multiple of eight bytes. An option that does not fit into the minimum MTU
/// is left out, because guests get the same data from DHCPv6. The option has the same lifetime as a lease, so that
/// guests retain their name servers while the agent is stopped.
fn append_dns_option(payload: &mut Vec<u8>, option: u8, data: &[u8]) {
    let words = (8 + data.len()).div_ceil(8);
    let Ok(length) = u8::try_from(words) else { return };
    if payload.len() + words * 8 > MAX_PAYLOAD_LENGTH {
        return;
    }
    payload.extend([option, length, 0, 0]);
    payload.extend(seconds(LEASE_TIME).to_be_bytes());
    payload.extend_from_slice(data);
    payload.resize(payload.len() + words * 8 - 8 - data.len(), 0);
}
