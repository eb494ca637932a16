//! The static policy of the kubelet's CPU Manager: cpumanager/policy_static.go.

use super::cpu_bits::CpuBits;
use super::hints::Hints;
use super::host::KubeletHost;
use super::refusal::Reason;
use super::zones::{MAX_HINT_ZONES, MaskSet, ZoneMask, bit_indexes, mask_of_first_zones};
use super::{distribute, take_legacy, take_packed};

/// CPUs that the kubelet allocates to a container.
pub(super) struct CpuAllocation {
    pub(super) cpus: CpuBits,
    pub(super) is_deterministic: bool,
    /// True if some of the CPUs were not free. `take_sockets` and `take_cores` explain how this happens.
    pub(super) includes_used_cpus: bool,
}

/// Returns the topology hints of the CPU Manager (`generateCPUTopologyHints`). As in the kubelet, reserved CPUs count
/// when the minimum number of zones is computed.
pub(super) fn generate_hints(
    host: &KubeletHost,
    shared: &CpuBits,
    reusable: &CpuBits,
    requested: u64,
) -> Hints {
    let available = shared.difference(&host.reserved_cpus);
    let mut totals = [0u64; MAX_HINT_ZONES];
    let mut free = [0u64; MAX_HINT_ZONES];
    let mut required_zones = 0;
    for (index, zone) in host.zones.iter().enumerate().take(MAX_HINT_ZONES) {
        totals[index] = u64::from(zone.cpus.1 - zone.cpus.0);
        free[index] = u64::from(available.count_range(zone.cpus.0, zone.cpus.1));
        let reused = u64::from(reusable.count_range(zone.cpus.0, zone.cpus.1));
        if reused > 0 {
            // If a zone has reusable CPUs of an init container, the kubelet accepts only masks that contain this zone.
            required_zones |= 1 << index;
            free[index] += reused;
        }
    }
    let mut min_zones = host.cpu_zones.count_ones();
    let mut possible = MaskSet::default();
    for mask in 1..=mask_of_first_zones(host.zones.len().min(MAX_HINT_ZONES)) {
        if mask & !host.cpu_zones != 0 {
            continue;
        }
        let sum = |counts: &[u64; MAX_HINT_ZONES]| {
            bit_indexes(mask).map(|index| counts[index]).sum::<u64>()
        };
        if mask.count_ones() < min_zones && sum(&totals) >= requested {
            min_zones = mask.count_ones();
        }
        if required_zones & !mask == 0 && sum(&free) >= requested {
            possible.insert(mask);
        }
    }
    Hints::from_masks(possible, |mask| {
        mask.count_ones() == min_zones || is_socket_aligned(host, mask, min_zones)
    })
}

/// Returns true if the zones in the mask are in as few sockets as `min_zones` zones need (`isHintSocketAligned`).
/// Returns false without the option `align-by-socket`.
fn is_socket_aligned(host: &KubeletHost, mask: ZoneMask, min_zones: u32) -> bool {
    if !host.kubelet.cpu_options.align_by_socket {
        return false;
    }
    let zones = host.cpu_zones.count_ones() as usize;
    let per_socket = zones.checked_div(host.sockets.len()).unwrap_or(0);
    per_socket > 0 && host.sockets_in(mask) == (min_zones as usize).div_ceil(per_socket)
}

/// Allocates `requested` CPUs (`Allocate`): checks the rule of `full-pcpus-only`, then takes CPUs in the zones of
/// `affinity`, and then the missing CPUs in any zone.
pub(super) fn allocate(
    host: &KubeletHost,
    shared: &CpuBits,
    affinity: Option<ZoneMask>,
    reusable: &CpuBits,
    requested: u64,
) -> Result<CpuAllocation, Reason> {
    check_whole_cores(host, shared, requested)?;
    let allocatable = shared.difference(&host.reserved_cpus).union(reusable);
    let wanted = i64::try_from(requested).unwrap_or(i64::MAX);
    let mut taken = CpuAllocation {
        cpus: CpuBits::default(),
        is_deterministic: true,
        includes_used_cpus: false,
    };
    if let Some(zones) = affinity {
        let aligned_cpus = aligned_cpus(host, zones, &allocatable);
        let aligned_wanted = wanted.min(i64::from(aligned_cpus.count()));
        taken = take_by_topology(host, &aligned_cpus, aligned_wanted)?;
    }
    let missing = wanted - i64::from(taken.cpus.count());
    if missing > 0 {
        let rest = take_by_topology(host, &allocatable.difference(&taken.cpus), missing)?;
        taken.cpus = taken.cpus.union(&rest.cpus);
        taken.is_deterministic &= rest.is_deterministic;
    }
    taken.includes_used_cpus = !taken.cpus.difference(&allocatable).is_empty();
    Ok(taken)
}

/// Checks the rule of `full-pcpus-only` (`enforceSMTAlignment`). As in the kubelet, CPUs of init containers do not
/// count as free, although the container may reuse them.
fn check_whole_cores(host: &KubeletHost, shared: &CpuBits, wanted: u64) -> Result<(), Reason> {
    if !host.kubelet.cpu_options.full_pcpus_only {
        return Ok(());
    }
    let per_core = host.cpus_per_core;
    if !wanted.is_multiple_of(u64::from(per_core)) {
        return Err(Reason::NotMultipleOfCore { wanted, per_core });
    }
    let free = shared.difference(&host.reserved_core_cpus).count();
    if wanted > u64::from(free) {
        return Err(Reason::InsufficientFreeCores { wanted, per_core, free });
    }
    Ok(())
}

/// Returns the allocatable CPUs in the zones (`getAlignedCPUs`). With `align-by-socket`, also returns the other
/// allocatable CPUs in the sockets that contain these zones.
fn aligned_cpus(host: &KubeletHost, zones: ZoneMask, allocatable: &CpuBits) -> CpuBits {
    let mut cpus = CpuBits::default();
    if host.kubelet.cpu_options.align_by_socket {
        for socket in host.sockets.iter().filter(|socket| socket.zones & zones != 0) {
            cpus = cpus.union(&socket.cpus);
        }
    } else {
        for zone in bit_indexes(zones).filter_map(|index| host.zones.get(index)) {
            cpus = cpus.union(&CpuBits::from_range(zone.cpus.0, zone.cpus.1));
        }
    }
    cpus.intersection(allocatable)
}

/// Takes `requested` CPUs from the available CPUs, with the algorithm that the kubelet's version and options select
/// (`takeByTopology`).
fn take_by_topology(
    host: &KubeletHost,
    available: &CpuBits,
    requested: i64,
) -> Result<CpuAllocation, Reason> {
    if !host.features.has_zone_aware_order {
        let (cpus, is_deterministic) = take_legacy::take_by_topology(host, available, requested)?;
        return Ok(CpuAllocation { cpus, is_deterministic, includes_used_cpus: false });
    }
    let options = host.kubelet.cpu_options;
    let cpus = if options.distribute_across_numa {
        let group = if options.full_pcpus_only { i64::from(host.cpus_per_core) } else { 1 };
        distribute::distribute_cpus(host, available, requested, group)?
    } else {
        take_packed::take_packed(host, available, requested, options.prefer_uncore_cache)?
    };
    Ok(CpuAllocation { cpus, is_deterministic: true, includes_used_cpus: false })
}
