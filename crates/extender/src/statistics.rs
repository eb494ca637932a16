//! Statistics of the extender: number of pods by stage, free resources, and fragmentation of the free resources.

use super::extender::Extender;
use super::reservation::Stage;

/// Number of pods in each stage of a reservation, and number of refused pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageCounts {
    /// Pods for which `filter` has returned a host, and whose binding was not sent yet.
    pub reserved: usize,
    /// Pods whose binding was sent, and whose binding's outcome is not known yet.
    pub binding: usize,
    /// Pods on a host, including terminating pods whose resources the kubelet has released.
    pub bound: usize,
    /// First-consumer pods that have ended and whose reservation is kept for the VM's launcher pod.
    pub kept: usize,
    /// Pods that have ended and whose resources the kubelet may not have released yet.
    pub leaving: usize,
    /// Pods that no host accepted.
    pub refused: usize,
}

/// Free resources of all hosts, and the part of these resources that no VM with pinned CPUs and huge pages can use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FreeResourceTotals {
    /// Free CPUs, which the kubelet can allocate exclusively.
    pub free_cpus: u64,
    /// Free CPUs in NUMA zones whose huge pages are all allocated. Zones without huge pages are not counted.
    pub stranded_cpus: u64,
    /// Free huge pages of all sizes, in bytes.
    pub free_pages: u64,
    /// Free huge pages, in bytes, in NUMA zones whose CPUs are all allocated exclusively.
    pub stranded_pages: u64,
    /// For each entry of [`VM_SIZES`], the number of NUMA zones with at least that many free CPUs.
    pub zones_by_vm_size: [u64; VM_SIZES.len()],
}

/// Numbers of CPUs that VMs commonly have.
pub const VM_SIZES: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];

impl Extender {
    /// Returns the number of pods in each stage.
    #[must_use]
    pub fn stage_counts(&self) -> StageCounts {
        let waiting = self.queue.refused_pods.len();
        let mut counts = StageCounts { refused: waiting, ..StageCounts::default() };
        let mut unbound = 0;
        for (_, reservation) in self.reservations.records.unbound_reservations() {
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

    /// Returns the sums of the free resources over all hosts with a usable report.
    #[must_use]
    pub fn free_resources(&self) -> FreeResourceTotals {
        let mut totals = FreeResourceTotals::default();
        let engine = &self.reservations.engine;
        let usable = engine.hosts().filter(|(host, _)| !self.availability.is_unusable(*host));
        for (host, _) in usable {
            for zone in
                engine.kubelet_state(host).into_iter().flat_map(|state| state.free_by_zone())
            {
                let (pages, total_pages) = zone.free_and_total_pages_of_all_sizes();
                let cpus = u64::from(zone.cpus);
                totals.free_cpus += cpus;
                totals.free_pages = totals.free_pages.saturating_add(pages);
                if total_pages > 0 && pages == 0 {
                    totals.stranded_cpus += cpus;
                }
                if zone.total_cpus > 0 && zone.cpus == 0 {
                    totals.stranded_pages = totals.stranded_pages.saturating_add(pages);
                }
                for (count, size) in totals.zones_by_vm_size.iter_mut().zip(VM_SIZES) {
                    *count += u64::from(zone.cpus >= size);
                }
            }
        }
        totals
    }
}
