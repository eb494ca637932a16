//! Classes of requests that are equal for every host: their containers have equal requests, and their rules that do
//! not depend on other pods are equal. Each class stores a score of every host.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use super::changes::Changes;
use super::free::{FreeResources, ZoneRequest};
use super::needs::Needs;
use super::score;
use super::scores::{Score, Scores, UNSUITABLE};
use crate::rules::{Counts, HostId, HostRules, Rules};
use berth_kubelet_admission::pod::{Container, Pod};

/// Key of a request class: the requests of the containers, the rules that do not depend on other pods, and the
/// requirements of the VM.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RequestClassKey {
    requests: ContainerRequests,
    needs: Needs,
    rules: HostRules,
}

impl RequestClassKey {
    pub(crate) fn new(needs: &Needs, rules: &Rules) -> Self {
        let requests = ContainerRequests {
            pod: Arc::clone(rules.containers()),
            number: rules.hash_of_requests(),
        };
        Self { requests, needs: needs.clone(), rules: rules.of_hosts() }
    }
}

/// Requests and limits of containers; the names of the containers are not compared. Limits are included because they
/// determine the QoS class, and thus whether a container gets exclusive CPUs.
#[derive(Clone, Debug)]
struct ContainerRequests {
    pod: Arc<Pod>,
    /// Hash of the requests: equal requests have the same hash.
    number: u64,
}

impl PartialEq for ContainerRequests {
    fn eq(&self, other: &Self) -> bool {
        let (mine, theirs) = (&self.pod, &other.pod);
        let is_equal = || {
            mine.overhead == theirs.overhead
                && are_equal(&mine.containers, &theirs.containers)
                && are_equal(&mine.init_containers, &theirs.init_containers)
        };
        self.number == other.number && (Arc::ptr_eq(mine, theirs) || is_equal())
    }
}

impl Eq for ContainerRequests {}

fn are_equal(mine: &[Container], theirs: &[Container]) -> bool {
    let is_equal = |(mine, theirs): (&Container, &Container)| {
        mine.is_sidecar == theirs.is_sidecar
            && mine.requests == theirs.requests
            && mine.limits == theirs.limits
    };
    mine.len() == theirs.len() && mine.iter().zip(theirs).all(is_equal)
}

impl Hash for ContainerRequests {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.number.hash(state);
    }
}

/// A request class.
#[derive(Debug)]
pub(crate) struct RequestClass {
    key: Arc<RequestClassKey>,
    /// Rules of the first request of the class. The rules that do not depend on other pods are the same for all
    /// requests of the class.
    pub(crate) rules: Arc<Rules>,
    pub(crate) needs: Needs,
    pub(crate) scores: Scores,
    /// Points of each host for its own properties, independent of pods and resources; [`UNSUITABLE`] if the host is
    /// unsuitable for the class.
    pub(crate) base: Vec<Score>,
    /// Number of the newest change ([`Changes`]) that `scores` and `base` include.
    pub(crate) seen: u64,
    /// Index of the class's fit scores in `RequestClasses::fits`.
    fit: usize,
    /// Value of `RequestClasses::clock` when the class was last used.
    used: u64,
}

/// Scores of hosts for the resources that containers with certain requests would leave free. All classes with equal
/// requests share these scores, because hosts change far more often than a class is used again.
#[derive(Debug)]
pub(crate) struct FitScores {
    requests: ContainerRequests,
    /// Rules of the first request; the requested amounts are equal for all requests.
    pub(crate) rules: Arc<Rules>,
    pub(crate) wants: ZoneRequest,
    /// Points of each host for the resources that would be left free; [`UNSUITABLE`] if the host has too few
    /// resources.
    pub(crate) left: Vec<Score>,
    /// Number of the newest change ([`Changes`]) that `left` includes.
    pub(crate) seen: u64,
    /// Number of classes that use these fit scores.
    classes: usize,
}

impl FitScores {
    /// Returns the points of the host at index `at` for the resources that would be left free; [`UNSUITABLE`] if its
    /// free resources are insufficient.
    pub(crate) fn resource_points(
        &self,
        counts: &Counts,
        free: &[FreeResources],
        at: usize,
    ) -> Score {
        let left = free.get(at).and_then(|free| score::remaining_points(free, &self.wants));
        match left {
            Some(left) if counts.has_room(&self.rules, HostId::at(at)) => score::score(left),
            _ => UNSUITABLE,
        }
    }

    pub(crate) fn set_points(&mut self, host: usize, left: Score) {
        if self.left.len() <= host {
            self.left.resize(host + 1, UNSUITABLE);
        }
        self.left[host] = left;
    }
}

/// The request classes that are stored, and their fit scores.
#[derive(Debug, Default)]
pub(crate) struct RequestClasses {
    all: Vec<RequestClass>,
    by_key: HashMap<Arc<RequestClassKey>, usize>,
    fits: Vec<FitScores>,
    by_requests: HashMap<ContainerRequests, usize>,
    /// Indexes in `fits` of the most recently used fit scores. They are updated at every change, while the changed
    /// host is in the CPU's cache.
    eager: Vec<usize>,
    clock: u64,
}

/// Maximum number of classes; each costs four to six bytes per host. A further class evicts the least recently used
/// class.
const MAX_CLASSES: usize = 1024;
/// Maximum number of fit scores that [`RequestClasses::update_eager`] updates per change.
const MAX_EAGER: usize = 32;

impl RequestClasses {
    /// Returns the index and the key of the class of a request. Adds the class if it is missing; a new class has no
    /// scores yet.
    pub(crate) fn find(
        &mut self,
        key: RequestClassKey,
        rules: &Arc<Rules>,
    ) -> (usize, Arc<RequestClassKey>) {
        self.clock += 1;
        if let Some(&at) = self.by_key.get(&key) {
            let class = &mut self.all[at];
            class.used = self.clock;
            return (at, Arc::clone(&class.key));
        }
        let key = Arc::new(key);
        let class = RequestClass {
            key: Arc::clone(&key),
            rules: Arc::clone(rules),
            needs: key.needs.clone(),
            scores: Scores::default(),
            base: Vec::new(),
            seen: 0,
            fit: self.fit_scores_index(&key.requests, rules),
            used: self.clock,
        };
        let at = if self.all.len() < MAX_CLASSES {
            self.all.push(class);
            self.all.len() - 1
        } else {
            let oldest = self.all.iter().enumerate().min_by_key(|(_, class)| class.used);
            let at = oldest.map_or(0, |(at, _)| at);
            let before = std::mem::replace(&mut self.all[at], class);
            self.by_key.remove(&before.key);
            self.fits[before.fit].classes -= 1;
            at
        };
        self.by_key.insert(Arc::clone(&key), at);
        (at, key)
    }

    /// Returns the index of the fit scores for these requests, and counts one more class that uses them. Replaces fit
    /// scores that no class uses before adding an entry to `fits`.
    fn fit_scores_index(&mut self, requests: &ContainerRequests, rules: &Arc<Rules>) -> usize {
        if let Some(&at) = self.by_requests.get(requests) {
            self.fits[at].classes += 1;
            return at;
        }
        let new = FitScores {
            requests: requests.clone(),
            rules: Arc::clone(rules),
            wants: ZoneRequest::from_pod(&requests.pod),
            left: Vec::new(),
            seen: 0,
            classes: 1,
        };
        let at = if let Some(at) = self.fits.iter().position(|fit| fit.classes == 0) {
            let before = std::mem::replace(&mut self.fits[at], new);
            self.by_requests.remove(&before.requests);
            at
        } else {
            self.fits.push(new);
            self.fits.len() - 1
        };
        self.by_requests.insert(requests.clone(), at);
        at
    }

    /// Returns the class at index `at` and its fit scores; `None` if the class at this index has another key.
    pub(crate) fn get_mut(
        &mut self,
        at: usize,
        key: &Arc<RequestClassKey>,
    ) -> Option<(&mut RequestClass, &mut FitScores)> {
        self.clock += 1;
        let class = self.all.get_mut(at)?;
        if !Arc::ptr_eq(&class.key, key) && class.key != *key {
            return None;
        }
        class.used = self.clock;
        if !self.eager.contains(&class.fit) {
            if self.eager.len() >= MAX_EAGER {
                self.eager.remove(0);
            }
            self.eager.push(class.fit);
        }
        let fit = self.fits.get_mut(class.fit)?;
        Some((class, fit))
    }

    /// Updates the score of the newest changed host in those eager fit scores that already include all earlier
    /// changes. All other fit scores are updated when they are used.
    pub(crate) fn update_eager(&mut self, changes: &Changes, look: impl Fn(&FitScores) -> Score) {
        let Some(host) = changes.newest() else { return };
        for at in &self.eager {
            if let Some(fit) = self.fits.get_mut(*at)
                && fit.seen > 0
                && fit.seen + 1 == changes.last()
            {
                let left = look(fit);
                fit.set_points(host, left);
                fit.seen = changes.last();
            }
        }
    }
}
