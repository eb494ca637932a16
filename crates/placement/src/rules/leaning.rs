//! What a pod would rather have, in numbers that do not depend on which hosts are compared: for those who keep a score of
//! each host and look at a few.

use super::compile::{Rules, Spread};
use super::counts::{Counts, HostId};
use super::question::{Near, Question};

/// What of a pod's preferences only depends on the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Preference {
    /// Sum of the weights of preferred node affinity that match.
    pub met: i64,
    /// Sum of all its weights.
    pub most: i64,
    /// Taints `PreferNoSchedule` that are not tolerated.
    pub taints: i64,
}

/// What pods on a host do to a pod's liking of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leaning {
    /// Sum of weights, of any sign: more is better.
    pub liked: i64,
    /// Pods of its own kind there beyond those where there are fewest, of all constraints `ScheduleAnyway`: less is
    /// better. `None` if the host lacks a label that they are to be spread over, which is worst.
    pub crowd: Option<i64>,
}

/// The preferences of a pod by other pods, at one moment.
#[derive(Debug)]
pub struct Leanings<'a> {
    near: Vec<(Near<'a>, i64)>,
    spread: Vec<(Near<'a>, Spread, i64)>,
}

impl<'a> Question<'a> {
    /// What of the pod's preferences only depends on the host.
    #[must_use]
    pub fn preference(&self, host: HostId) -> Preference {
        self.counts.preference(self.rules, host)
    }

    /// Preferences by pods that are there; `None` if it has none and nobody has any about it.
    #[must_use]
    pub fn leanings(&self) -> Option<Leanings<'a>> {
        let (counts, rules) = (self.counts, self.rules);
        let matters = |near: &Near<'_>| near.counter.total != 0;
        let of = |number: u32| Near::of(counts, number).filter(matters);
        let mut near = Vec::new();
        for (number, weight) in &rules.template.preferred {
            near.extend(of(*number).map(|near| (near, *weight)));
        }
        let belongs = counts.belongs(rules);
        near.extend(belongs.weights().iter().filter_map(|number| Some((of(*number)?, 1))));
        let spread: Vec<_> = rules
            .template
            .soft_spread
            .iter()
            .filter_map(|rule| {
                let near = Near::of(counts, rule.counter)?;
                let least = near.counter.least(&counts.reaches, rule.min_domains);
                // Nobody to keep away from, and no host without the label: all are alike.
                (matters(&near) || !rule.is_by_host).then_some((near, *rule, least))
            })
            .collect();
        (!near.is_empty() || !spread.is_empty()).then_some(Leanings { near, spread })
    }
}

impl Counts {
    /// What of a pod's preferences only depends on the host.
    #[must_use]
    pub fn preference(&self, rules: &Rules, host: HostId) -> Preference {
        let hosts = &self.hosts;
        let (mut met, mut most) = (0, 0);
        if let Some((terms, weights)) =
            rules.template.preference.and_then(|at| hosts.preferences.get(at))
        {
            met = weights.get(host.index()).map_or(0, |weight| i64::from(*weight));
            most = terms.iter().map(|(_, weight)| i64::from(*weight)).sum();
        }
        let unwelcome = hosts.get(host.0).zip(hosts.tolerations.get(rules.template.tolerations));
        let taints = unwelcome.map_or(0, |(host, (all, _))| all.unwelcome(&host.taints).into());
        Preference { met, most, taints }
    }
}

impl Leanings<'_> {
    /// Whether nobody is liked or disliked: hosts are only more or less crowded.
    #[must_use]
    pub const fn only_crowd(&self) -> bool {
        self.near.is_empty()
    }

    /// How a host is liked.
    #[must_use]
    pub fn at(&self, host: HostId) -> Leaning {
        let liked = self.near.iter().fold(0_i64, |sum, (near, weight)| {
            sum.saturating_add(near.at(host).unwrap_or(0).saturating_mul(*weight))
        });
        let crowd = self.spread.iter().try_fold(0_i64, |sum, (near, rule, least)| {
            let more = near.at(host)?.saturating_sub(*least).max(0);
            Some(sum.saturating_add(more.saturating_sub(rule.max_skew - 1).max(0)))
        });
        Leaning { liked, crowd }
    }
}
