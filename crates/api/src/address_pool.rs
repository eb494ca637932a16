//! Address pools of tenants' networks, and the network configuration that machines get with an address.

use std::net::IpAddr;

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::AddressRange;

/// Addresses of one family for the machines of a tenant's network, and the configuration of the network.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct AddressPool {
    /// Addresses of the network in CIDR notation, such as `10.0.0.0/24` or `fd00:120::/64`. Exactly one of `cidr` and
    /// `fromPool` must be set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(max = 43))]
    pub cidr: Option<IpNet>,
    /// Name of a pool in InfraConfig's `addressPools`, from which the network gets a prefix as its `cidr`. The prefix
    /// is in `status.prefixes`. The pool's gateway, name servers, search domains and MTU are the defaults of the fields
    /// with the same names.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub from_pool: Option<String>,
    /// Addresses that may be allocated to machines. Default: all host addresses of `cidr`. The gateway, name servers
    /// and next hops of routes are never allocated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub ranges: Vec<AddressRange>,
    /// Addresses that are never allocated, although they are in `ranges`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub exclude: Vec<AddressRange>,
    /// Default gateway of the machines: in `cidr`, or link-local (IPv6). Default: no default route over this network.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(max = 39))]
    pub gateway: Option<IpAddr>,
    /// Additional routes of the machines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub routes: Vec<NetworkRoute>,
    /// Name servers of the machines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>", length(max = 8), inner(length(max = 39)))]
    pub nameservers: Vec<IpAddr>,
    /// Search domains of the machines' resolvers, such as `example.com`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 253)))]
    pub search_domains: Vec<String>,
    /// MTU of the machines' interfaces in bytes; at most the MTU of the network. Default: the MTU of the network
    /// (`status.mtu`). If both families specify an MTU, the smaller one applies.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 576, max = 65_535))]
    pub mtu: Option<u16>,
}

/// A static route of the machines.
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

/// A pool of addresses in the InfraConfig, which is divided into prefixes for tenants' networks.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PrefixPool {
    /// Name of the pool, as in `fromPool` of TenantClusters.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Addresses of the pool in CIDR notation, such as `10.128.0.0/12` or `fd00:120::/32`.
    #[schemars(with = "String", length(max = 43))]
    pub cidr: IpNet,
    /// Length of the prefixes that tenants get: at least that of `cidr`, and at most 30 (IPv4) or 126 (IPv6).
    #[schemars(range(min = 1, max = 126))]
    pub prefix_length: u8,
    /// True if the prefixes are routed outside of the tenants' networks; then the prefixes of tenants never overlap.
    /// Default false: all tenants get the same prefix, the first one of the pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub routed: Option<bool>,
    /// Default gateway of the machines. Default `None`: the machines get no default route over this network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<PrefixGateway>,
    /// Name servers of the machines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>", length(max = 8), inner(length(max = 39)))]
    pub nameservers: Vec<IpAddr>,
    /// Search domains of the machines' resolvers, such as `example.com`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 253)))]
    pub search_domains: Vec<String>,
    /// MTU of the machines' interfaces in bytes. Default: the MTU of the host network.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 576, max = 65_535))]
    pub mtu: Option<u16>,
}

/// Default gateway in the prefixes of a pool.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixGateway {
    /// The first host address of the prefix, such as `10.128.7.1` in `10.128.7.0/24`.
    FirstAddress,
    /// No default route over this network.
    None,
}

/// A prefix that is allocated to a tenant's network from a pool of InfraConfig, with the configuration of the pool.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct GrantedPrefix {
    /// Name of the pool in InfraConfig's `addressPools`.
    #[schemars(length(min = 1, max = 63))]
    pub pool: String,
    /// The prefix in CIDR notation.
    #[schemars(with = "String", length(max = 43))]
    pub cidr: IpNet,
    /// Default gateway of the machines; absent if the pool specifies none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(max = 39))]
    pub gateway: Option<IpAddr>,
    /// Name servers of the pool.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>", length(max = 8), inner(length(max = 39)))]
    pub nameservers: Vec<IpAddr>,
    /// Search domains of the pool.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 253)))]
    pub search_domains: Vec<String>,
    /// MTU of the pool in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 576, max = 65_535))]
    pub mtu: Option<u16>,
}
