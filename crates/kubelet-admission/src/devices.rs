//! The Device Manager: devicemanager/topology_hints.go and `devicesToAllocate` of devicemanager/manager.go.
//!
//! Devices of a resource in the same zone are interchangeable, so this module only counts devices. If several zones are
//! equally suitable, the kubelet lets the device plugin choose (`GetPreferredAllocation`), or chooses randomly if the
//! plugin has no preference. This module takes the devices of the zone with the lowest number, as the kubelet's plugin
//! stub does.

use std::collections::BTreeMap;

use super::hints::Hints;
use super::host::{HostDevicePool, KubeletHost};
use super::refusal::Reason;
use super::zones::{MAX_HINT_ZONES, MaskSet, ZoneMask, bit_indexes, mask_of_first_zones};

/// Numbers of devices by pool and zone, as one list. For each pool, the list has one number for each zone and then the
/// number of devices without a zone.
pub(super) type DeviceCounts = Vec<u32>;

/// The devices of one pool in one zone that are allocated to a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeviceGrant {
    pub(super) pool: u16,
    /// Index of the zone. For devices without a zone, one more than the index of the host's last zone.
    pub(super) zone: u8,
    pub(super) count: u32,
    /// Number of the devices in `count` that were allocated to an init container of the same pod before.
    pub(super) reused: u32,
}

pub(super) fn empty_counts(host: &KubeletHost) -> DeviceCounts {
    vec![0; host.device_pools.len() * (host.zones.len() + 1)]
}

/// Returns a function that returns the number of the pool's devices in a zone, from `counts`. Its argument is the index
/// of the zone.
fn pool_counts(host: &KubeletHost, counts: &[u32], pool: usize) -> impl Fn(usize) -> u64 {
    let start = pool * (host.zones.len() + 1);
    move |zone| u64::from(counts.get(start + zone).copied().unwrap_or(0))
}

/// Returns the pools from which the container requests devices: the pool's index, the pool, and the number of requested
/// devices. The limits are read, because the API server requires that requests of these resources equal the limits.
pub(super) fn requested_pools<'h>(
    host: &'h KubeletHost,
    limits: &BTreeMap<String, u64>,
) -> impl Iterator<Item = (usize, &'h HostDevicePool, u64)> {
    limits.iter().filter(|&(_, &count)| count > 0).filter_map(|(name, &count)| {
        let index = host.device_pools.binary_search_by(|pool| pool.name.as_str().cmp(name)).ok()?;
        host.device_pools.get(index).map(|pool| (index, pool, count))
    })
}

/// Returns the topology hints of the Device Manager for one resource (`generateDeviceTopologyHints`). Only zones that
/// have devices of the resource are considered.
pub(super) fn generate_hints(
    host: &KubeletHost,
    used_counts: &[u32],
    reusable: &[u32],
    pool_index: usize,
    pool: &HostDevicePool,
    requested: u64,
) -> Hints {
    if pool.zones == 0 {
        return Hints::AnyZone;
    }
    let zones = host.zones.len();
    let used = pool_counts(host, used_counts, pool_index);
    let reusable = pool_counts(host, reusable, pool_index);
    let total = |zone: usize| u64::from(pool.counts.get(zone).copied().unwrap_or(0));
    let free = |zone: usize| total(zone).saturating_sub(used(zone));
    if (0..=zones).map(|zone| free(zone).saturating_add(reusable(zone))).sum::<u64>() < requested {
        return Hints::NoZone;
    }
    let required_zones =
        (0..zones).filter(|&zone| reusable(zone) > 0).fold(0, |mask, zone| mask | 1 << zone);
    let mut min_zones = pool.zones.count_ones();
    let mut possible = MaskSet::default();
    for mask in 1..=mask_of_first_zones(zones.min(MAX_HINT_ZONES)) {
        if mask & !pool.zones != 0 {
            continue;
        }
        if mask.count_ones() < min_zones && bit_indexes(mask).map(total).sum::<u64>() >= requested {
            min_zones = mask.count_ones();
        }
        let available = |zone: usize| free(zone).saturating_add(reusable(zone));
        if required_zones & !mask == 0 && bit_indexes(mask).map(available).sum::<u64>() >= requested
        {
            possible.insert(mask);
        }
    }
    Hints::from_masks(possible, |mask| mask.count_ones() == min_zones)
}

/// Allocates devices of one pool: first the reusable devices of the pod's init containers, then devices in the zones of
/// `affinity`, then other devices. The returned bool is false if the kubelet's choice among the reusable devices is
/// random, because it depends on the iteration order of a Go map.
pub(super) fn allocate(
    host: &KubeletHost,
    used: &mut [u32],
    reusable: &[u32],
    affinity: Option<ZoneMask>,
    (pool_index, pool, wanted): (usize, &HostDevicePool, u64),
) -> Result<(Vec<DeviceGrant>, bool), Reason> {
    if pool.total == 0 {
        return Err(Reason::NoHealthyDevices(pool.name.clone()));
    }
    let zones = host.zones.len();
    let mut grants: Vec<DeviceGrant> = Vec::new();
    let mut needed = wanted;
    let mut allocate_from = |zone: usize, available: u64, is_reused: bool, needed: &mut u64| {
        let part = u32::try_from(available.min(*needed)).unwrap_or(u32::MAX);
        if part == 0 {
            return 0;
        }
        *needed -= u64::from(part);
        let zone = u8::try_from(zone).unwrap_or(u8::MAX);
        let reused = if is_reused { part } else { 0 };
        match grants.iter_mut().find(|grant| grant.zone == zone) {
            Some(grant) => {
                grant.count = grant.count.saturating_add(part);
                grant.reused = grant.reused.saturating_add(reused);
            }
            None => {
                let pool = u16::try_from(pool_index).unwrap_or(u16::MAX);
                grants.push(DeviceGrant { pool, zone, count: part, reused });
            }
        }
        part
    };
    let reusable_count = pool_counts(host, reusable, pool_index);
    let zones_with_reusable = (0..=zones).filter(|&zone| reusable_count(zone) > 0).count();
    let is_deterministic =
        zones_with_reusable <= 1 || (0..=zones).map(&reusable_count).sum::<u64>() <= needed;
    for zone in 0..=zones {
        allocate_from(zone, reusable_count(zone), true, &mut needed);
    }
    let start = pool_index * (zones + 1);
    let free = |used: &[u32], zone: usize| {
        let total = pool.counts.get(zone).copied().unwrap_or(0);
        u64::from(total.saturating_sub(used.get(start + zone).copied().unwrap_or(0)))
    };
    let available: u64 = (0..=zones).map(|zone| free(used, zone)).sum();
    if available < needed {
        let name = pool.name.clone();
        return Err(Reason::InsufficientDevices { name, wanted: needed, free: available });
    }
    // The kubelet ignores the affinity for resources whose devices all have no zone (`filterByAffinity`).
    let affinity_mask = affinity.filter(|_| pool.zones != 0).unwrap_or(0);
    let is_in_affinity = |zone: usize| zone < zones && affinity_mask & (1 << zone) != 0;
    let order = (0..=zones)
        .filter(|&zone| is_in_affinity(zone))
        .chain((0..=zones).filter(|&zone| !is_in_affinity(zone)));
    for zone in order {
        let part = allocate_from(zone, free(used, zone), false, &mut needed);
        if let Some(count) = used.get_mut(start + zone) {
            *count = count.saturating_add(part);
        }
    }
    grants.sort_by_key(|grant| grant.zone);
    Ok((grants, is_deterministic))
}

/// Releases the devices in the grants. Devices that were reused from an init container are omitted, because they are
/// released with the init container's grant.
pub(super) fn release(host: &KubeletHost, used: &mut [u32], grants: &[DeviceGrant]) {
    for grant in grants {
        if let Some(count) = used.get_mut(count_index(host, grant)) {
            *count = count.saturating_sub(grant.count.saturating_sub(grant.reused));
        }
    }
}

/// Updates the devices that later containers of the pod may reuse. If `is_init` is true, adds the devices that the
/// grants allocate to an init container. Otherwise removes the devices that another container has reused.
pub(super) fn update_reusable(
    host: &KubeletHost,
    reusable: &mut DeviceCounts,
    is_init: bool,
    grants: &[DeviceGrant],
) {
    if reusable.is_empty() && is_init && !grants.is_empty() {
        *reusable = empty_counts(host);
    }
    for grant in grants {
        if let Some(count) = reusable.get_mut(count_index(host, grant)) {
            *count = match is_init {
                true => count.saturating_add(grant.count.saturating_sub(grant.reused)),
                false => count.saturating_sub(grant.reused),
            };
        }
    }
}

fn count_index(host: &KubeletHost, grant: &DeviceGrant) -> usize {
    usize::from(grant.pool) * (host.zones.len() + 1) + usize::from(grant.zone)
}

/// Counts the devices of a grant as used.
pub(super) fn add_used(host: &KubeletHost, used: &mut [u32], grant: &DeviceGrant) {
    if let Some(count) = used.get_mut(count_index(host, grant)) {
        *count = count.saturating_add(grant.count);
    }
}
