//! Settings for the answers to one guest: the valid fields of its network, which all guests share, and of its lease.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use berth_api::{Lease, LeaseNetwork, LeaseOptions, MacAddress};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::address_probes::AddressState;
use crate::domain_name::DomainName;

/// The valid fields of a network. The responders of its guests share one value, because a host has many guests.
#[derive(Debug)]
pub struct NetworkSettings {
    server_mac: MacAddress,
    mtu: Option<u16>,
    ipv4: Option<FamilySettings<Ipv4Addr>>,
    ipv6: Option<FamilySettings<Ipv6Addr>>,
}

/// The valid fields of a network for one address family. IPv6 has no routes.
#[derive(Debug)]
struct FamilySettings<A> {
    prefix_length: u8,
    gateway: Option<A>,
    routes: Vec<(Ipv4Net, Ipv4Addr)>,
    nameservers: Vec<A>,
    search_domains: Vec<DomainName>,
}

/// The valid fields of a lease, and the settings of its network.
#[derive(Clone, Debug)]
pub(crate) struct LeaseSettings {
    pub(crate) network: Arc<NetworkSettings>,
    hostname: Option<Box<str>>,
    pub(crate) mac: MacAddress,
    ipv4: Option<Ipv4Net>,
    ipv6: Option<Ipv6Net>,
    /// True if the guest gets the gateway of the network.
    has_gateway: bool,
    /// State of the lease's IPv4 address.
    pub(crate) ipv4_state: AddressState,
    /// State of the lease's IPv6 address.
    pub(crate) ipv6_state: AddressState,
}

/// Settings for the answers to one guest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings<'a> {
    pub(crate) mac: MacAddress,
    pub(crate) server_mac: MacAddress,
    pub(crate) hostname: Option<&'a str>,
    pub(crate) mtu: Option<u16>,
    pub(crate) ipv4: Option<Ipv4Settings<'a>>,
    pub(crate) ipv6: Option<Ipv6Settings<'a>>,
    /// IPv6 gateway of the network. It is set even if the lease has no IPv6 address.
    pub(crate) ipv6_gateway: Option<Ipv6Addr>,
    /// State of the lease's IPv4 address.
    pub(crate) ipv4_state: AddressState,
    /// State of the lease's IPv6 address.
    pub(crate) ipv6_state: AddressState,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Ipv4Settings<'a> {
    /// Address of the lease, with the prefix length of the network.
    pub(crate) address: Ipv4Net,
    pub(crate) gateway: Option<Ipv4Addr>,
    pub(crate) routes: &'a [(Ipv4Net, Ipv4Addr)],
    pub(crate) nameservers: &'a [Ipv4Addr],
    pub(crate) search_domains: &'a [DomainName],
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Ipv6Settings<'a> {
    /// Address of the lease, with the prefix length of the network.
    pub(crate) address: Ipv6Net,
    /// The gateway of the network, if it is a link-local address and the guest gets it.
    pub(crate) link_local_gateway: Option<Ipv6Addr>,
    pub(crate) nameservers: &'a [Ipv6Addr],
    pub(crate) search_domains: &'a [DomainName],
}

impl NetworkSettings {
    /// Converts a network to settings; its leases are not read. Values of the wrong address family and invalid names
    /// are left out: a guest without a search domain is better than a guest without an address. `server_mac` is the
    /// Ethernet source of all answers: [`crate::SERVER_MAC`].
    #[must_use]
    pub fn new(network: &LeaseNetwork, server_mac: MacAddress) -> Self {
        Self {
            server_mac,
            mtu: network.mtu,
            ipv4: network.ipv4.as_ref().map(|options| FamilySettings::new(options, to_ipv4)),
            ipv6: network.ipv6.as_ref().map(|options| FamilySettings::new(options, to_ipv6)),
        }
    }
}

impl<A> FamilySettings<A> {
    fn new(options: &LeaseOptions, to_family: fn(IpAddr) -> Option<A>) -> Self {
        let routes = options.routes.iter().filter_map(|route| match (route.to, route.via) {
            (IpNet::V4(to), IpAddr::V4(via)) => Some((to.trunc(), via)),
            _ => None,
        });
        let search_domains = options.search_domains.iter();
        Self {
            prefix_length: options.prefix_length,
            gateway: options.gateway.and_then(to_family),
            routes: routes.collect(),
            nameservers: options.nameservers.iter().copied().filter_map(to_family).collect(),
            search_domains: search_domains.filter_map(|name| DomainName::parse(name)).collect(),
        }
    }
}

impl LeaseSettings {
    /// Converts a lease to settings. An invalid host name is left out.
    pub(crate) fn new(network: &Arc<NetworkSettings>, lease: &Lease) -> Self {
        let hostname = lease.hostname.as_deref().and_then(DomainName::parse);
        let ipv4 = || Ipv4Net::new(lease.ipv4?, network.ipv4.as_ref()?.prefix_length).ok();
        let ipv6 = || Ipv6Net::new(lease.ipv6?, network.ipv6.as_ref()?.prefix_length).ok();
        Self {
            network: Arc::clone(network),
            hostname: hostname.map(|name| name.text.into()),
            mac: lease.mac,
            ipv4: ipv4(),
            ipv6: ipv6(),
            has_gateway: lease.default_route != Some(false),
            ipv4_state: AddressState::default(),
            ipv6_state: AddressState::default(),
        }
    }

    /// Returns the settings for the answers.
    pub(crate) fn settings(&self) -> Settings<'_> {
        let network = &*self.network;
        let ipv4 = self.ipv4.zip(network.ipv4.as_ref()).map(|(address, family)| Ipv4Settings {
            address,
            gateway: family.gateway.filter(|_| self.has_gateway),
            routes: &family.routes,
            nameservers: &family.nameservers,
            search_domains: &family.search_domains,
        });
        let ipv6 = self.ipv6.zip(network.ipv6.as_ref()).map(|(address, family)| Ipv6Settings {
            address,
            link_local_gateway: family
                .gateway
                .filter(|gateway| self.has_gateway && gateway.is_unicast_link_local()),
            nameservers: &family.nameservers,
            search_domains: &family.search_domains,
        });
        Settings {
            mac: self.mac,
            server_mac: network.server_mac,
            hostname: self.hostname.as_deref(),
            mtu: network.mtu,
            ipv4,
            ipv6,
            ipv6_gateway: network.ipv6.as_ref().and_then(|family| family.gateway),
            ipv4_state: self.ipv4_state,
            ipv6_state: self.ipv6_state,
        }
    }
}

fn to_ipv4(address: IpAddr) -> Option<Ipv4Addr> {
    match address {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    }
}

fn to_ipv6(address: IpAddr) -> Option<Ipv6Addr> {
    match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(address) => Some(address),
    }
}
