//! What a pod would rather have, by the rules of kube-scheduler's score plugins: numbers for hosts that it may go to.

use std::collections::HashSet;

use super::compile::Spread;
use super::counts::HostId;
use super::question::{Near, Question};
use super::symbols::index;

/// How well a host suits, compared with the others that were asked about: 0 to 100 each, more is better.
///
/// Normalised as kube-scheduler does, to the last rounding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scores {
    /// Preferred node affinity. 0 everywhere if the pod prefers nothing, or nothing matches.
    pub node_affinity: i64,
    /// Taints `PreferNoSchedule` that are not tolerated: 100 if there are none.
    pub taints: i64,
    /// Preferred pod affinity and anti-affinity, its own and that of the pods there. 0 everywhere if all are equal.
    pub pod_affinity: i64,
    /// Constraints of `ScheduleAnyway`. 0 everywhere if the pod has none.
    pub spread: i64,
}

impl Scores {
    /// All in one, with the weights of kube-scheduler's default plugins: 0 to 900.
    #[must_use]
    pub const fn weighted(&self) -> i64 {
        self.taints * 3 + (self.node_affinity + self.pod_affinity + self.spread) * 2
    }
}

/// The numbers that scores are made of, which hosts do not share: for those who compare a few hosts only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Raw {
    /// Sum of the weights of matching terms: 0 or more, more is better.
    pub node_affinity: i64,
    /// Number of taints `PreferNoSchedule` that are not tolerated: fewer is better.
    pub taints: i64,
    /// Sum of weights, of any sign: more is better.
    pub pod_affinity: i64,
    /// How crowded it is: less is better. `None` if the host lacks a label that pods are to be spread over, which is
    /// worst.
    pub spread: Option<i64>,
}

/// What is the same for all hosts when scores are made.
#[derive(Debug)]
pub struct Scorer<'a> {
    question: &'a Question<'a>,
    near: Vec<(Near<'a>, i64)>,
    spread: Vec<(Near<'a>, Spread, f64)>,
}

impl<'a> Scorer<'a> {
    /// For hosts that the pod may go to: over how many domains it could be spread decides how much each counts.
    #[must_use]
    pub fn new(question: &'a Question<'a>, hosts: &[HostId]) -> Self {
        let (counts, rules) = (question.counts, question.rules);
        let mut near: Vec<(Near<'a>, i64)> = Vec::new();
        for (number, weight) in &rules.template.preferred {
            near.extend(Near::of(counts, *number).map(|near| (near, *weight)));
        }
        let belongs = counts.belongs(rules);
        let weights = belongs.weights().iter().filter_map(|number| Near::of(counts, *number));
        near.extend(weights.map(|near| (near, 1)));
        let all: Vec<(Near<'a>, Spread)> = rules
            .template
            .soft_spread
            .iter()
            .filter_map(|rule| Some((Near::of(counts, rule.counter)?, *rule)))
            .collect();
        let domain = |near: &Near<'_>, host: &HostId| near.topology.of(host.0);
        let is_scored = |host: &&HostId| all.iter().all(|(near, _)| near.at(**host).is_some());
        let mut spread = Vec::with_capacity(all.len());
        for (near, rule) in &all {
            let scored = hosts.iter().filter(is_scored);
            let size = if rule.is_by_host {
                scored.count()
            } else {
                scored.map(|host| domain(near, host)).collect::<HashSet<u32>>().len()
            };
            // `topologyNormalizingWeight`: small topologies are not to be drowned by large ones.
            let size = u32::try_from(size).unwrap_or(u32::MAX);
            spread.push((*near, *rule, (f64::from(size) + 2.0).ln()));
        }
        Self { question, near, spread }
    }

    /// One host's numbers.
    #[must_use]
    pub fn raw(&self, host: HostId) -> Raw {
        let (hosts, rules) = (&self.question.counts.hosts, self.question.rules);
        let preference = rules.template.preference.and_then(|number| hosts.preferences.get(number));
        let weight = preference.and_then(|(_, weights)| weights.get(index(host.0)));
        let unwelcome = hosts.get(host.0).zip(hosts.tolerations.get(rules.template.tolerations));
        Raw {
            node_affinity: weight.map_or(0, |weight| i64::from(*weight)),
            taints: unwelcome
                .map_or(0, |(host, (tolerations, _))| tolerations.unwelcome(&host.taints).into()),
            pod_affinity: self.near.iter().fold(0, |sum, (near, weight)| {
                sum.saturating_add(near.at(host).unwrap_or(0).saturating_mul(*weight))
            }),
            spread: self.crowd(host),
        }
    }

    /// `scoreForCount`, for all constraints.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "counts of pods are far below 2^52; the scheduler rounds here too"
    )]
    fn crowd(&self, host: HostId) -> Option<i64> {
        let mut sum = 0.0;
        for (near, rule, weight) in &self.spread {
            sum += near.at(host)? as f64 * weight + (rule.max_skew - 1) as f64;
        }
        Some(sum.round() as i64)
    }

    /// The scores of these hosts, which are those that the pod may go to, in their order.
    #[must_use]
    pub fn scores(&self, hosts: &[HostId]) -> Vec<Scores> {
        let raw: Vec<Raw> = hosts.iter().map(|host| self.raw(*host)).collect();
        let most = |of: fn(&Raw) -> i64| raw.iter().map(of).max().unwrap_or(0);
        let least = |of: fn(&Raw) -> i64| raw.iter().map(of).min().unwrap_or(0);
        let (best_label, most_taints) = (most(|one| one.node_affinity), most(|one| one.taints));
        let (dear, feared) = (most(|one| one.pod_affinity), least(|one| one.pod_affinity));
        let crowds = || raw.iter().filter_map(|one| one.spread);
        let (fullest, emptiest) = (crowds().max().unwrap_or(0), crowds().min().unwrap_or(0));
        let score = |one: &Raw| Scores {
            node_affinity: share(one.node_affinity, best_label),
            taints: 100 - share(one.taints, most_taints),
            pod_affinity: between(one.pod_affinity, feared, dear),
            spread: match one.spread {
                _ if self.spread.is_empty() => 0,
                None => 0,
                Some(_) if fullest == 0 => 100,
                Some(here) => share(fullest.saturating_add(emptiest).saturating_sub(here), fullest),
            },
        };
        raw.iter().map(score).collect()
    }
}

/// In hundredths, rounded down; 0 of nothing.
fn share(part: i64, whole: i64) -> i64 {
    part.saturating_mul(100).checked_div(whole).unwrap_or(0)
}

/// Where between these, in hundredths, as interpodaffinity's `NormalizeScore` computes it.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "the scheduler computes with floats here, and to round otherwise would be another score"
)]
fn between(value: i64, least: i64, most: i64) -> i64 {
    let whole = most.saturating_sub(least);
    if whole <= 0 {
        return 0;
    }
    (100.0 * (value.saturating_sub(least) as f64 / whole as f64)) as i64
}
