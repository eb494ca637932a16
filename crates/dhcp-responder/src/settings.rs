//! Settings for the answers to one port: the valid fields of the lease and of its network.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use berth_api::{Lease, LeaseNetwork, LeaseOptions, MacAddress};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::address_probes::AddressState;
use crate::domain_name::DomainName;

/// Settings for the answers to one port.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) mac: MacAddress,
    pub(crate) server_mac: MacAddress,
    pub(crate) hostname: Option<String>,
    pub(crate) mtu: Option<u16>,
    pub(crate) ipv4: Option<Ipv4Settings>,
    pub(crate) ipv6: Option<Ipv6Settings>,
    /// IPv6 gateway of the network. It is set even if the lease has no IPv6 address.
    pub(crate) ipv6_gateway: Option<Ipv6Addr>,
    /// State of the lease's IPv4 address.
    pub(crate) ipv4_state: AddressState,
    /// State of the lease's IPv6 address.
    pub(crate) ipv6_state: AddressState,
}

/// IPv4 settings.
#[derive(Clone, Debug)]
pub(crate) struct Ipv4Settings {
    /// Address of the lease, with the prefix length of the network.
    pub(crate) address: Ipv4Net,
    pub(crate) gateway: Option<Ipv4Addr>,
    pub(crate) routes: Vec<(Ipv4Net, Ipv4Addr)>,
    pub(crate) nameservers: Vec<Ipv4Addr>,
    pub(crate) search_domains: Vec<DomainName>,
}

/// IPv6 settings.
#[derive(Clone, Debug)]
pub(crate) struct Ipv6Settings {
    /// Address of the lease, with the prefix length of the network.
    pub(crate) address: Ipv6Net,
    /// The gateway of the network, if it is a link-local address.
    pub(crate) link_local_gateway: Option<Ipv6Addr>,
    pub(crate) nameservers: Vec<Ipv6Addr>,
    pub(crate) search_domains: Vec<DomainName>,
}

impl Settings {
    /// Converts a lease and its network to settings. Values of the wrong address family and invalid names are left out:
    /// a guest without a search domain is better than a guest without an address.
    pub(crate) fn new(network: &LeaseNetwork, lease: &Lease, server_mac: MacAddress) -> Self {
        let ipv4 = || Ipv4Settings::new(network.ipv4.as_ref()?, lease.ipv4?);
        let ipv6 = || Ipv6Settings::new(network.ipv6.as_ref()?, lease.ipv6?);
        let hostname = lease.hostname.as_deref().and_then(DomainName::parse);
        Self {
            mac: lease.mac,
            server_mac,
            hostname: hostname.map(|name| name.text),
            mtu: network.mtu,
            ipv4: ipv4(),
            ipv6: ipv6(),
            ipv6_gateway: network.ipv6.as_ref().and_then(|options| to_ipv6(options.gateway?)),
            ipv4_state: AddressState::default(),
            ipv6_state: AddressState::default(),
        }
    }
}

impl Ipv4Settings {
    fn new(options: &LeaseOptions, address: Ipv4Addr) -> Option<Self> {
        let address = Ipv4Net::new(address, options.prefix_length).ok()?;
        let routes = options.routes.iter().filter_map(|route| match (route.to, route.via) {
            (IpNet::V4(to), IpAddr::V4(via)) => Some((to.trunc(), via)),
            _ => None,
        });
        Some(Self {
            address,
            gateway: options.gateway.and_then(to_ipv4),
            routes: routes.collect(),
            nameservers: options.nameservers.iter().copied().filter_map(to_ipv4).collect(),
            search_domains: parse_domains(options),
        })
    }
}

impl Ipv6Settings {
    fn new(options: &LeaseOptions, address: Ipv6Addr) -> Option<Self> {
        let gateway = options.gateway.and_then(to_ipv6);
        Some(Self {
            address: Ipv6Net::new(address, options.prefix_length).ok()?,
            link_local_gateway: gateway.filter(Ipv6Addr::is_unicast_link_local),
            nameservers: options.nameservers.iter().copied().filter_map(to_ipv6).collect(),
            search_domains: parse_domains(options),
        })
    }
}

fn parse_domains(options: &LeaseOptions) -> Vec<DomainName> {
    options.search_domains.iter().filter_map(|name| DomainName::parse(name)).collect()
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
