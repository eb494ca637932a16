//! The best host for one request: by score, then by what other pods say, then by what the kubelet says.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use berth_api::Class;

use super::free::Free;
use super::scores::{NEVER, Score, Scores, Scratch};
use super::shapes::{Fit, Key, Shape};
use super::{Engine, Request, score};
use crate::rules::{Counts, HostId};
use berth_kubelet_admission::Admission;

/// Hosts that are compared where preferences by pods may change the order.
const COMPARED: usize = 64;

/// A host that is compared with others: points, and as which one it came.
type Compared = Reverse<(i64, usize)>;

impl Engine {
    /// The best host for a pod, without booking it.
    pub fn choose(&mut self, request: &Request, among: Option<&[HostId]>) -> Option<HostId> {
        Some(self.chosen(request, among)?.0)
    }

    /// The best host for a pod, and what the kubelet would give it there.
    pub(super) fn chosen(
        &mut self,
        request: &Request,
        among: Option<&[HostId]>,
    ) -> Option<(HostId, Admission)> {
        let mut shapes = std::mem::take(&mut self.shapes);
        let mut scratch = std::mem::take(&mut self.scratch);
        let (mut at, mut key) = (request.shape, Arc::clone(&request.key));
        if shapes.get_mut(at, &key).is_none() {
            // The class had not been asked for so long that others took its place.
            (at, key) = shapes.find(Key::clone(&key), &request.rules);
        }
        let found = shapes.get_mut(at, &key).and_then(|(shape, fit)| {
            self.catch_up(shape, fit);
            let mut refused = Vec::new();
            let found = self.search(request, &mut shape.scores, among, &mut scratch, &mut refused);
            // They looked right and are not: they stay out until something changes there.
            for host in refused {
                shape.scores.set(host, NEVER);
            }
            found
        });
        self.shapes = shapes;
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
        let question = self.counts.ask(&request.rules);
        let leanings = question.leanings();
        let mut take = |at: usize| {
            let admission = self.taken(request, HostId::at(at));
            if admission.is_none() {
                refused.push(at);
            }
            admission.map(|admission| (HostId::at(at), admission))
        };
        let few = among.filter(|among| among.len() * 8 < self.places.len());
        let mut listed: Vec<(Score, usize)> = Vec::new();
        if let Some(few) = few {
            let score = |host: &HostId| (scores.get(host.index()), host.index());
            listed = few.iter().map(score).filter(|(score, _)| *score != NEVER).collect();
            listed.sort_unstable();
            listed.dedup();
        }
        let allowed =
            few.map_or(among, |_| None).map(|among| Allowed::new(among, self.places.len()));
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
            allowed.as_ref().is_some_and(|allowed| !allowed.has(at))
                || !question.allows_by_pods(HostId::at(at))
        };
        for (score, at) in all {
            let Some(leanings) = &leanings else {
                if !is_out(at)
                    && let Some(found) = take(at)
                {
                    return Some(found);
                }
                continue;
            };
            let least = i64::from(score) + score::least(leanings);
            while let Some(Reverse((points, best))) = waiting.peek().copied()
                && (points <= least || waiting.len() >= COMPARED)
            {
                waiting.pop();
                if let Some(found) = take(best) {
                    return Some(found);
                }
            }
            if !is_out(at) {
                let points = i64::from(score) + score::pods(&leanings.at(HostId::at(at)));
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
        let place = self.at(host)?;
        place.judged(&place.state, request.uid(), request).ok()
    }

    /// Looks again at the hosts that have changed since this class was last asked for.
    fn catch_up(&self, shape: &mut Shape, fit: &mut Fit) {
        self.catch_up_fit(fit);
        match self.changes.since(shape.seen) {
            Some(changed) if shape.seen > 0 => {
                for change in changed {
                    let host = change.host();
                    if change.is_of_host {
                        if shape.base.len() <= host {
                            shape.base.resize(host + 1, NEVER);
                        }
                        let base = self.base(host, shape);
                        shape.base[host] = base;
                    }
                    shape.scores.set(host, together(&shape.base, &fit.left, host));
                }
            }
            _ => {
                let hosts = 0..self.places.len();
                shape.base = hosts.clone().map(|host| self.base(host, shape)).collect();
                let scores = hosts.map(|host| together(&shape.base, &fit.left, host));
                shape.scores = Scores::new(scores.collect());
            }
        }
        shape.seen = self.changes.last();
    }

    fn catch_up_fit(&self, fit: &mut Fit) {
        match self.changes.since(fit.seen) {
            Some(changed) if fit.seen > 0 => {
                for change in changed {
                    let left = left(&self.counts, &self.free, change.host(), fit);
                    fit.put(change.host(), left);
                }
            }
            _ => {
                let hosts = 0..self.places.len();
                fit.left = hosts.map(|host| left(&self.counts, &self.free, host, fit)).collect();
            }
        }
        fit.seen = self.changes.last();
    }

    /// Points that pods do not change.
    fn base(&self, at: usize, shape: &Shape) -> Score {
        let Some(place) = self.places.get(at).and_then(Option::as_ref) else { return NEVER };
        let (host, needs) = (HostId::at(at), &shape.needs);
        if !self.counts.allows_by_host(&shape.rules, host) || needs.unmet(&place.facts).is_some() {
            return NEVER;
        }
        let mut points = score::preferences(&self.counts.preference(&shape.rules, host));
        if needs.is_vm && place.class != needs.class {
            points += score::OTHER_CLASS;
        }
        if needs.class == Class::Density && place.facts.merges_pages != Some(true) {
            points += score::NO_MERGING;
        }
        score::score(points)
    }
}

/// Points for what would be left, [`NEVER`] if there is no room.
pub(super) fn left(counts: &Counts, free: &[Free], at: usize, fit: &Fit) -> Score {
    let left = free.get(at).and_then(|free| score::left_over(free, &fit.wants));
    match left {
        Some(left) if counts.has_room(&fit.rules, HostId::at(at)) => score::score(left),
        _ => NEVER,
    }
}

/// The score of a host, from what pods do not change and what they do.
fn together(base: &[Score], left: &[Score], host: usize) -> Score {
    let of = |points: &[Score]| points.get(host).copied().unwrap_or(NEVER);
    let (base, left) = (of(base), of(left));
    if base == NEVER || left == NEVER { NEVER } else { base.saturating_add(left).min(NEVER - 1) }
}

/// Hosts to choose among, as bits.
struct Allowed(Vec<u64>);

impl Allowed {
    fn new(among: &[HostId], hosts: usize) -> Self {
        let mut words = vec![0_u64; hosts.div_ceil(64)];
        for host in among {
            if let Some(word) = words.get_mut(host.index() / 64) {
                *word |= 1 << (host.index() % 64);
            }
        }
        Self(words)
    }

    fn has(&self, at: usize) -> bool {
        self.0.get(at / 64).is_some_and(|word| word >> (at % 64) & 1 == 1)
    }
}
