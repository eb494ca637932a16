//! Score of a host as one number: penalty points for the resources that would be left free, and for unmet preferences.
//!
//! | criterion | points | reason |
//! |---|--:|---|
//! | fraction left free in the VM's zone | 0 to 600 | filling zones one by one leaves free zones for large VMs |
//! | CPUs and memory left out of proportion | 0 to 200 | CPUs without memory and memory without CPUs are useless |
//! | VM that fits in one zone, on a host that accepts VMs of several zones | 60 | few hosts accept such large VMs |
//! | host of another class | 300 | a HostProfile defines the purpose of a host |
//! | preferred node affinity that is not met | 0 to 400 | kube-scheduler has the same preference |
//! | each taint `PreferNoSchedule` that is not tolerated | 200 | kube-scheduler has the same preference |
//! | Density VM on a host that does not merge pages | 150 | overcommitted memory relies on KSM |
//! | each control-plane VM of the domain above the minimum of all domains | 1000, configurable | `spread_index` |
//!
//! A host with fewer points is better. Points for preferences that depend on existing pods are added only when hosts
//! are compared ([`pod_preference_points`]), because these points change with every pod.

use super::free_resources::{FreeAmount, FreeResources, ZoneRequest, ZoneResources};
use super::score_index::Score;
use crate::rules::{HostPreference, PreferenceScore, PreferenceScores};

/// Maximum points for the fraction of resources that would be left free in the VM's zone.
const LEFTOVER_WEIGHT: u32 = 600;
/// Maximum points if CPUs and memory would be left free out of proportion.
const IMBALANCE_WEIGHT: u32 = 200;
/// Points of a host that accepts VMs of several zones if the VM fits in one zone.
const MULTI_ZONE_PENALTY: u32 = 60;
/// Points of a host whose class differs from the VM's class.
pub(crate) const OTHER_CLASS_PENALTY: u32 = 300;
/// Maximum points of a host that does not match the preferred node affinity.
const NOT_PREFERRED_PENALTY: u32 = 400;
/// Points for each taint `PreferNoSchedule` that the pod does not tolerate.
const TAINT_PENALTY: u32 = 200;
/// Points of a host that does not merge pages, for a VM of the class Density.
pub(crate) const NO_PAGE_MERGING_PENALTY: u32 = 150;
/// Points for each pod by which the host's domain exceeds the permitted skew of a `ScheduleAnyway` constraint.
const SKEW_PENALTY: i64 = 300;
/// Limit of the points for spread constraints, and of the points for affinity: each is between minus this value and
/// this value.
const MAX_POD_POINTS: i64 = 6_000;

/// Returns the points for the resources that would be left free on a host; `None` if the request certainly does not
/// fit.
pub(crate) fn resource_points(free: &FreeResources, request: &ZoneRequest) -> Option<u32> {
    if !request.is_pinned || !free.has_static_cpu_policy {
        return Some(shared_cpu_points(free));
    }
    let requires_single_zone = free.requires_single_zone(request);
    let request = &free.zone_accounted_request(request);
    if let Some(zone) = free.first_fitting_zone(request) {
        let multi_zone_penalty =
            if free.is_single_numa_node || free.zone_count < 2 { 0 } else { MULTI_ZONE_PENALTY };
        return Some(zone_points(zone, request) + multi_zone_penalty);
    }
    if requires_single_zone {
        return None;
    }
    let all = free.sum();
    all.fits(request).then(|| zone_points(&all, request))
}

fn zone_points(zone: &ZoneResources, request: &ZoneRequest) -> u32 {
    let cpus = remaining_fraction(zone.cpus, request.cpus);
    let wanted = zone.pages.iter().zip(request.pages).filter(|(_, wanted)| *wanted > 0);
    let memory = wanted.map(|(pages, wanted)| remaining_fraction(*pages, wanted)).min();
    let memory = memory.unwrap_or(cpus);
    LEFTOVER_WEIGHT * (cpus + memory) / 2 / FRACTION_SCALE
        + IMBALANCE_WEIGHT * cpus.abs_diff(memory) / FRACTION_SCALE
}

/// Returns the points of a host for pods without exclusive CPUs. The more CPUs are free, the more penalty points a host
/// gets, so that these pods, too, are packed onto few hosts.
fn shared_cpu_points(free: &FreeResources) -> u32 {
    let all = free.sum();
    LEFTOVER_WEIGHT * remaining_fraction(all.cpus, 0) / FRACTION_SCALE / 4
}

const FRACTION_SCALE: u32 = 1024;

/// Returns the fraction of the total that is left free after a request for `requested`, from 0 to [`FRACTION_SCALE`].
fn remaining_fraction(amount: FreeAmount<u32>, requested: u32) -> u32 {
    let remaining = u64::from(amount.free.saturating_sub(requested)) * u64::from(FRACTION_SCALE);
    u32::try_from(remaining / u64::from(amount.total.max(1)))
        .map_or(FRACTION_SCALE, |part| part.min(FRACTION_SCALE))
}

/// Returns the points for preferences that depend only on the host: preferred node affinity and `PreferNoSchedule`
/// taints.
pub(crate) fn host_preference_points(preference: &HostPreference) -> u32 {
    let max_weight = preference.total_weight;
    let missed = max_weight.saturating_sub(preference.matching_weight).clamp(0, max_weight.max(0));
    let missed = if max_weight <= 0 {
        0
    } else {
        i64::from(NOT_PREFERRED_PENALTY).saturating_mul(missed) / max_weight
    };
    let taints =
        i64::from(TAINT_PENALTY).saturating_mul(preference.untolerated_taints.clamp(0, 20));
    u32::try_from(missed.saturating_add(taints)).unwrap_or_default()
}

/// Returns the points, positive or negative, for preferences that depend on existing pods.
pub(crate) fn pod_preference_points(preference_score: &PreferenceScore) -> i64 {
    let skew = match preference_score.skew {
        None => MAX_POD_POINTS,
        Some(skew) => skew.saturating_mul(SKEW_PENALTY).clamp(0, MAX_POD_POINTS),
    };
    // An affinity weight of 100 counts as much as a skew of one pod.
    let affinity = preference_score
        .affinity
        .saturating_mul(SKEW_PENALTY / 100)
        .clamp(-MAX_POD_POINTS, MAX_POD_POINTS);
    skew - affinity
}

/// Returns a lower bound of [`pod_preference_points`] for all hosts.
pub(crate) fn minimum_pod_points(preference_scores: &PreferenceScores<'_>) -> i64 {
    if preference_scores.has_only_spread() { 0 } else { -MAX_POD_POINTS }
}

/// Converts points to a score, at most the largest score of a suitable host.
pub(crate) fn score_from_points(points: u32) -> Score {
    Score::try_from(points).unwrap_or(Score::MAX).min(Score::MAX - 1)
}
