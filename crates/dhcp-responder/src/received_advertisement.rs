//! Determines whether a router advertisement comes from the network's gateway.

use std::net::Ipv6Addr;

use etherparse::Icmpv6Slice;
use etherparse::icmpv6::{Icmpv6PayloadSlice, NdpOptionSlice};
use ipnet::Ipv6Net;

use crate::settings::Settings;

/// Returns true if the network's gateway may have sent the advertisement. If the gateway is a global address, its
/// link-local address, from which it sends advertisements, is unknown; so only the prefixes are compared.
pub(crate) fn is_expected(
    settings: &Settings,
    source: Ipv6Addr,
    message: &Icmpv6Slice<'_>,
) -> bool {
    let Some(gateway) = settings.ipv6_gateway else { return false };
    if gateway.is_unicast_link_local() {
        return source == gateway;
    }
    let prefix = settings.ipv6.as_ref().map(|ipv6| ipv6.address.trunc());
    prefix.is_none_or(|prefix| prefixes(message).all(|announced| announced == prefix))
}

/// Returns the prefixes in an advertisement. Omits invalid options, because guests ignore them.
fn prefixes<'a>(message: &Icmpv6Slice<'a>) -> impl Iterator<Item = Ipv6Net> + use<'a> {
    let options = match message.payload_slice() {
        Ok(Icmpv6PayloadSlice::RouterAdvertisement(payload)) => Some(payload.options_iterator()),
        _ => None,
    };
    options.into_iter().flatten().filter_map(|option| match option {
        Ok(NdpOptionSlice::PrefixInformation(prefix)) => {
            let announced = Ipv6Net::new(prefix.prefix().into(), prefix.prefix_length()).ok()?;
            Some(announced.trunc())
        }
        _ => None,
    })
}
