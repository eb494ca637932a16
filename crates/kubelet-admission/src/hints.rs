//! Topology hints of the kubelet's managers, and the algorithm by which the Topology Manager merges them:
//! topologymanager/policy*.go.
//!
//! The kubelet iterates over every combination that has one hint for each resource, and selects the best combination by
//! a total order. Because the order of the iteration does not matter, this module computes the same result with
//! operations on sets of masks, without iterating over combinations.

use super::host::KubeletHost;
use super::kubelet::TopologyPolicy;
use super::refusal::Reason;
use super::zones::{MaskSet, ZoneMask, bit_indexes, narrowness_key};

/// Hints of a manager for one resource. A hint is a set of zones (a mask) that can together provide the resource.
#[derive(Clone, Copy, Debug)]
pub(super) enum Hints {
    /// The manager has no preference. In the kubelet: a hint with a nil affinity that is preferred.
    AnyZone,
    /// No set of zones can provide the resource. In the kubelet: a hint with a nil affinity that is not preferred.
    NoZone,
    /// The masks that can provide the resource, and the preferred masks among them.
    Masks(MaskSet, MaskSet),
}

impl Hints {
    /// Creates the hints for the masks in `possible`. If there is no mask, returns [`Hints::NoZone`], because the
    /// kubelet treats an empty list of hints in the same way.
    pub(super) fn from_masks(possible: MaskSet, is_preferred: impl Fn(ZoneMask) -> bool) -> Self {
        if possible.is_empty() {
            return Self::NoZone;
        }
        Self::Masks(possible, possible.filter(is_preferred))
    }
}

/// The merged hint. `zones` is `None` if the pod's containers need not be in specific zones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Affinity {
    pub(super) zones: Option<ZoneMask>,
    pub(super) is_preferred: bool,
}

/// Merges the hints of all resources and applies the Topology Manager's policy (`Merge` and `canAdmitPodResult`).
pub(super) fn merge_hints(host: &KubeletHost, hints: &[Hints]) -> Result<Affinity, Reason> {
    let policy = host.kubelet.topology_policy;
    let default = host.all_zones();
    let is_single = policy == TopologyPolicy::SingleNumaNode;
    if let Some(zones) = best_preferred_mask(host, hints, is_single)? {
        // With `single-numa-node`, the kubelet treats an affinity to all zones as no affinity, which matters on a host
        // with one zone (policy_single_numa_node.go).
        let zones = Some(zones).filter(|&zones| !is_single || zones != default);
        return Ok(Affinity { zones, is_preferred: true });
    }
    match policy {
        TopologyPolicy::None => Ok(Affinity::default()),
        TopologyPolicy::Restricted | TopologyPolicy::SingleNumaNode => {
            Err(Reason::TopologyAffinity)
        }
        TopologyPolicy::BestEffort => {
            let zones = best_non_preferred_mask(host, hints)?.unwrap_or(default);
            Ok(Affinity { zones: Some(zones), is_preferred: false })
        }
    }
}

/// Returns the best mask that results from merging only preferred hints, one of each resource; `None` if there is no
/// such mask.
fn best_preferred_mask(
    host: &KubeletHost,
    hints: &[Hints],
    is_single_numa_node: bool,
) -> Result<Option<ZoneMask>, Reason> {
    let mut merged: Option<MaskSet> = None;
    for hint in hints {
        match hint {
            Hints::AnyZone => {}
            Hints::NoZone => return Ok(None),
            Hints::Masks(_, preferred) => {
                let mut preferred = *preferred;
                if is_single_numa_node {
                    preferred = preferred.filter(|mask| mask.count_ones() == 1);
                }
                merged = Some(match merged {
                    None => preferred,
                    Some(others) if host.features.has_fixed_hint_merge => {
                        others.intersection(&preferred)
                    }
                    Some(others) => others.pairwise_intersections(&preferred),
                });
            }
        }
    }
    match merged {
        None => Ok(Some(host.all_zones())),
        Some(merged) => best_narrowest_mask(host, &merged.filter(|mask| mask != 0)),
    }
}

/// Returns the best mask that results from merging one hint of each resource, if not all of them can be preferred hints
/// (`HintMerger.compare`).
fn best_non_preferred_mask(
    host: &KubeletHost,
    hints: &[Hints],
) -> Result<Option<ZoneMask>, Reason> {
    let mut merged = MaskSet::default();
    merged.insert(host.all_zones());
    // Each resource needs a minimum number of zones. This is the maximum of these numbers over all resources
    // (`maxOfMinAffinityCounts`).
    let mut max_min_zones = 0;
    for hint in hints {
        if let Hints::Masks(possible, _) = hint {
            merged = merged.pairwise_intersections(possible);
            max_min_zones = max_min_zones.max(possible.narrowest().map_or(0, ZoneMask::count_ones));
        }
    }
    let merged = merged.filter(|mask| mask != 0);
    if !host.features.has_fixed_hint_merge {
        return Ok(merged.narrowest());
    }
    // Masks with exactly `max_min_zones` zones are best. Next are masks with fewer zones, beginning with the largest.
    // Last are masks with more zones, beginning with the smallest.
    let rank = |mask: ZoneMask| match mask.count_ones() {
        count if count <= max_min_zones => max_min_zones - count,
        count => count + 64,
    };
    let best = merged.iter().map(rank).min();
    best_narrowest_mask(host, &merged.filter(|mask| Some(rank(mask)) == best))
}

/// Returns the mask with the fewest zones. If several masks have equally few zones, returns the mask whose zones are
/// closest to each other with the option `prefer-closest-numa-nodes` (numa_info.go), and the lowest mask without this
/// option.
fn best_narrowest_mask(host: &KubeletHost, masks: &MaskSet) -> Result<Option<ZoneMask>, Reason> {
    let narrowest = masks.narrowest();
    let is_single = host.kubelet.topology_policy == TopologyPolicy::SingleNumaNode;
    let Some(first) =
        narrowest.filter(|_| host.kubelet.topology_options.prefers_closest_zones && !is_single)
    else {
        return Ok(narrowest);
    };
    let candidates = masks.filter(|mask| mask.count_ones() == first.count_ones());
    if candidates.iter().count() == 1 {
        return Ok(narrowest);
    }
    let mut best: Option<(f64, ZoneMask)> = None;
    for mask in candidates.iter() {
        let distance = average_distance(host, mask).ok_or(Reason::KubeletCrash(
            "with prefer-closest-numa-nodes, the kubelet uses a zone's number as an index of the list of distances: \
             index out of range",
        ))?;
        // The iteration is in ascending order, so the lowest of several masks with equal distances is selected.
        if best.is_none_or(|(min_distance, _)| distance < min_distance) {
            best = Some((distance, mask));
        }
    }
    Ok(best.map(|(_, mask)| mask))
}

/// Returns the average distance between the zones (`CalculateAverageFor`). The kubelet uses a zone's number as an index
/// of the list of distances, even if the zones' numbers have gaps. Returns `None` if the list is too short for this
/// index.
#[expect(
    clippy::cast_precision_loss,
    reason = "an f64 represents distances, which are below 256, exactly"
)]
fn average_distance(host: &KubeletHost, mask: ZoneMask) -> Option<f64> {
    let mut sum = 0.0;
    for from in bit_indexes(mask) {
        let row = &host.zones.get(from)?.distances;
        for to in bit_indexes(mask) {
            let column = usize::try_from(host.zone_id(to)).ok()?;
            sum += *row.get(column)? as f64;
        }
    }
    let count = f64::from(narrowness_key(mask).0);
    Some(sum / (count * count))
}
