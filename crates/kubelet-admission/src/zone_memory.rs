//! Computes the bytes of memory and huge pages that the kubelet may allocate in each NUMA zone.

use super::host::{HostError, KubeletHost, ZoneSpec};
use super::kubelet::MemoryPolicy;

impl KubeletHost {
    /// Sets the allocatable memory of each zone: its memory minus the reserved memory (`getDefaultMachineState` of
    /// memorymanager/policy_static.go). Returns an error if more is reserved than the zone has, where the kubelet's
    /// unsigned numbers would wrap around.
    pub(super) fn reserve_memory(&mut self, order: &[&ZoneSpec]) -> Result<(), HostError> {
        if self.kubelet.memory_policy == MemoryPolicy::None {
            self.set_unreserved_memory(order);
            return Ok(());
        }
        let reserved = &self.kubelet.reserved_memory;
        for entry in reserved {
            if !order.iter().any(|zone| zone.id == entry.zone) {
                return Err(HostError::UnknownReservedZone(entry.zone));
            }
        }
        for (zone, spec) in self.zones.iter_mut().zip(order) {
            // If there are several entries for the same zone, the last one is effective (`convertReserved`).
            let entries = || reserved.iter().rev().filter(|entry| entry.zone == spec.id);
            let exceeds =
                |what: String| HostError::ReservedMemoryTooLarge { zone: spec.id, kind: what };
            let mut unreserved = spec.memory;
            for (kind, page) in self.page_sizes.iter().enumerate() {
                let pool = spec.hugepages.get(page).copied().unwrap_or(0);
                let reserved_pages =
                    entries().find_map(|entry| entry.hugepages.get(page)).copied().unwrap_or(0);
                zone.allocatable[kind + 1] = pool
                    .checked_sub(reserved_pages)
                    .ok_or_else(|| exceeds(page.resource_name()))?;
                unreserved =
                    unreserved.checked_sub(pool).ok_or_else(|| exceeds("memory".to_owned()))?;
            }
            let reserved_memory =
                entries().find(|entry| entry.memory > 0).map_or(0, |entry| entry.memory);
            zone.allocatable[0] = unreserved
                .checked_sub(reserved_memory)
                .ok_or_else(|| exceeds("memory".to_owned()))?;
        }
        Ok(())
    }

    /// Sets the allocatable memory of each zone to all of its memory. With the policy `None` of the Memory Manager, the
    /// kubelet neither accounts for memory by zone nor checks the reserved amounts.
    fn set_unreserved_memory(&mut self, order: &[&ZoneSpec]) {
        for (zone, spec) in self.zones.iter_mut().zip(order) {
            let mut unreserved = spec.memory;
            for (kind, page) in self.page_sizes.iter().enumerate() {
                let pool = spec.hugepages.get(page).copied().unwrap_or(0);
                zone.allocatable[kind + 1] = pool;
                unreserved = unreserved.saturating_sub(pool);
            }
            zone.allocatable[0] = unreserved;
        }
    }
}
