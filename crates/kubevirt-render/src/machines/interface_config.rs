//! Configuration of an interface of a machine, from its AddressClaims and the pools of its network.

use std::net::IpAddr;

use berth_api::{MacAddress, NetworkRoute};
use ipnet::IpNet;

/// Addresses and routes that the guest of a machine configures on one interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceConfig {
    /// Name of the interface, as in the VirtualMachine.
    pub name: String,
    /// Ethernet address of the interface, by which the guest finds it.
    pub mac: MacAddress,
    /// MTU in bytes.
    pub mtu: Option<u16>,
    /// Addresses of the machine, each with the prefix length of its network; at most one of each family.
    pub addresses: Vec<IpNet>,
    /// Default gateways, at most one of each family.
    pub gateways: Vec<IpAddr>,
    /// Further routes.
    pub routes: Vec<NetworkRoute>,
    /// Name servers.
    pub nameservers: Vec<IpAddr>,
    /// Domains that the resolver appends to names.
    pub search_domains: Vec<String>,
}
