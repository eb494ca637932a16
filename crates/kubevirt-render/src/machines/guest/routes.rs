//! Routes that the guest configures for an interface.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::machines::interface_config::InterfaceConfig;

/// Metric of the default route over a tenant's network. The route is preferred to the pod network's default route,
/// because that route has a higher metric: 100 (netplan and NetworkManager) or 1024 (networkd).
const DEFAULT_ROUTE_METRIC: u32 = 50;
/// Metric of the routes that an interface without allocated addresses receives by DHCP and from router advertisements.
/// The kernel prefers lower metrics, and the default routes of the pod network and of the tenant's network must be
/// preferred. Routes without a metric, such as the IPv6 default route in network data, have the metric 1024 in the
/// kernel and in networkd.
pub(super) const FURTHER_ROUTE_METRIC: u32 = 2000;

pub(super) struct GuestRoute {
    pub(super) to: IpNet,
    pub(super) via: IpAddr,
    pub(super) metric: Option<u32>,
    /// True if the route must be marked on-link: no address of the interface is in the network of the next hop. A
    /// link-local next hop of IPv6 is always on-link, so its route needs no mark.
    pub(super) is_on_link: bool,
}

impl GuestRoute {
    /// Returns true if this is a default route.
    pub(super) fn is_default(&self) -> bool {
        self.to.prefix_len() == 0
    }

    /// Returns true for an IPv6 route.
    pub(super) fn is_ipv6(&self) -> bool {
        self.via.is_ipv6()
    }
}

/// Returns the default routes, and then the other routes, of an interface. A route is omitted if the interface has no
/// address of the route's family, or if next hop and destination have different families: with such a route, the guest
/// would refuse the whole configuration.
pub(super) fn routes(interface: &InterfaceConfig) -> Vec<GuestRoute> {
    let default = |gateway: &IpAddr| match gateway {
        IpAddr::V4(_) => IpNet::V4(Ipv4Net::default()),
        IpAddr::V6(_) => IpNet::V6(Ipv6Net::default()),
    };
    let gateways = interface.gateways.iter().map(|via| (default(via), *via, true));
    let further = interface.routes.iter().map(|route| (route.to, route.via, false));
    let is_usable = |(to, via, _): &(IpNet, IpAddr, bool)| {
        let has_family = |net: &IpNet| net.addr().is_ipv4() == via.is_ipv4();
        has_family(to) && interface.addresses.iter().any(has_family)
    };
    let route = |(to, via, is_default): (IpNet, IpAddr, bool)| GuestRoute {
        to: to.trunc(),
        via,
        metric: is_default.then_some(DEFAULT_ROUTE_METRIC),
        is_on_link: !is_link_local(via)
            && !interface.addresses.iter().any(|net| net.contains(&via)),
    };
    gateways.chain(further).filter(is_usable).map(route).collect()
}

/// Returns true for a link-local address of IPv6.
fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}
