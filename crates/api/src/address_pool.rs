//! Addresses of a tenant's network, and the configuration that its machines get with them.

use std::net::IpAddr;

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::AddressRange;

/// Addresses of one family for the machines of a tenant's network, and the configuration of the network.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct AddressPool {
    /// Addresses of the network in CIDR notation, such as `10.0.0.0/24` or `fd00:120::/64`.
    #[schemars(with = "String", length(max = 43))]
    pub cidr: IpNet,
    /// Addresses that machines get. Default: all host addresses of `cidr`. The gateway, name servers and next hops of
    /// routes are never allocated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub ranges: Vec<AddressRange>,
    /// Addresses of `ranges` that are not allocated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub exclude: Vec<AddressRange>,
    /// Default gateway of the machines: in `cidr`, or link-local (IPv6). Default: no default route over this network.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(max = 39))]
    pub gateway: Option<IpAddr>,
    /// Further routes of the machines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub routes: Vec<NetworkRoute>,
    /// Name servers of the machines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>", length(max = 8), inner(length(max = 39)))]
    pub nameservers: Vec<IpAddr>,
    /// Domains that resolvers of the machines append to names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 253)))]
    pub search_domains: Vec<String>,
    /// MTU of the machines' interfaces in bytes; at most the MTU of the network. Default: the MTU of the network
    /// (`status.mtu`). If both families specify an MTU, the smaller one applies.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 576, max = 65_535))]
    pub mtu: Option<u16>,
}

/// A route of machines.
#[derive(
    JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord,
)]
#[serde(rename_all = "camelCase")]
pub struct NetworkRoute {
    /// Destination in CIDR notation.
    #[schemars(with = "String", length(max = 43))]
    pub to: IpNet,
    /// Next hop, an address of the network or (IPv6) a link-local address.
    #[schemars(with = "String", length(max = 39))]
    pub via: IpAddr,
}
