//! Statistics: reservations by stage, free resources, and fragmentation of the free resources.

use super::extender::Extender;
use super::reservation::Stage;

/// Number of pods in each stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageCounts {
    /// `filter` has returned a host.
    pub reserved: usize,
    /// The binding was sent.
    pub binding: usize,
    /// The pod is on a host.
    pub bound: usize,
    /// The first-consumer pod has ended, and the reservation is kept for the VM's launcher pod.
    pub kept: usize,
    /// The pod has ended, and its kubelet may not have processed the end yet.
    pub leaving: usize,
    /// No host accepted the pod.
    pub waiting: usize,
}

/// Free resources of all hosts, and the part of these resources that no VM can use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FreeResources {
    /// CPUs that can be pinned now.
    pub free_cpus: u64,
    /// Free CPUs in zones that have huge pages but no free huge pages.
    pub stranded_cpus: u64,
    /// Bytes of free huge pages.
    pub free_pages: u64,
    /// Bytes of free huge pages in zones without CPUs that can be pinned.
    pub stranded_pages: u64,
    /// Zones with at least [`VM_SIZES`] free CPUs.
    pub zones: [u64; VM_SIZES.len()],
}

/// Common numbers of CPUs of VMs.
pub const VM_SIZES: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];

impl Extender {
    /// Counts pods by stage.
    #[must_use]
    pub fn stage_counts(&self) -> StageCounts {
        let waiting = self.queue.refused.len();
        let mut counts = StageCounts { waiting, ..StageCounts::default() };
        let mut unbound = 0;
        for (_, reservation) in self.reservations.records.unbound() {
            unbound += 1;
            *match reservation.stage {
                Stage::Reserved { .. } => &mut counts.reserved,
                Stage::Binding { .. } => &mut counts.binding,
                Stage::Bound { .. } | Stage::Released => &mut counts.bound,
                Stage::Kept { .. } => &mut counts.kept,
                Stage::Leaving { .. } => &mut counts.leaving,
            } += 1;
        }
        counts.bound += self.reservations.records.len().saturating_sub(unbound);
        counts
    }

    /// Sums up the free resources of all hosts with a usable report.
    #[must_use]
    pub fn free_resources(&self) -> FreeResources {
        let mut all = FreeResources::default();
        let engine = &self.reservations.engine;
        let usable = engine.hosts().filter(|(host, _)| !self.availability.is_unusable(*host));
        for (host, _) in usable {
            for zone in engine.state(host).into_iter().flat_map(|state| state.free_by_zone()) {
                let (pages, of_pages) = zone.all_pages();
                let cpus = u64::from(zone.cpus);
                all.free_cpus += cpus;
                all.free_pages = all.free_pages.saturating_add(pages);
                if of_pages > 0 && pages == 0 {
                    all.stranded_cpus += cpus;
                }
                if zone.all_cpus > 0 && zone.cpus == 0 {
                    all.stranded_pages = all.stranded_pages.saturating_add(pages);
                }
                for (count, size) in all.zones.iter_mut().zip(VM_SIZES) {
                    *count += u64::from(zone.cpus >= size);
                }
            }
        }
        all
    }
}
