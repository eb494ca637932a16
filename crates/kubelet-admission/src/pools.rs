//! Computes the memory and huge pages that the kubelet may allocate in each zone.

use super::host::{HostFault, KubeletHost, ZoneSpec};
use super::kubelet::MemoryPolicy;

impl KubeletHost {
    /// Subtracts the reserved memory from each zone (`getDefaultMachineState` of memorymanager/policy_static.go, in
    /// which negative numbers wrap around).
    pub(super) fn reserve_memory(&mut self, order: &[&ZoneSpec]) -> Result<(), HostFault> {
        if self.kubelet.memory_policy == MemoryPolicy::None {
            self.without_memory_manager(order);
            return Ok(());
        }
        let reserved = &self.kubelet.reserved_memory;
        for entry in reserved {
            if !order.iter().any(|zone| zone.id == entry.zone) {
                return Err(HostFault::ReservedZone(entry.zone));
            }
        }
        for (zone, spec) in self.zones.iter_mut().zip(order) {
            // A later entry for the same zone overrides an earlier entry (convertReserved).
            let mine = || reserved.iter().rev().filter(|entry| entry.zone == spec.id);
            let fault = |what: String| HostFault::ReservedMemory { zone: spec.id, what };
            let mut left = spec.memory;
            for (kind, page) in self.pages.iter().enumerate() {
                let pool = spec.hugepages.get(page).copied().unwrap_or(0);
                let kept = mine().find_map(|entry| entry.hugepages.get(page)).copied().unwrap_or(0);
                zone.allocatable[kind + 1] =
                    pool.checked_sub(kept).ok_or_else(|| fault(page.resource()))?;
                left = left.checked_sub(pool).ok_or_else(|| fault("memory".to_owned()))?;
            }
            let kept = mine().find(|entry| entry.memory > 0).map_or(0, |entry| entry.memory);
            zone.allocatable[0] =
                left.checked_sub(kept).ok_or_else(|| fault("memory".to_owned()))?;
        }
        Ok(())
    }

    /// Sets the memory of each zone without subtracting reservations. Without a Memory Manager, the kubelet neither
    /// accounts for memory by zone nor checks the reserved amounts.
    fn without_memory_manager(&mut self, order: &[&ZoneSpec]) {
        for (zone, spec) in self.zones.iter_mut().zip(order) {
            let mut left = spec.memory;
            for (kind, page) in self.pages.iter().enumerate() {
                let pool = spec.hugepages.get(page).copied().unwrap_or(0);
                zone.allocatable[kind + 1] = pool;
                left = left.saturating_sub(pool);
            }
            zone.allocatable[0] = left;
        }
    }
}
