//! Scores of hosts as the score plugins of kube-scheduler compute them for the hosts on which a pod may be placed.

use std::collections::HashSet;

use super::cluster_state::HostId;
use super::compiled::CompiledSpread;
use super::filter::{DomainCounter, PodFilter};
use super::symbols::to_index;

/// Scores of a host relative to the other compared hosts, each from 0 to 100. A higher score is better.
///
/// The scores are normalized as in kube-scheduler, including the rounding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NormalizedScores {
    /// Score for preferred node affinity; 0 on all hosts if the pod has no preferred node affinity, or if no host
    /// matches.
    pub node_affinity: i64,
    /// Score for `PreferNoSchedule` taints that the pod does not tolerate; 100 if the host has no such taints.
    pub taints: i64,
    /// Score for preferred pod affinity and anti-affinity, both of the pod itself and of existing pods; 0 on all hosts
    /// if the sum of the weights is equal on all hosts.
    pub pod_affinity: i64,
    /// Score for `ScheduleAnyway` constraints; 0 on all hosts if the pod has no such constraints.
    pub spread: i64,
}

impl NormalizedScores {
    /// Returns the sum of the scores with the default weights of kube-scheduler's plugins: 0 to 900.
    #[must_use]
    pub const fn weighted_sum(&self) -> i64 {
        self.taints * 3 + (self.node_affinity + self.pod_affinity + self.spread) * 2
    }
}

/// Scores of a host before normalisation, for callers that compare only a few hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawScores {
    /// Sum of the weights of the preferred node affinity terms that match the host: 0 or more. A higher sum is better.
    pub node_affinity: i64,
    /// Number of the host's `PreferNoSchedule` taints that the pod does not tolerate. A lower number is better.
    pub taints: i64,
    /// Sum of the weights of preferred pod affinity and anti-affinity, positive or negative. A higher sum is better.
    pub pod_affinity: i64,
    /// Weighted number of pods in the host's domains. A lower number is better. `None` if the host lacks the topology
    /// label of a constraint, which is worse than any number.
    pub spread: Option<i64>,
}

/// The data that the scores of all hosts need, computed once.
#[derive(Debug)]
pub struct Scorer<'a> {
    filter: &'a PodFilter<'a>,
    affinity_counts: Vec<(DomainCounter<'a>, i64)>,
    soft_spread: Vec<(DomainCounter<'a>, CompiledSpread, f64)>,
}

impl<'a> Scorer<'a> {
    /// Creates a scorer for `hosts`, the hosts on which the pod may be placed. The weight of each spread constraint
    /// depends on the number of topology domains of these hosts.
    #[must_use]
    pub fn new(filter: &'a PodFilter<'a>, hosts: &[HostId]) -> Self {
        let (cluster, rules) = (filter.cluster, filter.rules);
        let mut affinity_counts: Vec<(DomainCounter<'a>, i64)> = Vec::new();
        for (number, weight) in &rules.template.preferred_affinity {
            affinity_counts
                .extend(DomainCounter::look_up(cluster, *number).map(|near| (near, *weight)));
        }
        let membership = cluster.membership(rules);
        let weights = membership
            .weight_counters()
            .iter()
            .filter_map(|number| DomainCounter::look_up(cluster, *number));
        affinity_counts.extend(weights.map(|near| (near, 1)));
        let constraints: Vec<(DomainCounter<'a>, CompiledSpread)> = rules
            .template
            .soft_spread
            .iter()
            .filter_map(|rule| Some((DomainCounter::look_up(cluster, rule.counter)?, *rule)))
            .collect();
        let domain = |near: &DomainCounter<'_>, host: &HostId| near.topology.domain_of(host.0);
        let is_scored = |host: &&HostId| {
            constraints.iter().all(|(near, _)| near.count_for_host(**host).is_some())
        };
        let mut spread = Vec::with_capacity(constraints.len());
        for (near, rule) in &constraints {
            let scored = hosts.iter().filter(is_scored);
            let domain_count = if rule.is_per_host {
                scored.count()
            } else {
                scored.map(|host| domain(near, host)).collect::<HashSet<u32>>().len()
            };
            // `topologyNormalizingWeight`: without this weight, constraints with many domains would dominate
            // constraints with few domains.
            let domain_count = u32::try_from(domain_count).unwrap_or(u32::MAX);
            spread.push((*near, *rule, (f64::from(domain_count) + 2.0).ln()));
        }
        Self { filter, affinity_counts, soft_spread: spread }
    }

    /// Returns the scores of one host before normalisation.
    #[must_use]
    pub fn raw_scores(&self, host: HostId) -> RawScores {
        let (hosts, rules) = (&self.filter.cluster.hosts, self.filter.rules);
        let preference = rules.template.preference.and_then(|number| hosts.preferences.get(number));
        let weight = preference.and_then(|(_, weights)| weights.get(to_index(host.0)));
        let host_and_tolerations =
            hosts.get(host.0).zip(hosts.tolerations.get(rules.template.tolerations));
        RawScores {
            node_affinity: weight.map_or(0, |weight| i64::from(*weight)),
            taints: host_and_tolerations.map_or(0, |(host, (tolerations, _))| {
                tolerations.count_untolerated_prefer_no_schedule(&host.taints).into()
            }),
            pod_affinity: self.affinity_counts.iter().fold(0, |sum, (near, weight)| {
                sum.saturating_add(near.count_for_host(host).unwrap_or(0).saturating_mul(*weight))
            }),
            spread: self.spread_score(host),
        }
    }

    /// Returns the spread score of a host, summed over all constraints (`scoreForCount`).
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "counts of pods are far below 2^52; the scheduler rounds here too"
    )]
    fn spread_score(&self, host: HostId) -> Option<i64> {
        let mut sum = 0.0;
        for (near, rule, weight) in &self.soft_spread {
            sum += near.count_for_host(host)? as f64 * weight + (rule.max_skew - 1) as f64;
        }
        Some(sum.round() as i64)
    }

    /// Returns the scores of `hosts`, in the same order. `hosts` must contain all hosts on which the pod may be placed.
    #[must_use]
    pub fn normalized_scores(&self, hosts: &[HostId]) -> Vec<NormalizedScores> {
        let raw: Vec<RawScores> = hosts.iter().map(|host| self.raw_scores(*host)).collect();
        let maximum = |of: fn(&RawScores) -> i64| raw.iter().map(of).max().unwrap_or(0);
        let minimum = |of: fn(&RawScores) -> i64| raw.iter().map(of).min().unwrap_or(0);
        let (max_node_affinity, most_taints) =
            (maximum(|one| one.node_affinity), maximum(|one| one.taints));
        let (max_pod_affinity, min_pod_affinity) =
            (maximum(|one| one.pod_affinity), minimum(|one| one.pod_affinity));
        let spread_counts = || raw.iter().filter_map(|one| one.spread);
        let (max_spread, min_spread) =
            (spread_counts().max().unwrap_or(0), spread_counts().min().unwrap_or(0));
        let score = |one: &RawScores| NormalizedScores {
            node_affinity: percentage(one.node_affinity, max_node_affinity),
            taints: 100 - percentage(one.taints, most_taints),
            pod_affinity: normalize_score(one.pod_affinity, min_pod_affinity, max_pod_affinity),
            spread: match one.spread {
                _ if self.soft_spread.is_empty() => 0,
                None => 0,
                Some(_) if max_spread == 0 => 100,
                Some(spread) => percentage(
                    max_spread.saturating_add(min_spread).saturating_sub(spread),
                    max_spread,
                ),
            },
        };
        raw.iter().map(score).collect()
    }
}

/// Returns `part` as a percentage of `whole`, rounded down; 0 if `whole` is 0.
fn percentage(part: i64, whole: i64) -> i64 {
    part.saturating_mul(100).checked_div(whole).unwrap_or(0)
}

/// Returns the position of `value` between two bounds, in percent, computed as in interpodaffinity's `NormalizeScore`.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "the scheduler computes with floats here, and different rounding would change the score"
)]
fn normalize_score(value: i64, minimum: i64, maximum: i64) -> i64 {
    let range = maximum.saturating_sub(minimum);
    if range <= 0 {
        return 0;
    }
    (100.0 * (value.saturating_sub(minimum) as f64 / range as f64)) as i64
}
