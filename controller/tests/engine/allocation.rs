//! What an agent would report of what a kubelet has handed out.

use berth_api::Bytes;
use berth_api::infra_node::{AllocatedHugepages, Allocation};
use berth_controller::admission::{MemoryKind, State};

/// As an agent would report a pod that the kubelet has taken.
pub(crate) fn allocation(state: &State, uid: &str) -> Option<Allocation> {
    let given = state.admission(uid)?;
    let host = state.host();
    let mut all = Allocation { pod_uid: uid.to_owned(), ..Allocation::default() };
    let cpus = given.cpus(host);
    let mut zones: Vec<u32> = Vec::new();
    let mut memory = 0;
    for placement in given.placements(host) {
        for block in placement.memory {
            zones.extend(&block.zones);
            match block.kind {
                MemoryKind::Memory => memory += block.bytes,
                MemoryKind::HugePages(size) => {
                    let count = block.bytes / size.bytes();
                    all.hugepages.push(AllocatedHugepages { size, count });
                }
            }
        }
    }
    zones.sort_unstable();
    zones.dedup();
    all.zones = zones;
    all.memory = (memory > 0).then_some(Bytes(memory));
    all.cpus = (!cpus.is_empty()).then_some(cpus);
    (all.cpus.is_some() || !all.zones.is_empty()).then_some(all)
}
