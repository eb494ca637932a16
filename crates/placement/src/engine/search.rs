//! Search of the best host for a request: hosts are ordered by score, then checked against the rules that depend on
//! other pods, then against the kubelet's admission.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use berth_api::Class;
use fixedbitset::FixedBitSet;

use super::request::Request;
use super::request_classes::{FitScores, RequestClass, RequestClassKey};
use super::score;
use super::scores::{Score, Scores, Scratch, UNSUITABLE};
use super::state::Engine;
use crate::rules::HostId;
use berth_kubelet_admission::Admission;

/// Maximum number of hosts that wait for comparison if preferences that depend on other pods may change the order.
const MAX_COMPARED: usize = 64;

/// Points and index of a compared host.
type Compared = Reverse<(i64, usize)>;

impl Engine {
    /// Returns the best host for a pod, without assuming the pod on it.
    pub fn choose(&mut self, request: &Request, among: Option<&[HostId]>) -> Option<HostId> {
        Some(self.choose_with_admission(request, among)?.0)
    }

    /// Returns the best host for a pod, and the resources that its kubelet would allocate.
    pub(super) fn choose_with_admission(
        &mut self,
        request: &Request,
        among: Option<&[HostId]>,
    ) -> Option<(HostId, Admission)> {
        let mut classes = std::mem::take(&mut self.classes);
        let mut scratch = std::mem::take(&mut self.scratch);
        let (mut at, mut key) = (request.class, Arc::clone(&request.key));
        if classes.get_mut(at, &key).is_none() {
            // The class was evicted because other classes were used more recently; create it again.
            (at, key) = classes.find(RequestClassKey::clone(&key), &request.rules);
        }
        let found = classes.get_mut(at, &key).and_then(|(class, fit)| {
            self.refresh(class, fit);
            let mut refused = Vec::new();
            let found = self.search(request, &mut class.scores, among, &mut scratch, &mut refused);
            // The kubelets of these hosts would reject the pod, although their scores suggest otherwise. The hosts
            // are excluded until they change.
            for host in refused {
                class.scores.set(host, UNSUITABLE);
            }
            found
        });
        self.classes = classes;
        self.scratch = scratch;
        found
    }

    fn search(
        &self,
        request: &Request,
        scores: &mut Scores,
        among: Option<&[HostId]>,
        scratch: &mut Scratch,
        refused: &mut Vec<usize>,
    ) -> Option<(HostId, Admission)> {
        let filter = self.counts.filter_for(&request.rules);
        let preference_scores = filter.preference_scores();
        let mut take = |at: usize| {
            let admission = self.taken(request, HostId::at(at));
            if admission.is_none() {
                refused.push(at);
            }
            admission.map(|admission| (HostId::at(at), admission))
        };
        let few = among.filter(|among| among.len() * 8 < self.entries.len());
        let mut listed: Vec<(Score, usize)> = Vec::new();
        if let Some(few) = few {
            let score = |host: &HostId| (scores.get(host.index()), host.index());
            listed = few.iter().map(score).filter(|(score, _)| *score != UNSUITABLE).collect();
            listed.sort_unstable();
            listed.dedup();
        }
        let allowed = few.map_or(among, |_| None).map(|among| {
            let mut allowed = FixedBitSet::with_capacity(self.entries.len());
            allowed.extend(
                among.iter().map(|host| host.index()).filter(|at| *at < self.entries.len()),
            );
            allowed
        });
        let mut listed = listed.into_iter();
        let mut ascending = match few {
            Some(_) => None,
            None => Some(scores.ascending(scratch)),
        };
        let mut waiting: BinaryHeap<Compared> = BinaryHeap::new();
        let all = std::iter::from_fn(|| match &mut ascending {
            Some(ascending) => ascending.next(),
            None => listed.next(),
        });
        let is_out = |at: usize| {
            allowed.as_ref().is_some_and(|allowed| !allowed.contains(at))
                || !filter.allows_by_pods(HostId::at(at))
        };
        for (score, at) in all {
            let Some(preference_scores) = &preference_scores else {
                if !is_out(at)
                    && let Some(found) = take(at)
                {
                    return Some(found);
                }
                continue;
            };
            let least = i64::from(score) + score::minimum_pod_points(preference_scores);
            while let Some(Reverse((points, best))) = waiting.peek().copied()
                && (points <= least || waiting.len() >= MAX_COMPARED)
            {
                waiting.pop();
                if let Some(found) = take(best) {
                    return Some(found);
                }
            }
            if !is_out(at) {
                let points = i64::from(score) + score::pods(&preference_scores.at(HostId::at(at)));
                waiting.push(Reverse((points, at)));
            }
        }
        while let Some(Reverse((_, best))) = waiting.pop() {
            if let Some(found) = take(best) {
                return Some(found);
            }
        }
        None
    }

    fn taken(&self, request: &Request, host: HostId) -> Option<Admission> {
        let entry = self.at(host)?;
        entry.evaluate(&entry.state, request.uid(), request).ok()
    }

    /// Updates the class's scores of all hosts that have changed since the class was last used.
    fn refresh(&self, class: &mut RequestClass, fit: &mut FitScores) {
        self.refresh_fit(fit);
        match self.changes.since(class.seen) {
            Some(changed) if class.seen > 0 => {
                for change in changed {
                    let host = change.host();
                    if change.is_host_change {
                        if class.base.len() <= host {
                            class.base.resize(host + 1, UNSUITABLE);
                        }
                        let base = self.base_points(host, class);
                        class.base[host] = base;
                    }
                    class.scores.set(host, sum_points(&class.base, &fit.left, host));
                }
            }
            _ => {
                let hosts = 0..self.entries.len();
                class.base = hosts.clone().map(|host| self.base_points(host, class)).collect();
                let scores = hosts.map(|host| sum_points(&class.base, &fit.left, host));
                class.scores = Scores::new(scores.collect());
            }
        }
        class.seen = self.changes.last();
    }

    fn refresh_fit(&self, fit: &mut FitScores) {
        match self.changes.since(fit.seen) {
            Some(changed) if fit.seen > 0 => {
                for change in changed {
                    let left = fit.resource_points(&self.counts, &self.free, change.host());
                    fit.set_points(change.host(), left);
                }
            }
            _ => {
                let hosts = 0..self.entries.len();
                fit.left =
                    hosts.map(|host| fit.resource_points(&self.counts, &self.free, host)).collect();
            }
        }
        fit.seen = self.changes.last();
    }

    /// Returns the points of the host at index `at` that depend neither on other pods nor on resources;
    /// [`UNSUITABLE`] if the host is unsuitable for the class.
    fn base_points(&self, at: usize, class: &RequestClass) -> Score {
        let Some(entry) = self.entries.get(at).and_then(Option::as_ref) else { return UNSUITABLE };
        let (host, needs) = (HostId::at(at), &class.needs);
        if !self.counts.allows_by_host(&class.rules, host)
            || needs.host_refusal(&entry.facts).is_some()
        {
            return UNSUITABLE;
        }
        let mut points = score::preferences(&self.counts.preference(&class.rules, host));
        if needs.is_vm && entry.class != needs.class {
            points += score::OTHER_CLASS;
        }
        if needs.class == Class::Density && entry.facts.merges_pages != Some(true) {
            points += score::NO_MERGING;
        }
        score::score(points)
    }
}

/// Returns the sum of a host's points in `base` and `left`; [`UNSUITABLE`] if either value is [`UNSUITABLE`].
fn sum_points(base: &[Score], left: &[Score], host: usize) -> Score {
    let of = |points: &[Score]| points.get(host).copied().unwrap_or(UNSUITABLE);
    let (base, left) = (of(base), of(left));
    if base == UNSUITABLE || left == UNSUITABLE {
        UNSUITABLE
    } else {
        base.saturating_add(left).min(UNSUITABLE - 1)
    }
}
