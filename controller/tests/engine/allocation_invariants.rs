//! Checks the allocations of a host: no resource is allocated twice, and the free resources are correct.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::CpuSet;
use berth_kubelet_admission::{HostState, MemoryKind};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

pub(crate) type FreeResources = (CpuSet, Vec<(u32, Vec<(MemoryKind, u64)>)>);

/// Returns the free CPUs, and the free memory of each zone.
pub(crate) fn free_resources(state: &HostState) -> FreeResources {
    let memory = state.memory_by_zone().into_iter().map(|zone| (zone.zone, zone.free));
    (state.free_cpus(), memory.collect())
}

/// Returns the sum of the free memory of all zones, because the memory of a group may be counted in any of its
/// zones.
pub(crate) fn total_free_memory(state: &HostState) -> BTreeMap<MemoryKind, u64> {
    let mut all = BTreeMap::new();
    for (kind, bytes) in state.memory_by_zone().into_iter().flat_map(|zone| zone.free) {
        *all.entry(kind).or_insert(0) += bytes;
    }
    all
}

/// Asserts that no CPU and no page belongs to two pods, and that no allocated CPU or page counts as free.
///
/// `are_zones_known` is false if the report contains only the sum of an allocation in several zones. The free memory is
/// then not checked, because it is unknown which zone the memory belongs to.
pub(crate) fn check_allocations(
    state: &HostState,
    empty_state: &HostState,
    uids: BTreeSet<&str>,
    are_zones_known: bool,
) -> TestCaseResult {
    let host = state.host();
    prop_assert_eq!(state.pod_count(), uids.len());
    let mut cpus = CpuSet::new();
    let mut bytes: BTreeMap<MemoryKind, u64> = BTreeMap::new();
    let mut groups: BTreeSet<Vec<u32>> = BTreeSet::new();
    for uid in uids {
        let Some(admission) = state.admission(uid) else {
            return Err(TestCaseError::fail(format!("{uid} has no allocation")));
        };
        let pod_cpus = admission.cpus(host);
        prop_assert!(
            !pod_cpus.intersects(&cpus),
            "CPUs {} of {} are also allocated to another pod",
            pod_cpus,
            uid
        );
        cpus = cpus.union(&pod_cpus);
        for block in admission.placements(host).into_iter().flat_map(|one| one.memory) {
            *bytes.entry(block.kind).or_default() += block.bytes;
            groups.insert(block.zones);
        }
    }
    prop_assert!(!cpus.intersects(&state.free_cpus()));
    prop_assert!(cpus.is_subset(&empty_state.free_cpus()));
    // With best-effort, a kubelet may allocate memory of a single zone to a block, although the zone is in a group of
    // zones whose memory another block uses. The blocks do not show how much memory of the group each zone provides
    // (`memorymanager` allocates and releases greedily), so the sums are not compared.
    let shares_zone =
        |one: &Vec<u32>| groups.iter().any(|other| other != one && intersects(one, other));
    if !are_zones_known || groups.iter().any(shares_zone) {
        return Ok(());
    }
    let (free, all) = (total_free_memory(state), total_free_memory(empty_state));
    for (kind, bytes) in bytes {
        prop_assert!(
            bytes + free[&kind] <= all[&kind],
            "{bytes} allocated bytes of {kind}, with {free:?} free, exceed {all:?}"
        );
    }
    Ok(())
}

fn intersects(one: &[u32], other: &[u32]) -> bool {
    one.iter().any(|zone| other.contains(zone))
}
