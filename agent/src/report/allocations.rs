//! What the kubelet has handed out, by pod: from both managers' checkpoints, its own list, and control groups.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::infra_node::{AllocatedDevices, AllocatedHugepages, Allocation};
use berth_api::{Bytes, CpuSet, PageSize};

use crate::observe::HostFacts;
use crate::observe::kubelet::memory_state::page_size;
use crate::observe::kubelet::podresources::{self, PodResources};

/// One entry per pod that has something, sorted by its UID.
///
/// The checkpoints count most: they have UIDs, and only what is exclusive. The kubelet's list adds devices, and
/// what a checkpoint that cannot be read does not tell; control groups add huge pages of pods that no memory
/// manager looks after.
pub(super) fn allocations(facts: &HostFacts) -> Vec<Allocation> {
    let mut pods: BTreeMap<String, Pod> = BTreeMap::new();
    if let Some(state) = &facts.kubelet.cpu_state {
        for (uid, cpus) in state.by_pod() {
            pods.entry(uid.to_owned()).or_default().pin(facts, cpus);
        }
    }
    for (uid, block) in facts.kubelet.memory_state.iter().flat_map(|state| state.blocks()) {
        let pod = pods.entry(uid.to_owned()).or_default();
        pod.zones.extend(&block.numa_affinity);
        match page_size(&block.resource) {
            Some(size) => {
                let pages = pod.hugepages.entry(size).or_default();
                *pages = pages.saturating_add(block.size / size.bytes());
            }
            None if block.resource == "memory" => {
                pod.memory = pod.memory.saturating_add(block.size);
            }
            None => {}
        }
    }
    for (uid, listed) in listed(facts) {
        let pod = pods.entry(uid.to_owned()).or_default();
        if facts.kubelet.cpu_state.is_none() {
            let cpus = listed
                .containers
                .iter()
                .filter_map(|container| podresources::cpus(&container.cpu_ids));
            pod.pin(facts, cpus.fold(CpuSet::new(), |all, cpus| all.union(&cpus)));
        }
        pod.take_devices(listed);
    }
    for (uid, pages) in &facts.handed_out.hugepages {
        if pages.values().any(|count| *count > 0) {
            let pod = pods.entry(uid.clone()).or_default();
            for (size, count) in pages {
                pod.hugepages.entry(*size).or_insert(*count);
            }
        }
    }
    let told = |(uid, pod): (String, Pod)| pod.allocation(facts, uid);
    pods.into_iter().map(told).filter(has_something).collect()
}

/// Pods of the kubelet's list by UID. Those that ended have no group any more, though the list may name them.
fn listed(facts: &HostFacts) -> Vec<(&str, &PodResources)> {
    let by_name: BTreeMap<(&str, &str), &str> = facts
        .handed_out
        .names
        .iter()
        // Of pods that have had the same name, as those of a StatefulSet, the one that runs.
        .filter(|(uid, _)| facts.handed_out.hugepages.contains_key(*uid))
        .map(|(uid, (namespace, name))| ((namespace.as_str(), name.as_str()), uid.as_str()))
        .collect();
    let pods = facts.handed_out.listed.iter().flat_map(|listed| &listed.pods);
    pods.filter_map(|pod| Some((*by_name.get(&(pod.namespace.as_str(), pod.name.as_str()))?, pod)))
        .collect()
}

const fn has_something(allocation: &Allocation) -> bool {
    allocation.cpus.is_some()
        || !allocation.hugepages.is_empty()
        || !allocation.devices.is_empty()
        || allocation.memory.is_some()
}

#[derive(Default)]
struct Pod {
    cpus: CpuSet,
    zones: BTreeSet<u32>,
    hugepages: BTreeMap<PageSize, u64>,
    memory: u64,
    devices: BTreeMap<String, u32>,
}

impl Pod {
    fn pin(&mut self, facts: &HostFacts, cpus: CpuSet) {
        let zone = |cpu: u32| facts.topology.cpus.get(&cpu).and_then(|cpu| cpu.zone);
        self.zones.extend(cpus.iter().filter_map(zone));
        self.cpus = cpus;
    }

    fn take_devices(&mut self, listed: &PodResources) {
        for devices in listed.containers.iter().flat_map(|container| &container.devices) {
            let count = self.devices.entry(devices.resource_name.clone()).or_default();
            *count = count.saturating_add(crate::observe::count(devices.device_ids.len()));
            let zones = devices.topology.iter().flat_map(|topology| &topology.nodes);
            self.zones.extend(zones.filter_map(|zone| u32::try_from(zone.id).ok()));
        }
    }

    fn allocation(self, facts: &HostFacts, uid: String) -> Allocation {
        let pages = |(size, count)| AllocatedHugepages { size, count };
        let devices = |(resource, count)| AllocatedDevices { resource, count };
        let name = facts.handed_out.names.get(&uid);
        Allocation {
            namespace: name.map(|(namespace, _)| namespace.clone()),
            pod: name.map(|(_, name)| name.clone()),
            pod_uid: uid,
            cpus: Some(self.cpus).filter(|cpus| !cpus.is_empty()),
            zones: self.zones.into_iter().collect(),
            hugepages: self
                .hugepages
                .into_iter()
                .filter(|(_, count)| *count > 0)
                .map(pages)
                .collect(),
            memory: Some(Bytes(self.memory)).filter(|memory| memory.0 > 0),
            devices: self.devices.into_iter().map(devices).collect(),
        }
    }
}
