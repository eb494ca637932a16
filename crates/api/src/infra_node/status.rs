//! Observed state of a host. Only the agent of that host writes it.
//!
//! Facts are three-valued: a field is true, false, or absent and listed in `unknown` with the reason. No field changes
//! while the host is idle: free memory, counters and times are metrics.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Capabilities;
use crate::{Bytes, Condition, CpuSet, PageSize, VlanId, VlanRanges};

/// Observed state of the host, reported by its agent.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct InfraNodeStatus {
    /// `metadata.generation` of the spec from which this status was computed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Agent that reported this status, and the host's boot from which it reported.
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
    /// Last changes of the host, newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub changes: Vec<ChangeStatus>,
    /// Facts that could not be determined, with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<Unknown>,
    /// Conditions of the host: Ready, VirtualizationReady, HostTuned, TenantNetworksReady, KubeletAligned,
    /// CredentialValid.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// Agent that reported, and the host's boot from which it reported.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct AgentStatus {
    /// Version of `berth-agent`.
    pub version: String,
    /// Boot id of the kernel (`/proc/sys/kernel/random/boot_id`). It changes with every boot.
    #[serde(rename = "bootID", skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
}

/// A NUMA node of the host.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Zone {
    /// Number of the node in the kernel. Numbers may have gaps.
    pub id: u32,
    /// Online CPUs of the zone; empty for a zone that has only memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<CpuSet>,
    /// Number of physical cores that have an online CPU in the zone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cores: Option<u32>,
    /// Physical package of all CPUs of the zone, by the firmware's number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<u32>,
    /// CPUs of the zone by thread: the first threads of all cores, then the second threads. Siblings have the same
    /// position in each set. Empty if the cores differ.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub threads: Vec<CpuSet>,
    /// CPUs of the zone by last-level cache: the CPUs of each set share one cache. Empty if one cache serves all CPUs
    /// of the zone, or if the caches are not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128))]
    pub caches: Vec<CpuSet>,
    /// Memory that the kernel manages in the zone (`MemTotal`), including huge pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Bytes>,
    /// Memory that the kubelet's Memory Manager reserves for the system (`reservedMemory`), excluding huge pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved_memory: Option<Bytes>,
    /// Huge pages that the kubelet's Memory Manager reserves for the system (`reservedMemory`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub reserved_hugepages: Vec<ReservedHugepages>,
    /// Huge page pools, one per size that the kernel supports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hugepages: Vec<HugepagePool>,
    /// CPUs that the kubelet reserves for the system (`reservedSystemCPUs`).
    #[serde(rename = "reservedCPUs", skip_serializing_if = "Option::is_none")]
    pub reserved_cpus: Option<CpuSet>,
    /// CPUs that the kubelet's static CPU manager may allocate exclusively, in use or not.
    #[serde(rename = "pinnableCPUs", skip_serializing_if = "Option::is_none")]
    pub pinnable_cpus: Option<CpuSet>,
    /// CPUs that are currently allocated exclusively to a container.
    #[serde(rename = "pinnedCPUs", skip_serializing_if = "Option::is_none")]
    pub pinned_cpus: Option<CpuSet>,
    /// Access cost to every zone, in the firmware's unit (10 is local).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub distances: Vec<ZoneDistance>,
}

/// Huge pages of one size that are not available to pods.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ReservedHugepages {
    /// Page size.
    pub size: PageSize,
    /// Number of pages.
    pub count: u64,
}

/// Access cost from one zone to another (ACPI SLIT).
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ZoneDistance {
    /// The other zone.
    pub zone: u32,
    /// Relative cost; 10 is local, 255 unreachable.
    pub distance: u32,
}

/// A pool of huge pages of one size.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct HugepagePool {
    /// Page size.
    pub size: PageSize,
    /// Pages in the pool, surplus included (`nr_hugepages`).
    pub total: u64,
    /// Pages not in use (`free_hugepages`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free: Option<u64>,
    /// Pages beyond the persistent pool, which are released when freed (`surplus_hugepages`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub surplus: Option<u64>,
    /// Pages reserved but not yet faulted in (`resv_hugepages`); known for the whole host only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved: Option<u64>,
}

/// Resources that the kubelet has allocated to one pod.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Allocation {
    /// `metadata.uid` of the pod.
    #[serde(rename = "podUID")]
    pub pod_uid: String,
    /// Namespace of the pod, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Name of the pod, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// CPUs that are allocated exclusively to its containers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<CpuSet>,
    /// Zones of its CPUs and memory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub zones: Vec<u32>,
    /// Huge pages guaranteed to the pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hugepages: Vec<AllocatedHugepages>,
    /// Memory that the Memory Manager guarantees to the pod, excluding huge pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Bytes>,
    /// Devices of device plugins, as the kubelet's PodResources API lists them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<AllocatedDevices>,
    /// Resources by container, with the zones of each amount. Empty if no container has resources of a zone, if the pod
    /// has more containers than this list can have, and in reports of agents that do not know this field. Only the sums
    /// are known then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub containers: Vec<AllocatedContainer>,
}

/// Resources that the kubelet has allocated to one container.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct AllocatedContainer {
    /// Name of the container; empty for resources of the pod as a whole.
    #[schemars(length(max = 63))]
    pub name: String,
    /// Exclusive CPUs of the container.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<CpuSet>,
    /// Memory blocks of the container, as in the Memory Manager's checkpoint.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub memory: Vec<AllocatedMemory>,
    /// Devices of the container by zone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub devices: Vec<AllocatedZoneDevices>,
}

/// Memory of one kind that the Memory Manager has allocated from a set of zones.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct AllocatedMemory {
    /// Size of the huge pages; absent for memory that is not in huge pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_size: Option<PageSize>,
    /// Size in bytes. The block of an init container shrinks, down to 0, when later containers reuse its memory.
    pub size: Bytes,
    /// Zones that provide the memory as a group.
    #[schemars(length(max = 64))]
    pub zones: Vec<u32>,
}

/// Devices of one resource and zone that are allocated to a container.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct AllocatedZoneDevices {
    /// Name of the resource, such as `intel.com/sriov_vf`.
    pub resource: String,
    /// Zone of the devices; absent for devices without a zone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<u32>,
    /// Number of devices.
    pub count: u32,
}

/// Devices of one resource and zone.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ZoneDevices {
    /// Name of the resource, such as `intel.com/sriov_vf`.
    #[schemars(length(max = 317))]
    pub resource: String,
    /// Zone of the devices; absent for devices without a zone, such as `/dev/kvm`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<u32>,
    /// Number of healthy devices, allocated or not.
    pub total: u32,
    /// Number of healthy devices that are not allocated to a container.
    pub free: u32,
}

/// Devices of one resource that are allocated to a pod.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct AllocatedDevices {
    /// Name of the resource, such as `devices.kubevirt.io/kvm`.
    pub resource: String,
    /// Number of devices.
    pub count: u32,
}

/// Huge pages of one size that are guaranteed to a pod.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct AllocatedHugepages {
    /// Page size.
    pub size: PageSize,
    /// Number of pages.
    pub count: u64,
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
    pub state: TenantNetworkState,
    /// Reason why the tenant network is not ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
}

/// State of a tenant network.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum TenantNetworkState {
    /// Configured, and verified by reading it back.
    Ready,
    /// Being configured, or waiting for a dependency.
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
    pub result: ChangeResult,
    /// Numbers, errno and its meaning, or the reason why the change is blocked.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
    /// The tenant networks that it removes from the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub removes: Option<Removal>,
}

/// Tenant networks that a change removes from the host.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Removal {
    /// The tenant whose links are removed, as `spec.tenantNetworks` names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The VLANs that are removed from an uplink.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlans: Option<VlanRanges>,
}

/// Result of a change.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeResult {
    /// Applied, and verified by reading it back.
    Done,
    /// Applied in part; the message has the desired and the actual number.
    Partial,
    /// Not attempted, because a resource in use prevents it.
    Blocked,
    /// Attempted and refused.
    Failed,
}

/// A fact that could not be determined.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub struct Unknown {
    /// Path of the field below `status`, for example `capabilities.kvm.apiVersion`.
    #[schemars(length(max = 256))]
    pub path: String,
    /// Reason why the fact is not known.
    pub reason: UnknownReason,
    /// Attempted operation and its result.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
}

/// Reason why a fact is not known.
#[derive(
    JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash,
)]
pub enum UnknownReason {
    /// The fact requires a running machine, but a captured tree was read.
    CapturedTree,
    /// The container's device cgroup forbids the device.
    DeviceCgroup,
    /// The file exists, but this user has no permission to read or open it.
    NoPermission,
    /// The kernel or the captured tree has no such file.
    NotFound,
    /// The file exists, but its content is malformed.
    Malformed,
    /// Reading failed for another reason.
    Unreadable,
    /// The fact depends on another unknown fact.
    DependsOnUnknown,
}
