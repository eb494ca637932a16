//! Preference scores of hosts that, unlike kube-scheduler's scores, do not depend on the other compared hosts. Callers
//! can therefore store the score of each host, and compare only a few hosts.

use super::cluster_state::{ClusterState, HostId};
use super::compiled::{CompiledSpread, Rules};
use super::filter::{DomainCounter, PodFilter};

/// The part of a pod's preferences that depends only on the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostPreference {
    /// Sum of the weights of the preferred node affinity terms that match the host.
    pub matching_weight: i64,
    /// Sum of the weights of all preferred node affinity terms.
    pub total_weight: i64,
    /// Number of the host's `PreferNoSchedule` taints that the pod does not tolerate.
    pub untolerated_taints: i64,
}

/// Preference score of a host that depends on the pods in the host's domains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PreferenceScore {
    /// Sum of the weights of preferred affinity and anti-affinity, positive or negative. A higher sum is better.
    pub affinity: i64,
    /// Number of pods by which the host's domain would exceed the skew that a `ScheduleAnyway` constraint permits,
    /// summed over all such constraints. A lower number is better. `None` if the host lacks the topology label of a
    /// constraint, which is worse than any number.
    pub skew: Option<i64>,
}

/// The preferences of a pod that depend on other pods, evaluated against the current pods.
#[derive(Debug)]
pub struct PreferenceScores<'a> {
    affinity_counts: Vec<(DomainCounter<'a>, i64)>,
    soft_spread: Vec<(DomainCounter<'a>, CompiledSpread, i64)>,
}

impl<'a> PodFilter<'a> {
    /// Returns the part of the pod's preferences that depends only on the host.
    #[must_use]
    pub fn host_preference(&self, host: HostId) -> HostPreference {
        self.cluster.host_preference(self.rules, host)
    }

    /// Returns the preferences that depend on existing pods; `None` if neither the pod nor an existing pod has such
    /// preferences that affect the choice.
    #[must_use]
    pub fn pod_preference_scores(&self) -> Option<PreferenceScores<'a>> {
        let (cluster, rules) = (self.cluster, self.rules);
        let has_count = |near: &DomainCounter<'_>| near.counter.total != 0;
        let lookup = |number: u32| DomainCounter::look_up(cluster, number).filter(has_count);
        let mut affinity_counts = Vec::new();
        for (number, weight) in &rules.template.preferred_affinity {
            affinity_counts.extend(lookup(*number).map(|near| (near, *weight)));
        }
        let membership = cluster.membership(rules);
        affinity_counts.extend(
            membership.weight_counters().iter().filter_map(|number| Some((lookup(*number)?, 1))),
        );
        let spread: Vec<_> = rules
            .template
            .soft_spread
            .iter()
            .filter_map(|rule| {
                let near = DomainCounter::look_up(cluster, rule.counter)?;
                let minimum_count =
                    near.counter.minimum_count(&cluster.eligible_domains, rule.min_domains);
                // If no pods match the constraint, it treats all hosts that have the topology label equally. Every host
                // has the label `kubernetes.io/hostname`, but may lack other labels.
                (has_count(&near) || !rule.is_per_host).then_some((near, *rule, minimum_count))
            })
            .collect();
        (!affinity_counts.is_empty() || !spread.is_empty())
            .then_some(PreferenceScores { affinity_counts, soft_spread: spread })
    }
}

impl ClusterState {
    /// Returns the part of a pod's preferences that depends only on the host.
    #[must_use]
    pub fn host_preference(&self, rules: &Rules, host: HostId) -> HostPreference {
        let hosts = &self.hosts;
        let (mut matching_weight, mut total_weight) = (0, 0);
        if let Some((terms, weights)) =
            rules.template.preference.and_then(|at| hosts.preferences.get(at))
        {
            matching_weight = weights.get(host.index()).map_or(0, |weight| i64::from(*weight));
            total_weight = terms.iter().map(|(_, weight)| i64::from(*weight)).sum();
        }
        let host_and_tolerations =
            hosts.get(host.0).zip(hosts.tolerations.get(rules.template.tolerations));
        let untolerated_taints = host_and_tolerations.map_or(0, |(host, (all, _))| {
            all.count_untolerated_prefer_no_schedule(&host.taints).into()
        });
        HostPreference { matching_weight, total_weight, untolerated_taints }
    }
}

impl PreferenceScores<'_> {
    /// Returns true if the preferences consist only of spread constraints, without affinity weights.
    #[must_use]
    pub const fn has_only_spread(&self) -> bool {
        self.affinity_counts.is_empty()
    }

    /// Returns the score of a host.
    #[must_use]
    pub fn score_for_host(&self, host: HostId) -> PreferenceScore {
        let affinity = self.affinity_counts.iter().fold(0_i64, |sum, (near, weight)| {
            sum.saturating_add(near.count_for_host(host).unwrap_or(0).saturating_mul(*weight))
        });
        let skew = self.soft_spread.iter().try_fold(0_i64, |sum, (near, rule, least)| {
            let excess = near.count_for_host(host)?.saturating_sub(*least).max(0);
            Some(sum.saturating_add(excess.saturating_sub(rule.max_skew - 1).max(0)))
        });
        PreferenceScore { affinity, skew }
    }
}
