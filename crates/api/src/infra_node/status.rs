//! What a host is. Only the agent of that host writes it.
//!
//! Facts are three-valued: a field is yes, no, or absent and then listed in `unknown` with the reason.
//! Nothing here changes while the host is idle: free memory, counters and times go to metrics.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Capabilities;
use crate::{Bytes, Condition, CpuSet, PageSize, VlanId, VlanRanges};

/// What the host is, by its own agent.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct InfraNodeStatus {
    /// `metadata.generation` of the spec that the rest of this status answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Which agent reported, and from which boot of the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentStatus>,
    /// What the host can do.
    #[serde(default)]
    pub capabilities: Capabilities,
    /// NUMA zones in the kernel's order of ids; a machine without NUMA has one, with id 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub zones: Vec<Zone>,
    /// Exclusive CPUs, huge pages and devices allocated by the kubelet, by pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allocations: Vec<Allocation>,
    /// Devices of device plugins by resource and zone, as the kubelet's `GetAllocatableResources` lists them. A resource
    /// whose zones are not known is not in here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub devices: Vec<ZoneDevices>,
    /// Host networks: counts of tenant networks, and those that are not Ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<NetworkStatus>,
    /// The last changes made to the host, newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub changes: Vec<ChangeStatus>,
    /// Facts that could not be found out, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<Unknown>,
    /// Ready, VirtualizationReady, HostTuned, TenantNetworksReady, KubeletAligned, CredentialValid.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// Which agent reported, and from which boot.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct AgentStatus {
    /// Version of `berth-agent`.
    pub version: String,
    /// The kernel's `/proc/sys/kernel/random/boot_id`; changes with every boot.
    #[serde(rename = "bootID", skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
}

/// A NUMA node of the host.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Zone {
    /// The kernel's number of the node; numbers may have gaps.
    pub id: u32,
    /// Online CPUs of the zone; empty for a zone that has only memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<CpuSet>,
    /// Physical cores that have an online CPU in the zone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cores: Option<u32>,
    /// The package that all its CPUs are in, as the firmware numbers it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<u32>,
    /// Its CPUs by thread: the first threads of all cores, then the second threads. Siblings are at the same place of
    /// each set. Empty if the cores are not alike.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub threads: Vec<CpuSet>,
    /// Its CPUs by last-level cache: the CPUs of each set share one. Empty if one cache serves all CPUs of the zone, or
    /// if that is not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128))]
    pub caches: Vec<CpuSet>,
    /// Memory the kernel manages in the zone (`MemTotal`), huge pages included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Bytes>,
    /// Memory that the kubelet's Memory Manager keeps for the system (`reservedMemory`), huge pages not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved_memory: Option<Bytes>,
    /// Huge pages that the kubelet's Memory Manager keeps for the system (`reservedMemory`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub reserved_hugepages: Vec<ReservedHugepages>,
    /// Huge page pools, one per size the kernel supports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hugepages: Vec<HugepagePool>,
    /// CPUs the kubelet keeps for the system (`reservedSystemCPUs`).
    #[serde(rename = "reservedCPUs", skip_serializing_if = "Option::is_none")]
    pub reserved_cpus: Option<CpuSet>,
    /// CPUs the kubelet's static CPU manager may allocate exclusively, in use or not.
    #[serde(rename = "pinnableCPUs", skip_serializing_if = "Option::is_none")]
    pub pinnable_cpus: Option<CpuSet>,
    /// CPUs that are exclusively a container's now.
    #[serde(rename = "pinnedCPUs", skip_serializing_if = "Option::is_none")]
    pub pinned_cpus: Option<CpuSet>,
    /// Access cost to every zone, in the firmware's unit (10 is local).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub distances: Vec<ZoneDistance>,
}

/// Huge pages of one size that no pod gets.
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
    /// Pages beyond the persistent pool, released when freed (`surplus_hugepages`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub surplus: Option<u64>,
    /// Pages promised but not yet faulted in (`resv_hugepages`); known for the whole host only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved: Option<u64>,
}

/// What the kubelet has allocated to one pod.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Allocation {
    /// `metadata.uid` of the pod.
    #[serde(rename = "podUID")]
    pub pod_uid: String,
    /// Namespace of the pod, where known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Name of the pod, where known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// CPUs that are exclusively its containers'.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<CpuSet>,
    /// Zones its CPUs and memory come from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub zones: Vec<u32>,
    /// Huge pages guaranteed to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hugepages: Vec<AllocatedHugepages>,
    /// Memory the Memory Manager guarantees to it, huge pages excluded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Bytes>,
    /// Devices of device plugins, as the kubelet's PodResources API lists them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<AllocatedDevices>,
    /// The same by container, with the zones of each amount. Empty if no container has anything of a zone, if the pod has
    /// more containers than fit here, and in reports of agents that do not know this field: then only the sums are known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub containers: Vec<AllocatedContainer>,
}

/// What the kubelet has allocated to one container.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct AllocatedContainer {
    /// Name of the container; empty for what belongs to the pod as a whole.
    #[schemars(length(max = 63))]
    pub name: String,
    /// Its exclusive CPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<CpuSet>,
    /// Its memory blocks, as the Memory Manager's checkpoint has them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub memory: Vec<AllocatedMemory>,
    /// Its devices by zone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub devices: Vec<AllocatedZoneDevices>,
}

/// Memory of one kind that the Memory Manager has allocated from a set of zones.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct AllocatedMemory {
    /// Size of its huge pages; absent for memory that is not in huge pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_size: Option<PageSize>,
    /// Bytes. The block of an init container shrinks, down to 0, when later containers reuse its memory.
    pub size: Bytes,
    /// The set of zones that serves it as a group.
    #[schemars(length(max = 64))]
    pub zones: Vec<u32>,
}

/// Devices of one resource and zone that a container has.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct AllocatedZoneDevices {
    /// Name of the resource, as `intel.com/sriov_vf`.
    pub resource: String,
    /// Their zone; absent for devices without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<u32>,
    /// Number of devices.
    pub count: u32,
}

/// Devices of one resource and zone.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ZoneDevices {
    /// Name of the resource, as `intel.com/sriov_vf`.
    #[schemars(length(max = 317))]
    pub resource: String,
    /// Their zone; absent for devices without one, such as `/dev/kvm`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<u32>,
    /// Healthy devices, allocated or not.
    pub total: u32,
    /// Healthy devices that no container has.
    pub free: u32,
}

/// Devices of one resource that a pod has.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct AllocatedDevices {
    /// Name of the resource, as `devices.kubevirt.io/kvm`.
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

/// State of one host network. Healthy tenant networks are only counted, so the status stays small.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct NetworkStatus {
    /// `spec.networks[].name`.
    pub name: String,
    /// Tenant networks that are in place.
    pub ready: u32,
    /// Tenant networks that are being made.
    pub pending: u32,
    /// Tenant networks that could not be made.
    pub failed: u32,
    /// Those that are not ready, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub not_ready: Vec<TenantNetworkStatus>,
}

/// A tenant network that is not ready.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct TenantNetworkStatus {
    /// `spec.tenantNetworks[].name`.
    pub tenant: String,
    /// Its VLAN.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan: Option<VlanId>,
    /// Its VXLAN network identifier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vni: Option<u32>,
    /// Pending or Failed.
    pub state: TenantNetworkState,
    /// What stands in the way.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
}

/// How far a tenant network is.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum TenantNetworkState {
    /// In place and read back.
    Ready,
    /// Being made, or waiting for something.
    Pending,
    /// Could not be made.
    Failed,
}

/// What became of one change to the host.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ChangeStatus {
    /// The change in an operator's words: `hugepages 2Mi zone 1: 0 -> 1024`.
    #[schemars(length(max = 256))]
    pub what: String,
    /// What became of it.
    pub result: ChangeResult,
    /// Numbers, errno and meaning, or what blocks it.
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

/// What became of a change.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeResult {
    /// Done and read back.
    Done,
    /// Some of it; the message has both numbers.
    Partial,
    /// Not tried, as something in use stands in the way.
    Blocked,
    /// Tried and refused.
    Failed,
}

/// A fact that could not be found out.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub struct Unknown {
    /// Path of the field below `status`, for example `capabilities.kvm.apiVersion`.
    #[schemars(length(max = 256))]
    pub path: String,
    /// Why it is not known.
    pub reason: UnknownReason,
    /// What was tried, and what came back.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
}

/// Why a fact is not known.
#[derive(
    JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash,
)]
pub enum UnknownReason {
    /// Needs a running machine; a captured tree was read.
    CapturedTree,
    /// The container's device cgroup forbids the device.
    DeviceCgroup,
    /// The file is there, but may not be read or opened by this user.
    NoPermission,
    /// The kernel or the captured tree has no such file.
    NotFound,
    /// The file is there, but its content makes no sense.
    Malformed,
    /// Reading failed in another way.
    Unreadable,
    /// Another fact it depends on is unknown.
    DependsOnUnknown,
}
