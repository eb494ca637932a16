//! What the kubelet has handed out, by pod, from both managers' checkpoints.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::infra_node::{AllocatedHugepages, Allocation};
use berth_api::{Bytes, CpuSet, PageSize};

use crate::observe::HostFacts;
use crate::observe::kubelet::memory_state::page_size;

/// One entry per pod, sorted by its UID. Checkpoints know pods by UID alone.
pub(super) fn allocations(facts: &HostFacts) -> Vec<Allocation> {
    let mut pods: BTreeMap<&str, Pod> = BTreeMap::new();
    if let Some(state) = &facts.kubelet.cpu_state {
        for (uid, cpus) in state.by_pod() {
            let pod = pods.entry(uid).or_default();
            let zone = |cpu: u32| facts.topology.cpus.get(&cpu).and_then(|cpu| cpu.zone);
            pod.zones.extend(cpus.iter().filter_map(zone));
            pod.cpus = cpus;
        }
    }
    for (uid, block) in facts.kubelet.memory_state.iter().flat_map(|state| state.blocks()) {
        let pod = pods.entry(uid).or_default();
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
    pods.into_iter().map(|(uid, pod)| pod.allocation(uid)).collect()
}

#[derive(Default)]
struct Pod {
    cpus: CpuSet,
    zones: BTreeSet<u32>,
    hugepages: BTreeMap<PageSize, u64>,
    memory: u64,
}

impl Pod {
    fn allocation(self, uid: &str) -> Allocation {
        let pages = |(size, count)| AllocatedHugepages { size, count };
        Allocation {
            pod_uid: uid.to_owned(),
            cpus: Some(self.cpus).filter(|cpus| !cpus.is_empty()),
            zones: self.zones.into_iter().collect(),
            hugepages: self.hugepages.into_iter().map(pages).collect(),
            memory: Some(Bytes(self.memory)).filter(|memory| memory.0 > 0),
            ..Allocation::default()
        }
    }
}
