//! Reports of an agent about the allocations of a kubelet.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::infra_node::{
    AllocatedContainer, AllocatedDevices, AllocatedHugepages, AllocatedMemory,
    AllocatedZoneDevices, Allocation,
};
use berth_api::{Bytes, PageSize};
use berth_kubelet_admission::{HostState, MemoryKind, Placement};

/// Returns the allocation of an admitted pod as an agent reports it: by container, and as sums.
pub(crate) fn reported_allocation(state: &HostState, uid: &str) -> Option<Allocation> {
    let admission = state.admission(uid)?;
    let host = state.host();
    let placements = admission.placements(host);
    let blocks = || placements.iter().flat_map(|one| &one.memory);
    let zones: BTreeSet<u32> = blocks().flat_map(|block| block.zones.iter().copied()).collect();
    let mut hugepages: BTreeMap<PageSize, u64> = BTreeMap::new();
    let mut memory = 0;
    for block in blocks() {
        match block.kind {
            MemoryKind::Memory => memory += block.bytes,
            MemoryKind::HugePages(size) => *hugepages.entry(size).or_default() += block.bytes,
        }
    }
    let mut devices: BTreeMap<&str, u32> = BTreeMap::new();
    for (name, _, count) in placements.iter().flat_map(|one| &one.devices) {
        *devices.entry(name).or_default() += count;
    }
    let cpus = admission.cpus(host);
    let containers = (0..).zip(&placements).map(|(number, one)| reported_container(number, one));
    let all = Allocation {
        pod_uid: uid.to_owned(),
        zones: zones.into_iter().collect(),
        memory: (memory > 0).then_some(Bytes(memory)),
        cpus: (!cpus.is_empty()).then_some(cpus),
        hugepages: hugepages
            .into_iter()
            .map(|(size, bytes)| AllocatedHugepages { size, count: bytes / size.bytes() })
            .collect(),
        devices: devices
            .into_iter()
            .map(|(resource, count)| AllocatedDevices { resource: resource.to_owned(), count })
            .collect(),
        containers: containers.flatten().collect(),
        ..Allocation::default()
    };
    (!all.containers.is_empty()).then_some(all)
}

fn reported_container(number: usize, placement: &Placement) -> Option<AllocatedContainer> {
    let memory = placement.memory.iter().map(|block| AllocatedMemory {
        page_size: match block.kind {
            MemoryKind::Memory => None,
            MemoryKind::HugePages(size) => Some(size),
        },
        size: Bytes(block.bytes),
        zones: block.zones.clone(),
    });
    let devices = placement.devices.iter().map(|(resource, zone, count)| AllocatedZoneDevices {
        resource: resource.clone(),
        zone: *zone,
        count: *count,
    });
    let container = AllocatedContainer {
        name: format!("container-{number}"),
        cpus: (!placement.cpus.is_empty()).then(|| placement.cpus.clone()),
        memory: memory.collect(),
        devices: devices.collect(),
    };
    let has_any =
        container.cpus.is_some() || !container.memory.is_empty() || !container.devices.is_empty();
    has_any.then_some(container)
}
