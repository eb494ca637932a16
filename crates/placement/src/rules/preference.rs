//! Preference scores that do not depend on the set of compared hosts, unlike the scores of kube-scheduler. Callers
//! can therefore store the score of each host, and compare only a few hosts.

use super::compiled::{Rules, Spread};
use super::counts::{Counts, HostId};
use super::filter::{DomainCount, PodFilter};

/// The part of a pod's preferences that depends only on the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostPreference {
    /// Sum of the weights of those preferred node affinity terms that match the host.
    pub met: i64,
    /// Sum of the weights of all preferred node affinity terms.
    pub most: i64,
    /// Number of the host's `PreferNoSchedule` taints that the pod does not tolerate.
    pub taints: i64,
}

/// Preference score of a host that depends on the pods in the host's domains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PreferenceScore {
    /// Sum of the weights of preferred affinity and anti-affinity, positive or negative: more is better.
    pub affinity: i64,
    /// Number of pods by which the host's domain would exceed the skew that a `ScheduleAnyway` constraint permits,
    /// summed over all such constraints: less is better. `None`, which is the worst value, if the host lacks the
    /// topology label of a constraint.
    pub skew: Option<i64>,
}

/// The preferences of a pod that depend on other pods, evaluated against the current pods.
#[derive(Debug)]
pub struct PreferenceScores<'a> {
    near: Vec<(DomainCount<'a>, i64)>,
    spread: Vec<(DomainCount<'a>, Spread, i64)>,
}

impl<'a> PodFilter<'a> {
    /// Returns the part of the pod's preferences that depends only on the host.
    #[must_use]
    pub fn preference(&self, host: HostId) -> HostPreference {
        self.counts.preference(self.rules, host)
    }

    /// Returns the preferences that depend on existing pods; `None` if no such preference of the pod or of an
    /// existing pod affects the choice.
    #[must_use]
    pub fn preference_scores(&self) -> Option<PreferenceScores<'a>> {
        let (counts, rules) = (self.counts, self.rules);
        let matters = |near: &DomainCount<'_>| near.counter.total != 0;
        let of = |number: u32| DomainCount::lookup(counts, number).filter(matters);
        let mut near = Vec::new();
        for (number, weight) in &rules.template.preferred {
            near.extend(of(*number).map(|near| (near, *weight)));
        }
        let membership = counts.membership(rules);
        near.extend(membership.weights().iter().filter_map(|number| Some((of(*number)?, 1))));
        let spread: Vec<_> = rules
            .template
            .soft_spread
            .iter()
            .filter_map(|rule| {
                let near = DomainCount::lookup(counts, rule.counter)?;
                let least = near.counter.minimum_count(&counts.eligible_domains, rule.min_domains);
                // If the spread group has no pods, the constraint treats all hosts that have the topology label
                // equally. Every host has the label `kubernetes.io/hostname`, but may lack other labels.
                (matters(&near) || !rule.is_by_host).then_some((near, *rule, least))
            })
            .collect();
        (!near.is_empty() || !spread.is_empty()).then_some(PreferenceScores { near, spread })
    }
}

impl Counts {
    /// Returns the part of a pod's preferences that depends only on the host.
    #[must_use]
    pub fn preference(&self, rules: &Rules, host: HostId) -> HostPreference {
        let hosts = &self.hosts;
        let (mut met, mut most) = (0, 0);
        if let Some((terms, weights)) =
            rules.template.preference.and_then(|at| hosts.preferences.get(at))
        {
            met = weights.get(host.index()).map_or(0, |weight| i64::from(*weight));
            most = terms.iter().map(|(_, weight)| i64::from(*weight)).sum();
        }
        let unwelcome = hosts.get(host.0).zip(hosts.tolerations.get(rules.template.tolerations));
        let taints = unwelcome
            .map_or(0, |(host, (all, _))| all.untolerated_preferences(&host.taints).into());
        HostPreference { met, most, taints }
    }
}

impl PreferenceScores<'_> {
    /// Returns true if there are only spread constraints and no affinity weights.
    #[must_use]
    pub const fn only_spread(&self) -> bool {
        self.near.is_empty()
    }

    /// Returns the score of a host.
    #[must_use]
    pub fn at(&self, host: HostId) -> PreferenceScore {
        let affinity = self.near.iter().fold(0_i64, |sum, (near, weight)| {
            sum.saturating_add(near.at(host).unwrap_or(0).saturating_mul(*weight))
        });
        let skew = self.spread.iter().try_fold(0_i64, |sum, (near, rule, least)| {
            let more = near.at(host)?.saturating_sub(*least).max(0);
            Some(sum.saturating_add(more.saturating_sub(rule.max_skew - 1).max(0)))
        });
        PreferenceScore { affinity, skew }
    }
}
