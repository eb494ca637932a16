//! Free resources of a host's NUMA zones as plain numbers. Callers use them to compare many hosts, before they predict
//! the admission of a pod on one host.

use berth_api::PageSize;

use super::host::{KubeletHost, MemoryAmounts};
use super::kubelet::CpuPolicy;
use super::state::HostState;

/// Free and total resources of a NUMA zone.
#[derive(Clone, Copy, Debug)]
pub struct FreeZone<'a> {
    host: &'a KubeletHost,
    /// Number of CPUs that the kubelet can currently allocate exclusively.
    pub cpus: u32,
    /// Number of CPUs that the kubelet can allocate exclusively on the host without pods.
    pub total_cpus: u32,
    free: MemoryAmounts,
    total: MemoryAmounts,
}

impl FreeZone<'_> {
    /// Returns the free and the total bytes of memory, without huge pages.
    #[must_use]
    pub const fn free_and_total_memory(&self) -> (u64, u64) {
        (self.free[0], self.total[0])
    }

    /// Returns the free and the total bytes of huge pages of one size.
    #[must_use]
    pub fn free_and_total_pages(&self, size: PageSize) -> (u64, u64) {
        let kind = self.host.page_sizes.iter().position(|page| *page == size);
        kind.map_or((0, 0), |kind| (self.free[kind + 1], self.total[kind + 1]))
    }
}

impl FreeZone<'_> {
    /// Returns the free and the total bytes of huge pages of all sizes.
    #[must_use]
    pub fn free_and_total_pages_of_all_sizes(&self) -> (u64, u64) {
        let sum = |amounts: &MemoryAmounts| {
            amounts.iter().skip(1).fold(0_u64, |a, b| a.saturating_add(*b))
        };
        (sum(&self.free), sum(&self.total))
    }
}

impl KubeletHost {
    /// Returns the kernel's numbers of the zones, in ascending order.
    pub fn zone_numbers(&self) -> impl Iterator<Item = u32> + '_ {
        self.zones.iter().map(|zone| zone.id)
    }
}

impl HostState {
    /// Returns the free resources of each zone, in the order of [`KubeletHost::zone_numbers`]. Without the policy
    /// `Static` of the Memory Manager, the kubelet does not account for memory by zone, so all memory counts as free.
    pub fn free_by_zone(&self) -> impl Iterator<Item = FreeZone<'_>> {
        let host = self.host();
        let has_static_cpu_policy = host.kubelet.cpu_policy == CpuPolicy::Static;
        let free_cpus = self.shared_cpus.difference(&host.reserved_cpus);
        let all_cpus = host.all_cpus.difference(&host.reserved_cpus);
        host.zones.iter().enumerate().map(move |(index, zone)| {
            let count = |bits: &super::cpu_bits::CpuBits| {
                if has_static_cpu_policy { bits.count_range(zone.cpus.0, zone.cpus.1) } else { 0 }
            };
            FreeZone {
                host,
                cpus: count(&free_cpus),
                total_cpus: count(&all_cpus),
                free: self.memory.get(index).map_or(zone.allocatable, |memory| memory.free),
                total: zone.allocatable,
            }
        })
    }
}
