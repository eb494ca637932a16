//! Observed state of a host. Only the agent of that host writes it.
//!
//! A fact that cannot be determined is absent, and listed in `unknown` with the reason. No field changes while the host
//! is idle: free memory, counters and times are exported as metrics instead.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::address_conflict::AddressConflictStatus;
use super::allocations::{Allocation, ZoneDevices};
use super::capabilities::Capabilities;
use super::trunk::{Neighbor, TrunkStatus};
use super::unknown_value;
use super::zones::Zone;
use crate::{Condition, VlanId, VlanRanges};

/// Observed state of the host, reported by its agent.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct InfraNodeStatus {
    /// `metadata.generation` of the spec from which this status was computed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Version of the agent that reported this status, and ID of the host's boot at this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentStatus>,
    /// Capabilities of the host.
    #[serde(default)]
    pub capabilities: Capabilities,
    /// NUMA zones in the order of the kernel's ids. A machine without NUMA has one zone, with id 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub zones: Vec<Zone>,
    /// Exclusive CPUs, huge pages and devices allocated by the kubelet, by pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allocations: Vec<Allocation>,
    /// Devices of device plugins by resource and zone, as the kubelet's `GetAllocatableResources` lists them. Resources
    /// with unknown zones are not included.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub devices: Vec<ZoneDevices>,
    /// Host networks, with the counts of their tenant networks and the tenant networks that are not ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<NetworkStatus>,
    /// Switch ports to which the uplinks of host networks are connected, according to LLDP.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub neighbors: Vec<Neighbor>,
    /// Addresses that are leased to VMs on this host, but used by other machines. The agent does not answer these VMs'
    /// DHCP requests for such an address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub address_conflicts: Vec<AddressConflictStatus>,
    /// Last changes of the host, newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub changes: Vec<ChangeStatus>,
    /// Facts that could not be determined, with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<UnknownFact>,
    /// Conditions of the host: Ready, VirtualizationReady, HostTuned, TenantNetworksReady, KubeletAligned,
    /// CredentialValid, TrunkVerified, AddressConflict, HostLost.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// The agent that reported the status, and the boot of the host.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct AgentStatus {
    /// Version of `berth-agent`.
    pub version: String,
    /// ID of the host's boot (`/proc/sys/kernel/random/boot_id`). The kernel generates a new ID at every boot.
    #[serde(rename = "bootID", skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
}

/// State of one host network. Ready tenant networks are only counted, so that the status stays small.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct NetworkStatus {
    /// Name of the host network (`spec.networks[].name`).
    pub name: String,
    /// Number of tenant networks that are ready.
    pub ready: u32,
    /// Number of tenant networks that are pending.
    pub pending: u32,
    /// Number of tenant networks that could not be configured.
    pub failed: u32,
    /// Tenant networks that are not ready, with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub not_ready: Vec<TenantNetworkStatus>,
    /// MTU of the tenant networks on this host in bytes: the smallest MTU of the uplink (minus the overhead of a
    /// tunnel) and of the links that Berth created. Absent if it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Result of the probes that the agents exchange in the VLANs of the network; absent for networks whose uplink
    /// carries no VLANs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trunk: Option<TrunkStatus>,
}

/// A tenant network that is not ready.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct TenantNetworkStatus {
    /// Name of the tenant network (`spec.tenantNetworks[].name`).
    pub tenant: String,
    /// VLAN of the tenant network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan: Option<VlanId>,
    /// VXLAN network identifier of the tenant network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vni: Option<u32>,
    /// State of the tenant network: Pending or Failed.
    #[serde(deserialize_with = "unknown_value::or_default")]
    pub state: TenantNetworkState,
    /// Reason why the tenant network is not ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
}

/// State of a tenant network.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TenantNetworkState {
    /// Configured; reading the configuration back confirmed it.
    Ready,
    /// Being configured, or waiting for a dependency.
    #[default]
    Pending,
    /// Could not be configured.
    Failed,
}

/// Result of one change of the host.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ChangeStatus {
    /// Human-readable description of the change: `hugepages 2Mi zone 1: 0 -> 1024`.
    #[schemars(length(max = 256))]
    pub what: String,
    /// Result of the change.
    #[serde(deserialize_with = "unknown_value::or_default")]
    pub result: ChangeResult,
    /// Details of the result: numbers, the errno and its meaning, or the reason why the change is blocked.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
    /// Tenant networks that the change removes from the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub removes: Option<Removal>,
}

/// Tenant networks that a change removes from the host.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Removal {
    /// Name of the tenant network whose links are removed (`spec.tenantNetworks[].name`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// VLANs that are removed from an uplink.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlans: Option<VlanRanges>,
}

/// Result of a change.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChangeResult {
    /// Applied; reading the setting back confirmed it.
    Done,
    /// Applied in part; the message contains the desired and the actual number.
    Partial,
    /// Not attempted, because a resource is in use.
    Blocked,
    /// Attempted, but failed.
    #[default]
    Failed,
}

/// A fact that could not be determined.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub struct UnknownFact {
    /// Path of the field below `status`, for example `capabilities.kvm.apiVersion`.
    #[schemars(length(max = 256))]
    pub path: String,
    /// Reason why the fact is not known.
    #[serde(deserialize_with = "unknown_value::or_default")]
    pub reason: UnknownReason,
    /// Attempted operation and its result.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
}

/// Reason why a fact is not known.
#[derive(
    JsonSchema,
    Serialize,
    Deserialize,
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
)]
pub enum UnknownReason {
    /// The fact can only be read on a running machine, but the agent reads a captured file tree (`--root`).
    CapturedTree,
    /// The container's device cgroup forbids the device.
    DeviceCgroup,
    /// The file exists, but this user has no permission to read or open it.
    NoPermission,
    /// The kernel or the captured file tree has no such file.
    NotFound,
    /// The file exists, but its content is malformed.
    Malformed,
    /// Reading failed for another reason.
    #[default]
    Unreadable,
    /// The fact depends on another unknown fact.
    DependsOnUnknown,
}
