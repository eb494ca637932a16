//! The static policy of the Memory Manager: memorymanager/policy_static.go.
//!
//! If an allocation needs the memory of several zones, these zones form a group, which exists until nothing is
//! allocated on them. A zone of a group provides memory only for allocations on the whole group. A zone on which memory
//! was allocated alone cannot join a group.

use std::fmt;

use berth_api::PageSize;

use super::hints::{Affinity, Hints};
use super::host::{KubeletHost, MEMORY_KIND_COUNT, MemoryAmounts};
use super::refusal::{MemoryReason, Reason};
use super::zones::{
    MAX_HINT_ZONES, MaskSet, ZoneMask, bit_indexes, mask_of_first_zones, narrowness_key,
};

/// A kind of memory that the Memory Manager accounts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MemoryKind {
    /// Memory that is not in huge pages.
    Memory,
    HugePages(PageSize),
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory"),
            Self::HugePages(size) => write!(f, "hugepages-{size}"),
        }
    }
}

/// The Memory Manager's data about a zone (`NUMANodeState`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ZoneMemory {
    /// Number of memory blocks that are allocated on the zone.
    pub(super) assignments: u32,
    /// Zones of the group to which the zone belongs, including the zone itself. A zone without a group is its own
    /// group.
    pub(super) group: ZoneMask,
    pub(super) free: MemoryAmounts,
    pub(super) reserved: MemoryAmounts,
}

/// The Memory Manager's data about all zones. The Memory Manager works with at most [`MAX_HINT_ZONES`] zones.
pub(super) type ZoneMemories = [ZoneMemory; MAX_HINT_ZONES];

/// Memory of one kind that is allocated to a container on a set of zones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) kind: u8,
    pub(super) zones: ZoneMask,
    pub(super) size: u64,
}

/// Memory of finished init containers, by the zones on which it was allocated. Later containers of the pod reuse it if
/// their memory is allocated on the same zones.
#[derive(Clone, Debug, Default)]
pub(super) struct ReusableMemory(Vec<(ZoneMask, MemoryAmounts)>);

impl ReusableMemory {
    fn amounts_on(&self, zones: ZoneMask) -> MemoryAmounts {
        let found = self.0.iter().find(|(known, _)| *known == zones);
        found.map_or_else(MemoryAmounts::default, |&(_, amounts)| amounts)
    }

    /// Updates the reusable memory after an allocation (`updatePodReusableMemory`). If `is_init` is true, the blocks of
    /// an init container become reusable, as the maximum of all init containers. Otherwise subtracts the memory that
    /// another container has reused.
    pub(super) fn update(&mut self, is_init: bool, blocks: &[Block]) {
        for block in blocks {
            let known = self.0.iter().position(|(zones, _)| *zones == block.zones);
            let index = match known {
                Some(index) => index,
                None if is_init => {
                    self.0.push((block.zones, MemoryAmounts::default()));
                    self.0.len() - 1
                }
                None => continue,
            };
            if let Some(amount) = self
                .0
                .get_mut(index)
                .and_then(|(_, amounts)| amounts.get_mut(usize::from(block.kind)))
            {
                *amount = if is_init {
                    block.size.max(*amount)
                } else {
                    amount.saturating_sub(block.size)
                };
            }
        }
    }
}

/// Returns the data about the zones of a host without pods (`getDefaultMachineState`).
pub(super) fn empty_zones(host: &KubeletHost) -> ZoneMemories {
    let mut zones = ZoneMemories::default();
    for (index, (zone, known)) in zones.iter_mut().zip(&host.zones).enumerate() {
        zone.group = 1 << index;
        zone.free = known.allocatable;
    }
    zones
}

/// Returns the topology hints of the Memory Manager (`GetTopologyHints`), which are the same for every requested kind
/// of memory. If no mask is possible, the kubelet returns an empty map, which the Topology Manager treats as no
/// preference, so that only the later allocation of memory fails.
pub(super) fn generate_hints(
    host: &KubeletHost,
    zones: &ZoneMemories,
    requested: &MemoryAmounts,
    reusable: &ReusableMemory,
) -> Hints {
    let (possible, min_zones) = calculate_hints(host, zones, requested, reusable);
    match Hints::from_masks(possible, |mask| mask.count_ones() == min_zones) {
        Hints::NoZone => Hints::AnyZone,
        hints => hints,
    }
}

/// Returns the masks that can provide the requested memory, and the minimum number of zones that would be sufficient on
/// an empty host (`calculateHints`).
fn calculate_hints(
    host: &KubeletHost,
    zones: &ZoneMemories,
    requested: &MemoryAmounts,
    reusable: &ReusableMemory,
) -> (MaskSet, u32) {
    let count = host.zones.len().min(MAX_HINT_ZONES);
    let mut min_zones = u32::try_from(count).unwrap_or(u32::MAX);
    let mut possible = MaskSet::default();
    if requested.iter().all(|&wanted| wanted == 0) {
        return (possible, min_zones);
    }
    for mask in 1..=mask_of_first_zones(count) {
        let has_enough = |amounts: &dyn Fn(usize) -> MemoryAmounts, extra: &MemoryAmounts| {
            (0..MEMORY_KIND_COUNT).all(|kind| {
                requested[kind] == 0
                    || bit_indexes(mask)
                        .map(|index| amounts(index)[kind])
                        .fold(extra[kind], u64::saturating_add)
                        >= requested[kind]
            })
        };
        let allocatable = |index: usize| {
            host.zones.get(index).map_or([0; MEMORY_KIND_COUNT], |zone| zone.allocatable)
        };
        if !has_enough(&allocatable, &[0; MEMORY_KIND_COUNT]) {
            continue;
        }
        min_zones = min_zones.min(mask.count_ones());
        let is_allocatable = match mask.count_ones() {
            1 => bit_indexes(mask).all(|index| zones[index].group.count_ones() <= 1),
            _ => is_usable_group(zones, mask),
        };
        if is_allocatable && has_enough(&|index| zones[index].free, &reusable.amounts_on(mask)) {
            possible.insert(mask);
        }
    }
    (possible, min_zones)
}

/// Returns true if the zones of the mask can form a group: nothing is allocated on a zone of the mask, except to this
/// same group.
fn is_usable_group(zones: &ZoneMemories, mask: ZoneMask) -> bool {
    bit_indexes(mask).all(|index| {
        let zone = &zones[index];
        zone.assignments == 0 || (zone.group.count_ones() > 1 && zone.group == mask)
    })
}

/// Returns the best hint (`findBestHint`). Preferred hints are better than other hints. Otherwise, hints with fewer
/// zones are better than hints with more zones.
fn best_hint(possible: &MaskSet, min_zones: u32) -> Option<Affinity> {
    let mask = possible
        .iter()
        .min_by_key(|&mask| (mask.count_ones() != min_zones, narrowness_key(mask)))?;
    Some(Affinity { zones: Some(mask), is_preferred: mask.count_ones() == min_zones })
}

/// Selects the zones of a container's memory and allocates the memory on them (`Allocate`). Memory that is reused from
/// init containers is not allocated again.
pub(super) fn allocate(
    host: &KubeletHost,
    zones: &mut ZoneMemories,
    affinity: Affinity,
    requested: &MemoryAmounts,
    reusable: &ReusableMemory,
) -> Result<Vec<Block>, Reason> {
    let fail = |reason| Err(Reason::Memory(reason));
    let mut chosen = affinity;
    if chosen.zones.is_none() {
        let (possible, min_zones) = calculate_hints(host, zones, requested, reusable);
        let Some(default) = best_hint(&possible, min_zones) else {
            return fail(MemoryReason::NoDefaultHint);
        };
        if !default.is_preferred && affinity.is_preferred {
            return fail(MemoryReason::DefaultHintNotPreferred);
        }
        chosen = default;
    }
    let mut mask = chosen.zones.unwrap_or(0);
    let enough = (0..MEMORY_KIND_COUNT).all(|kind| {
        bit_indexes(mask).map(|index| zones[index].free[kind]).fold(0, u64::saturating_add)
            >= requested[kind]
    });
    if !enough {
        let (possible, min_zones) = calculate_hints(host, zones, requested, reusable);
        let wider = possible.filter(|wider| wider & mask == mask);
        let Some(extended) = best_hint(&wider, min_zones) else {
            return fail(MemoryReason::NoExtendedHint);
        };
        if !extended.is_preferred && chosen.is_preferred {
            return fail(MemoryReason::ExtendedHintNotPreferred);
        }
        mask = extended.zones.unwrap_or(0);
    }
    // The kubelet accepts a single zone even if the zone belongs to a group (`isAffinityViolatingNUMAAllocations`).
    // With the policy best-effort, this breaks up the group, and the kubelet later releases memory on the wrong zone.
    if mask.count_ones() != 1 && !is_usable_group(zones, mask) {
        return fail(MemoryReason::AllocationViolation);
    }
    let mut blocks = Vec::with_capacity(2);
    let reused = reusable.amounts_on(mask);
    for (kind, &size) in (0u8..).zip(requested).filter(|&(_, &size)| size > 0) {
        blocks.push(Block { kind, zones: mask, size });
        allocate_in_zones(zones, mask, kind, size.saturating_sub(reused[usize::from(kind)]));
    }
    Ok(blocks)
}

/// Allocates as much memory as possible on the zone of the mask with the lowest number, and the rest on the next zones
/// (`updateMachineState`).
pub(super) fn allocate_in_zones(zones: &mut ZoneMemories, mask: ZoneMask, kind: u8, mut size: u64) {
    let kind = usize::from(kind);
    for index in bit_indexes(mask) {
        let zone = &mut zones[index];
        zone.assignments = zone.assignments.saturating_add(1);
        zone.group = mask;
        let part = size.min(zone.free[kind]);
        zone.reserved[kind] = zone.reserved[kind].saturating_add(part);
        zone.free[kind] -= part;
        size -= part;
    }
}

/// Releases the memory of each block (`releaseMemory`): as much as is allocated on the block's zone with the lowest
/// number, and the rest on the next zones. As in the kubelet, this may not be the zone from which the memory was
/// allocated.
pub(super) fn release(zones: &mut ZoneMemories, blocks: &[Block]) {
    for block in blocks {
        let kind = usize::from(block.kind);
        let mut size = block.size;
        for index in bit_indexes(block.zones) {
            let zone = &mut zones[index];
            zone.assignments = zone.assignments.saturating_sub(1);
            if zone.assignments == 0 {
                zone.group = 1 << index;
            }
            let part = size.min(zone.reserved[kind]);
            zone.free[kind] = zone.free[kind].saturating_add(part);
            zone.reserved[kind] -= part;
            size -= part;
        }
    }
}
