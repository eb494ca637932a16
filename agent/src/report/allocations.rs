//! Resources that the kubelet has allocated, by pod and container: from the checkpoints of the CPU Manager and the
//! Memory Manager, the PodResources API, and control groups.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::infra_node::{
    AllocatedContainer, AllocatedDevices, AllocatedHugepages, AllocatedMemory,
    AllocatedZoneDevices, Allocation,
};
use berth_api::{Bytes, CpuSet, PageSize};

use berth_host_facts::HostFacts;
use berth_host_facts::kubelet::memory_state::{AllocatedBlock, parse_page_size};
use berth_host_facts::kubelet::podresources::{self, ContainerResources, PodResources};

/// Maximum number of containers of a pod in the CRD's schema. A pod that exceeds a limit of the schema is reported
/// without its containers.
const MAX_CONTAINERS: usize = 64;
/// Maximum number of memory blocks of a container in the CRD's schema.
const MAX_BLOCKS: usize = 16;
/// Maximum number of device entries of a container in the CRD's schema.
const MAX_DEVICES: usize = 64;

/// Returns one entry for each pod with exclusive resources, sorted by UID.
///
/// The checkpoints have priority, because they contain UIDs and only exclusive resources. The PodResources API adds
/// devices, and is used instead of a checkpoint that cannot be read. Control groups add huge pages of pods that the
/// Memory Manager does not count.
pub(super) fn pod_allocations(facts: &HostFacts) -> Vec<Allocation> {
    let mut pods: BTreeMap<String, PodAllocations> = BTreeMap::new();
    if let Some(state) = &facts.kubelet.cpu_state {
        for (uid, containers) in &state.entries {
            for (name, cpus) in containers {
                pods.entry(uid.clone()).or_default().container(name).cpus = cpus.clone();
            }
        }
        for (uid, entry) in &state.pod_entries {
            pods.entry(uid.clone()).or_default().container("").cpus = entry.cpu_set.clone();
        }
    }
    if let Some(state) = &facts.kubelet.memory_state {
        for (uid, containers) in &state.entries {
            for (name, blocks) in containers {
                let container = pods.entry(uid.clone()).or_default().container(name);
                container.memory.extend(blocks.iter().filter_map(memory_from_checkpoint));
            }
        }
    }
    for (uid, listed) in listed_pods(facts) {
        let pod = pods.entry(uid.to_owned()).or_default();
        for container in &listed.containers {
            pod.add_listed_container(facts, container);
        }
    }
    for (uid, pages) in &facts.pod_allocations.hugepage_limits {
        if pages.values().any(|count| *count > 0) {
            pods.entry(uid.clone()).or_default().hugepages.clone_from(pages);
        }
    }
    let allocation = |(uid, pod): (String, PodAllocations)| pod.into_allocation(facts, uid);
    pods.into_iter().map(allocation).filter(has_resources).collect()
}

/// Returns the pods that the PodResources API lists, by UID. Pods that have ended are omitted: the API may still
/// list them, but they have no control group.
fn listed_pods(facts: &HostFacts) -> Vec<(&str, &PodResources)> {
    let by_name: BTreeMap<(&str, &str), &str> = facts
        .pod_allocations
        .pod_names
        .iter()
        // If several pods have had the same name, such as those of a StatefulSet, only the pod with a control group
        // is running.
        .filter(|(uid, _)| facts.pod_allocations.hugepage_limits.contains_key(*uid))
        .map(|(uid, (namespace, name))| ((namespace.as_str(), name.as_str()), uid.as_str()))
        .collect();
    let pods = facts.pod_allocations.pod_resources.iter().flat_map(|listed| &listed.pods);
    pods.filter_map(|pod| Some((*by_name.get(&(pod.namespace.as_str(), pod.name.as_str()))?, pod)))
        .collect()
}

/// Returns true if the pod has a control group; false if it has none, and the kubelet will release its allocations;
/// `None` if this is unknown. A starting kubelet admits the pods of its first list before its managers remove the
/// allocations of ended pods (`syncLoopIteration` of pkg/kubelet/kubelet.go calls `AddSource` last), so such an
/// allocation must not be regarded as free until these pods are admitted.
fn has_control_group(facts: &HostFacts, uid: &str) -> Option<bool> {
    if facts.pod_allocations.hugepage_limits.contains_key(uid) {
        return Some(true);
    }
    let is_known =
        facts.kubelet.has_admitted_first_pods && facts.pod_allocations.are_control_groups_visible;
    is_known.then_some(false)
}

const fn has_resources(allocation: &Allocation) -> bool {
    allocation.cpus.is_some()
        || !allocation.hugepages.is_empty()
        || !allocation.devices.is_empty()
        || allocation.memory.is_some()
        || !allocation.containers.is_empty()
}

/// Converts a memory block of the Memory Manager's checkpoint; `None` for a resource that is neither memory nor
/// huge pages.
fn memory_from_checkpoint(block: &AllocatedBlock) -> Option<AllocatedMemory> {
    allocated_memory(&block.resource, block.size, block.numa_affinity.iter().copied().collect())
}

fn allocated_memory(resource: &str, size: u64, zones: BTreeSet<u32>) -> Option<AllocatedMemory> {
    let page_size = parse_page_size(resource);
    (page_size.is_some() || resource == "memory").then(|| AllocatedMemory {
        page_size,
        size: Bytes(size),
        zones: zones.into_iter().collect(),
    })
}

#[derive(Default)]
struct PodAllocations {
    containers: BTreeMap<String, ContainerAllocations>,
    /// Huge pages of the pod, from its control group.
    hugepages: BTreeMap<PageSize, u64>,
    /// Zones of all devices of the pod.
    zones: BTreeSet<u32>,
}

#[derive(Default)]
struct ContainerAllocations {
    cpus: CpuSet,
    memory: Vec<AllocatedMemory>,
    devices: BTreeMap<(String, Option<u32>), u32>,
}

impl PodAllocations {
    fn container(&mut self, name: &str) -> &mut ContainerAllocations {
        self.containers.entry(name.to_owned()).or_default()
    }

    fn add_listed_container(&mut self, facts: &HostFacts, listed: &ContainerResources) {
        let container = self.containers.entry(listed.name.clone()).or_default();
        if facts.kubelet.cpu_state.is_none() {
            container.cpus = podresources::to_cpu_set(&listed.cpu_ids).unwrap_or_default();
        }
        if facts.kubelet.memory_state.is_none() {
            let blocks = listed.memory.iter().filter_map(|block| {
                let nodes = block.topology.iter().flat_map(|topology| &topology.nodes);
                let zones = nodes.filter_map(|node| u32::try_from(node.id).ok()).collect();
                allocated_memory(&block.memory_type, block.size, zones)
            });
            container.memory.extend(blocks);
        }
        for devices in &listed.devices {
            let zones = podresources::device_zones(devices);
            let zone = match zones.as_slice() {
                [zone] => Some(*zone),
                _ => None,
            };
            let count = container.devices.entry((devices.resource_name.clone(), zone)).or_default();
            *count = count.saturating_add(berth_host_facts::kernel_files::saturating_u32(
                devices.device_ids.len(),
            ));
            self.zones.extend(zones);
        }
    }

    fn into_allocation(mut self, facts: &HostFacts, uid: String) -> Allocation {
        self.containers.retain(|_, container| !container.is_empty());
        let containers = || self.containers.values();
        let blocks = || containers().flat_map(|container| &container.memory);
        let cpus = containers().fold(CpuSet::new(), |all, container| all.union(&container.cpus));
        let zone = |cpu: u32| facts.topology.cpus.get(&cpu).and_then(|cpu| cpu.zone);
        let mut zones = self.zones.clone();
        zones.extend(cpus.iter().filter_map(zone));
        zones.extend(blocks().flat_map(|block| &block.zones));
        let mut hugepages: BTreeMap<PageSize, u64> = BTreeMap::new();
        let mut memory = 0_u64;
        for block in blocks() {
            match block.page_size {
                Some(size) => {
                    let pages = hugepages.entry(size).or_default();
                    *pages = pages.saturating_add(block.size.0 / size.bytes());
                }
                None => memory = memory.saturating_add(block.size.0),
            }
        }
        for (size, count) in &self.hugepages {
            hugepages.entry(*size).or_insert(*count);
        }
        let mut devices: BTreeMap<&str, u32> = BTreeMap::new();
        for ((resource, _), count) in containers().flat_map(|container| &container.devices) {
            let sum = devices.entry(resource).or_default();
            *sum = sum.saturating_add(*count);
        }
        let pages = |(size, count)| AllocatedHugepages { size, count };
        let name = facts.pod_allocations.pod_names.get(&uid);
        Allocation {
            namespace: name.map(|(namespace, _)| namespace.clone()),
            pod: name.map(|(_, name)| name.clone()),
            has_control_group: has_control_group(facts, &uid),
            pod_uid: uid,
            cpus: Some(cpus).filter(|cpus| !cpus.is_empty()),
            zones: zones.into_iter().collect(),
            hugepages: hugepages.into_iter().filter(|(_, count)| *count > 0).map(pages).collect(),
            memory: Some(Bytes(memory)).filter(|memory| memory.0 > 0),
            devices: devices
                .into_iter()
                .map(|(resource, count)| AllocatedDevices { resource: resource.to_owned(), count })
                .collect(),
            containers: self.into_containers(),
        }
    }

    fn into_containers(self) -> Vec<AllocatedContainer> {
        let fits = |container: &ContainerAllocations| {
            container.memory.len() <= MAX_BLOCKS && container.devices.len() <= MAX_DEVICES
        };
        if self.containers.len() > MAX_CONTAINERS || !self.containers.values().all(fits) {
            return Vec::new();
        }
        let all = self.containers.into_iter().map(|(name, container)| AllocatedContainer {
            name,
            cpus: Some(container.cpus).filter(|cpus| !cpus.is_empty()),
            memory: container.memory,
            devices: container
                .devices
                .into_iter()
                .map(|((resource, zone), count)| AllocatedZoneDevices { resource, zone, count })
                .collect(),
        });
        all.collect()
    }
}

impl ContainerAllocations {
    fn is_empty(&self) -> bool {
        self.cpus.is_empty() && self.memory.is_empty() && self.devices.is_empty()
    }
}
