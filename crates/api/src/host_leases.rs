//! HostLeases: the addresses of the VMs on one host, from which the agent of the host answers DHCP requests.

#![cfg_attr(
    feature = "kube",
    expect(
        unreachable_pub,
        reason = "KubeSchema copies each type into a function to build its rules"
    )
)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

#[cfg(feature = "kube")]
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{MacAddress, NetworkRoute, VlanId};

/// Addresses of the VMs on one host, and of the VMs that migrate to this host. The object's name is the name of the
/// Node. The controller writes the object; the agent of the host reads it, and keeps a copy on disk.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "kube", derive(CustomResource, KubeSchema))]
#[cfg_attr(not(feature = "kube"), derive(JsonSchema))]
#[cfg_attr(
    feature = "kube",
    kube(
        group = "berth.dev",
        version = "v1alpha1",
        kind = "HostLeases",
        plural = "hostleases",
        shortname = "hleases",
        category = "berth",
        derive = "PartialEq",
        doc = "Addresses of the VMs on one host, from which the agent of the host answers DHCP requests. The object has the name of the Node.",
        printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
    )
)]
#[serde(rename_all = "camelCase")]
pub struct HostLeasesSpec {
    /// Networks of tenants that have VMs on the host.
    // An empty list is serialized too, because a server-side apply without the field `networks` would not remove the
    // networks of an earlier apply.
    #[serde(default)]
    #[schemars(length(max = 4096))]
    pub networks: Vec<LeaseNetwork>,
}

/// The VMs on a host that are in the network of one tenant.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct LeaseNetwork {
    /// Name of the tenant's network, as in InfraNode's `spec.tenantNetworks`: `cluster-<tenant>`.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// VLAN of the network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan: Option<VlanId>,
    /// VXLAN network identifier of the network.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_215))]
    pub vni: Option<u32>,
    /// MTU of the VMs' interfaces in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 576, max = 65_535))]
    pub mtu: Option<u16>,
    /// Configuration for IPv4. Without it, DHCPv4 requests get no answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<LeaseOptions>,
    /// Configuration for IPv6. Without it, DHCPv6 requests and router solicitations get no answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<LeaseOptions>,
    /// Leases of the VMs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4096))]
    pub leases: Vec<Lease>,
}

/// Configuration of one address family that all VMs of a network get with a lease.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct LeaseOptions {
    /// Length of the network's prefix in bits.
    #[schemars(range(max = 128))]
    pub prefix_length: u8,
    /// Default gateway.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(max = 39))]
    pub gateway: Option<IpAddr>,
    /// Additional routes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub routes: Vec<NetworkRoute>,
    /// Name servers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>", length(max = 8), inner(length(max = 39)))]
    pub nameservers: Vec<IpAddr>,
    /// Search domains of the VMs' resolvers, such as `example.com`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 253)))]
    pub search_domains: Vec<String>,
}

/// Addresses of one interface of a VM.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Lease {
    /// Ethernet address of the interface. Requests from other Ethernet addresses get no answer.
    pub mac: MacAddress,
    /// Name of the machine, as `namespace/name`.
    #[schemars(length(min = 1, max = 317))]
    pub machine: String,
    /// Host name of the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub hostname: Option<String>,
    /// IPv4 address.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(max = 15))]
    pub ipv4: Option<Ipv4Addr>,
    /// IPv6 address.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(max = 39))]
    pub ipv6: Option<Ipv6Addr>,
    /// False if the VM gets no default gateway over this interface, because the network is not that of its own tenant.
    /// Default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_route: Option<bool>,
}
