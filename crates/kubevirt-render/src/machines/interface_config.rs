//! Configuration of an interface of a machine, from its AddressClaims and the pools of its network.

use std::net::IpAddr;

use berth_api::{MacAddress, NetworkRoute};
use ipnet::IpNet;

/// Addresses and routes that the guest of a machine configures on one interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceConfig {
    /// Name of the interface, as in the VirtualMachine.
    pub name: String,
    /// Ethernet address by which the guest finds the interface.
    pub mac: MacAddress,
    /// MTU in bytes; `None` if the guest uses its default.
    pub mtu: Option<u16>,
    /// Addresses of the machine, each with the prefix length of its network; at most one IPv4 and one IPv6 address.
    pub addresses: Vec<IpNet>,
    /// Default gateways; at most one IPv4 and one IPv6 gateway.
    pub gateways: Vec<IpAddr>,
    /// Routes in addition to the default routes.
    pub routes: Vec<NetworkRoute>,
    /// Name servers.
    pub nameservers: Vec<IpAddr>,
    /// Domains that the resolver appends to names.
    pub search_domains: Vec<String>,
}

impl InterfaceConfig {
    /// Returns the configuration of an interface that the guest configures by DHCP.
    #[must_use]
    pub const fn new_dhcp(name: String, mac: MacAddress) -> Self {
        Self {
            name,
            mac,
            mtu: None,
            addresses: Vec::new(),
            gateways: Vec::new(),
            routes: Vec::new(),
            nameservers: Vec::new(),
            search_domains: Vec::new(),
        }
    }
}
