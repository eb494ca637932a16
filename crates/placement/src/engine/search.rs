//! Search for the best host for a request: hosts are ordered by score and name, then checked against the rules that
//! depend on other pods, then against the kubelet's admission.

use std::cmp::Reverse;
use std::sync::Arc;

use berth_api::Class;
use fixedbitset::FixedBitSet;

use super::request::Request;
use super::request_classes::{FitScores, RequestClass, RequestClassKey};
use super::score;
use super::score_index::{ComparedHosts, Score, ScoreIndex, SearchBuffers, UNSUITABLE};
use super::spread_index::SpreadIndex;
use super::state::Engine;
use crate::rules::HostId;
use berth_kubelet_admission::Admission;

/// Maximum number of hosts that are collected before the best of the collected hosts is tried. Hosts are collected only
/// if preferences that depend on other pods may change the order of the scores.
const MAX_COMPARED_HOSTS: usize = 64;

impl Engine {
    /// Returns the best host for a pod, without assuming the pod on the host. If several hosts are equally good,
    /// returns the first by name.
    pub fn choose_host(
        &mut self,
        request: &Request,
        candidates: Option<&[HostId]>,
    ) -> Option<HostId> {
        Some(self.choose_host_with_admission(request, candidates)?.0)
    }

    /// Returns the best host for a pod, and the resources that its kubelet would allocate.
    pub(super) fn choose_host_with_admission(
        &mut self,
        request: &Request,
        candidates: Option<&[HostId]>,
    ) -> Option<(HostId, Admission)> {
        let mut scratch = std::mem::take(&mut self.search_buffers);
        let mut compared = std::mem::take(&mut self.compared_hosts);
        let found = self.with_scored_class(request, |engine, class| {
            let mut refused = Vec::new();
            let found = engine.search_host(
                request,
                &mut class.scores,
                candidates,
                &mut scratch,
                &mut compared,
                &mut refused,
            );
            // The kubelets of these hosts would reject the pod, although their scores suggest otherwise. The hosts are
            // excluded until they change.
            for rank in refused {
                class.scores.set(rank, UNSUITABLE);
            }
            found
        });
        self.search_buffers = scratch;
        compared.clear();
        self.compared_hosts = compared;
        found.flatten()
    }

    /// Returns all hosts that accept a pod, with their points, the best host first. A host with fewer points is better.
    /// The first host is that of [`Self::choose_host`], unless the pod has preferences about many other pods.
    pub fn ranked_hosts(&mut self, request: &Request) -> Vec<(HostId, i64)> {
        let ranked = self.with_scored_class(request, |engine, class| {
            let filter = engine.cluster.pod_filter(&request.rules);
            let preference_scores = filter.pod_preference_scores();
            let mut ranked = Vec::new();
            for (rank, host) in engine.host_order.numbers().enumerate() {
                let (score, host) = (class.scores.get(rank), HostId::from_index(host));
                let accepts = score != UNSUITABLE
                    && filter.allows_by_pods(host)
                    && engine.evaluate_host(request, host).is_some();
                if accepts {
                    let by_pods = preference_scores.as_ref().map_or(0, |scores| {
                        score::pod_preference_points(&scores.score_for_host(host))
                    });
                    ranked.push((i64::from(score) + by_pods, rank, host));
                }
            }
            ranked.sort_unstable_by_key(|(points, rank, _)| (*points, *rank));
            ranked.into_iter().map(|(points, _, host)| (host, points)).collect()
        });
        ranked.unwrap_or_default()
    }

    /// Calls `work` with the engine and the request class of a pod, whose scores are up to date.
    fn with_scored_class<T>(
        &mut self,
        request: &Request,
        work: impl FnOnce(&Self, &mut RequestClass) -> T,
    ) -> Option<T> {
        let mut classes = std::mem::take(&mut self.request_classes);
        if self.host_order.update() {
            classes.reset_scores();
        }
        let (mut at, mut key) = (request.class_index, Arc::clone(&request.class_key));
        if classes.get_mut(at, &key).is_none() {
            // The class was evicted, because other classes were used more recently: add it again.
            (at, key) = classes.find_or_insert(RequestClassKey::clone(&key), &request.rules);
        }
        let result = classes.get_mut(at, &key).map(|(class, fit)| {
            self.update_class_scores(class, fit);
            work(self, class)
        });
        self.request_classes = classes;
        result
    }

    fn search_host(
        &self,
        request: &Request,
        scores: &mut ScoreIndex,
        candidates: Option<&[HostId]>,
        buffers: &mut SearchBuffers,
        waiting: &mut ComparedHosts,
        rejected_ranks: &mut Vec<usize>,
    ) -> Option<(HostId, Admission)> {
        let filter = self.cluster.pod_filter(&request.rules);
        let preference_scores = filter.pod_preference_scores();
        let mut try_host = |rank: usize| {
            let host = self.host_order.host(rank)?;
            let admission = self.evaluate_host(request, host);
            if admission.is_none() {
                rejected_ranks.push(rank);
            }
            admission.map(|admission| (host, admission))
        };
        let few_candidates = candidates.filter(|among| among.len() * 8 < self.host_entries.len());
        let mut scored_candidates: Vec<(Score, usize)> = Vec::new();
        if let Some(few) = few_candidates {
            let ranks = few.iter().filter_map(|host| self.host_order.rank(*host));
            scored_candidates = ranks
                .map(|rank| (scores.get(rank), rank))
                .filter(|(score, _)| *score != UNSUITABLE)
                .collect();
            scored_candidates.sort_unstable();
            scored_candidates.dedup();
        }
        let allowed_hosts = few_candidates.map_or(candidates, |_| None).map(|among| {
            let mut allowed = FixedBitSet::with_capacity(self.host_entries.len());
            allowed.extend(
                among.iter().map(|host| host.index()).filter(|at| *at < self.host_entries.len()),
            );
            allowed
        });
        let mut listed = scored_candidates.into_iter();
        let mut ascending = match few_candidates {
            Some(_) => None,
            None => Some(scores.hosts_by_score(buffers)),
        };
        let hosts_by_score = std::iter::from_fn(|| match &mut ascending {
            Some(ascending) => ascending.next(),
            None => listed.next(),
        });
        let is_excluded = |host: HostId| {
            allowed_hosts.as_ref().is_some_and(|allowed| !allowed.contains(host.index()))
                || !filter.allows_by_pods(host)
        };
        for (score, rank) in hosts_by_score {
            let Some(host) = self.host_order.host(rank) else { continue };
            let Some(preference_scores) = &preference_scores else {
                if !is_excluded(host)
                    && let Some(found) = try_host(rank)
                {
                    return Some(found);
                }
                continue;
            };
            let minimum_points = i64::from(score) + score::minimum_pod_points(preference_scores);
            while let Some(Reverse((points, best))) = waiting.peek().copied()
                && (points <= minimum_points || waiting.len() >= MAX_COMPARED_HOSTS)
            {
                waiting.pop();
                if let Some(found) = try_host(best) {
                    return Some(found);
                }
            }
            if !is_excluded(host) {
                let points = i64::from(score)
                    + score::pod_preference_points(&preference_scores.score_for_host(host));
                waiting.push(Reverse((points, rank)));
            }
        }
        while let Some(Reverse((_, best))) = waiting.pop() {
            if let Some(found) = try_host(best) {
                return Some(found);
            }
        }
        None
    }

    fn evaluate_host(&self, request: &Request, host: HostId) -> Option<Admission> {
        let entry = self.host_entry(host)?;
        entry.evaluate_admission(&entry.state, request.uid(), request).ok()
    }

    /// Updates the scores of the class for all hosts that have changed since the class was last used.
    fn update_class_scores(&self, class: &mut RequestClass, fit: &mut FitScores) {
        self.update_fit_scores(fit);
        let spread = class.is_control_plane().then_some(&self.spread);
        match self.change_log.changes_after(class.last_seen_change) {
            Some(changed) if class.last_seen_change > 0 => {
                for change in changed.clone().filter(|change| change.is_host_change) {
                    let host = change.host();
                    if class.base_scores.len() <= host {
                        class.base_scores.resize(host + 1, UNSUITABLE);
                    }
                    let base = self.base_score(host, class);
                    class.base_scores[host] = base;
                }
                let RequestClass { scores, base_scores, .. } = &mut *class;
                let count = changed.len();
                let changed = changed.filter_map(|change| {
                    let rank = self.host_order.rank(HostId::from_index(change.host()))?;
                    Some((rank, host_score(base_scores, fit, spread, change.host())))
                });
                scores.set_all(count, changed);
                if spread.is_some_and(|spread| spread.generation() != class.spread_generation) {
                    self.update_spread_points(class, fit);
                }
            }
            _ => {
                let hosts = 0..self.host_entries.len();
                class.base_scores = hosts.map(|host| self.base_score(host, class)).collect();
                let hosts = self.host_order.numbers();
                let scores = hosts.map(|host| host_score(&class.base_scores, fit, spread, host));
                class.scores = ScoreIndex::new(scores.collect());
            }
        }
        class.spread_generation = self.spread.generation();
        class.last_seen_change = self.change_log.last_number();
    }

    /// Computes the scores of all hosts again from the stored base scores and resource scores, because the points for
    /// the spread have changed. Unsuitable hosts remain unsuitable.
    fn update_spread_points(&self, class: &mut RequestClass, fit: &FitScores) {
        let score = |(rank, host)| match class.scores.get(rank) {
            UNSUITABLE => UNSUITABLE,
            _ => host_score(&class.base_scores, fit, Some(&self.spread), host),
        };
        let scores = self.host_order.numbers().enumerate().map(score).collect();
        class.scores = ScoreIndex::new(scores);
    }

    fn update_fit_scores(&self, fit: &mut FitScores) {
        match self.change_log.changes_after(fit.last_seen_change) {
            Some(changed) if fit.last_seen_change > 0 => {
                for change in changed {
                    let score =
                        fit.resource_score(&self.cluster, &self.free_resources, change.host());
                    fit.set_score(change.host(), score);
                }
            }
            _ => {
                let hosts = 0..self.host_entries.len();
                fit.scores = hosts
                    .map(|host| fit.resource_score(&self.cluster, &self.free_resources, host))
                    .collect();
            }
        }
        fit.last_seen_change = self.change_log.last_number();
    }

    /// Returns the score of the host at index `host_index` for properties that depend neither on other pods nor on
    /// resources; [`UNSUITABLE`] if the host is unsuitable for the class.
    fn base_score(&self, host_index: usize, class: &RequestClass) -> Score {
        let Some(entry) = self.host_entries.get(host_index).and_then(Option::as_ref) else {
            return UNSUITABLE;
        };
        let (host, needs) = (HostId::from_index(host_index), &class.vm_requirements);
        if !self.cluster.allows_by_host(&class.rules, host)
            || needs.host_rejection(&entry.report).is_some()
        {
            return UNSUITABLE;
        }
        let mut points =
            score::host_preference_points(&self.cluster.host_preference(&class.rules, host));
        if needs.is_vm && entry.class != needs.class {
            points += score::OTHER_CLASS_PENALTY;
        }
        if needs.class == Class::Density && entry.report.is_ksm_enabled != Some(true) {
            points += score::NO_PAGE_MERGING_PENALTY;
        }
        score::score_from_points(points)
    }
}

/// Returns the score of a host for a class, computed from the class's base scores and fit scores. `spread` is `None`
/// unless the class consists of control-plane VMs.
fn host_score(
    base_scores: &[Score],
    fit: &FitScores,
    spread: Option<&SpreadIndex>,
    host: usize,
) -> Score {
    let score = sum_scores(base_scores, &fit.scores, host);
    match spread {
        Some(spread) if score != UNSUITABLE => {
            score.saturating_add(spread.points(host)).min(UNSUITABLE - 1)
        }
        _ => score,
    }
}

/// Returns the sum of a host's base score and resource score; [`UNSUITABLE`] if either score is [`UNSUITABLE`].
fn sum_scores(base_scores: &[Score], resource_scores: &[Score], host: usize) -> Score {
    let score_of = |scores: &[Score]| scores.get(host).copied().unwrap_or(UNSUITABLE);
    let (base, resource) = (score_of(base_scores), score_of(resource_scores));
    if base == UNSUITABLE || resource == UNSUITABLE {
        UNSUITABLE
    } else {
        base.saturating_add(resource).min(UNSUITABLE - 1)
    }
}
