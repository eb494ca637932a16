//! NUMA zones of a host, and their huge pages.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Bytes, CpuSet, PageSize};

/// A NUMA node of the host.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Zone {
    /// Number of the NUMA node in the kernel. Numbers may have gaps.
    pub id: u32,
    /// Online CPUs of the zone; empty for a zone that has only memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<CpuSet>,
    /// Number of physical cores that have an online CPU in the zone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cores: Option<u32>,
    /// Number of the physical package that contains all CPUs of the zone, according to the firmware.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<u32>,
    /// CPUs of the zone by thread: the first set contains the first thread of each core, the second set the second
    /// thread. The threads of a core have the same position in each set. Empty if the cores do not all have the same
    /// number of threads.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub threads: Vec<CpuSet>,
    /// CPUs of the zone by last-level cache: the CPUs of each set share one cache. Empty if all CPUs of the zone share
    /// one cache, or if the caches are unknown.
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
    /// CPUs that the kubelet's static CPU manager may allocate exclusively, including the CPUs that are already
    /// allocated.
    #[serde(rename = "pinnableCPUs", skip_serializing_if = "Option::is_none")]
    pub pinnable_cpus: Option<CpuSet>,
    /// CPUs that are currently allocated exclusively to a container.
    #[serde(rename = "pinnedCPUs", skip_serializing_if = "Option::is_none")]
    pub pinned_cpus: Option<CpuSet>,
    /// Relative memory access cost from this zone to every zone, according to the firmware.
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

/// Relative memory access cost from one zone to another (ACPI SLIT).
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ZoneDistance {
    /// Zone whose memory is accessed.
    pub zone: u32,
    /// Relative cost: 10 for local memory, 255 for unreachable memory.
    pub distance: u32,
}

/// A pool of huge pages of one size.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct HugepagePool {
    /// Page size.
    pub size: PageSize,
    /// Number of pages in the pool, including surplus pages (`nr_hugepages`).
    pub total: u64,
    /// Number of pages that are not in use (`free_hugepages`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free: Option<u64>,
    /// Number of pages beyond the persistent pool (`surplus_hugepages`). The kernel removes such a page from the pool
    /// when a program frees it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub surplus: Option<u64>,
    /// Number of pages that are reserved, but not yet faulted in (`resv_hugepages`). Known only for the whole host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved: Option<u64>,
}
