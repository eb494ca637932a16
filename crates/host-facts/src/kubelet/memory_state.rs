//! The file `memory_manager_state`, with the memory and huge pages that the kubelet's Memory Manager has allocated.
//!
//! Format: `pkg/kubelet/cm/memorymanager/state/{checkpoint,state}.go`. Sizes are in bytes.

use std::collections::BTreeMap;

use berth_api::PageSize;
use serde::{Deserialize, Serialize};

use super::go_json::null_is_empty;

/// The checkpoint of the Memory Manager. Fields that later versions of Kubernetes add are ignored.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryManagerState {
    /// Memory Manager policy of the kubelet that wrote the checkpoint.
    pub policy_name: String,
    /// Data about the NUMA zones, by zone number.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub machine_state: BTreeMap<u32, NodeState>,
    /// Allocated memory blocks, by pod UID and container name.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub entries: BTreeMap<String, BTreeMap<String, Vec<AllocatedBlock>>>,
}

/// The kubelet's data about the memory of one NUMA zone.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeState {
    /// Number of memory blocks that are allocated from this NUMA zone.
    #[serde(default)]
    pub number_of_assignments: u64,
    /// Amounts of the zone's resources by resource name, such as `memory` and `hugepages-2Mi`.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub memory_map: BTreeMap<String, MemoryTable>,
    /// Numbers of the zones that the kubelet combines with this zone for allocations that do not fit in one zone.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub cells: Vec<u32>,
}

/// Amounts of one resource in one zone, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryTable {
    /// Bytes of the resource when the kubelet first started with this policy.
    #[serde(default)]
    pub total: u64,
    /// Bytes reserved for the system.
    #[serde(default)]
    pub system_reserved: u64,
    /// Bytes that can be allocated to containers.
    #[serde(default)]
    pub allocatable: u64,
    /// Bytes that are allocated to containers.
    #[serde(default)]
    pub reserved: u64,
    /// Bytes that are not allocated.
    #[serde(default)]
    pub free: u64,
}

/// Amount of one resource that is allocated to a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AllocatedBlock {
    /// Numbers of the zones from which the amount is allocated.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub numa_affinity: Vec<u32>,
    /// Name of the resource, such as `memory` or `hugepages-2Mi`.
    #[serde(rename = "type")]
    pub resource: String,
    /// Size in bytes.
    pub size: u64,
}

impl MemoryManagerState {
    /// Returns all allocated memory blocks, each with the UID of its pod.
    pub fn blocks(&self) -> impl Iterator<Item = (&str, &AllocatedBlock)> {
        self.entries.iter().flat_map(|(pod, containers)| {
            containers.values().flatten().map(move |block| (pod.as_str(), block))
        })
    }
}

/// Returns the page size in a resource name such as `hugepages-2Mi`; `None` for `memory`.
#[must_use]
pub fn parse_page_size(resource: &str) -> Option<PageSize> {
    resource.strip_prefix("hugepages-")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_checkpoint_is_parsed() {
        let text = r#"{"policyName":"Static","machineState":{"0":{"numberOfAssignments":1,"memoryMap":{
            "hugepages-2Mi":{"total":67108864,"systemReserved":0,"allocatable":67108864,"reserved":33554432,
            "free":33554432},"memory":{"total":2096684,"systemReserved":0,"allocatable":1,"reserved":0,"free":1}},
            "cells":[0]}},"entries":{"uid-1":{"compute":[{"numaAffinity":[0],"type":"hugepages-2Mi",
            "size":33554432}]}},"checksum":3}"#;
        let state: MemoryManagerState = serde_json::from_str(text).unwrap();
        let (pod, block) = state.blocks().next().unwrap();
        assert_eq!((pod, block.size), ("uid-1", 32 << 20));
        assert_eq!(parse_page_size(&block.resource), Some(PageSize::MIB_2));
        assert_eq!(state.machine_state[&0].memory_map["memory"].total, 2_096_684);
        assert_eq!(parse_page_size("memory"), None);
    }
}
