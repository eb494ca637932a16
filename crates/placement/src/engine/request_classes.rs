//! Classes of requests that are equal for every host: their containers have equal requests, and their rules that do
//! not depend on other pods are equal. Each class stores a score of every host.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use super::change_log::ChangeLog;
use super::free_resources::{FreeResources, ZoneRequest};
use super::score;
use super::score_index::{Score, ScoreIndex, UNSUITABLE};
use super::vm_requirements::VmRequirements;
use crate::rules::{ClusterState, HostId, HostRules, Rules};
use berth_kubelet_admission::pod::{Container, Pod};

/// Key of a request class: the requests of the containers, the rules that do not depend on other pods, the requirements
/// of the VM, and whether the VM is a control-plane VM.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RequestClassKey {
    requests: ContainerRequests,
    vm_requirements: VmRequirements,
    rules: HostRules,
    is_control_plane: bool,
}

impl RequestClassKey {
    pub(crate) fn new(
        vm_requirements: &VmRequirements,
        rules: &Rules,
        is_control_plane: bool,
    ) -> Self {
        let requests = ContainerRequests {
            pod: Arc::clone(rules.containers()),
            requests_hash: rules.requests_hash(),
        };
        Self {
            requests,
            vm_requirements: vm_requirements.clone(),
            rules: rules.host_rules(),
            is_control_plane,
        }
    }

    pub(crate) const fn is_control_plane(&self) -> bool {
        self.is_control_plane
    }
}

/// Requests and limits of a pod's containers. The names of the containers are not compared. Limits are included because
/// they determine the QoS class, and thus whether a container gets exclusive CPUs.
#[derive(Clone, Debug)]
struct ContainerRequests {
    pod: Arc<Pod>,
    /// Hash of the requests: equal requests have the same hash.
    requests_hash: u64,
}

impl PartialEq for ContainerRequests {
    fn eq(&self, other: &Self) -> bool {
        let (mine, theirs) = (&self.pod, &other.pod);
        let is_equal = || {
            mine.overhead == theirs.overhead
                && have_equal_requests(&mine.containers, &theirs.containers)
                && have_equal_requests(&mine.init_containers, &theirs.init_containers)
        };
        self.requests_hash == other.requests_hash && (Arc::ptr_eq(mine, theirs) || is_equal())
    }
}

impl Eq for ContainerRequests {}

fn have_equal_requests(mine: &[Container], theirs: &[Container]) -> bool {
    let is_equal = |(mine, theirs): (&Container, &Container)| {
        mine.is_sidecar == theirs.is_sidecar
            && mine.requests == theirs.requests
            && mine.limits == theirs.limits
    };
    mine.len() == theirs.len() && mine.iter().zip(theirs).all(is_equal)
}

impl Hash for ContainerRequests {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.requests_hash.hash(state);
    }
}

#[derive(Debug)]
pub(crate) struct RequestClass {
    key: Arc<RequestClassKey>,
    /// Rules of the first request of the class. The rules that do not depend on other pods are the same for all
    /// requests of the class.
    pub(crate) rules: Arc<Rules>,
    pub(crate) vm_requirements: VmRequirements,
    /// Score of each host, by rank ([`HostOrder`](super::host_order::HostOrder)).
    pub(crate) scores: ScoreIndex,
    /// Score of each host for its own properties, without regard to pods and resources, indexed by the host's number;
    /// [`UNSUITABLE`] if the host is unsuitable for the class.
    pub(crate) base_scores: Vec<Score>,
    /// Number of the newest change ([`ChangeLog`]) that `scores` and `base_scores` include.
    pub(crate) last_seen_change: u64,
    /// Generation of the [`SpreadIndex`](super::spread_index::SpreadIndex) that `scores` include; used only for classes
    /// of control-plane VMs.
    pub(crate) spread_generation: u64,
    /// Index in `RequestClasses::fit_scores` of the fit scores that the class uses.
    fit_index: usize,
    /// Value that `RequestClasses::use_counter` had when the class was last used.
    last_used: u64,
}

/// Scores of hosts for the resources that would be left free after the placement of containers with certain requests.
/// All classes with equal requests share these scores, so that a change of a host is evaluated once for all these
/// classes: hosts change far more often than a class is used again.
#[derive(Debug)]
pub(crate) struct FitScores {
    requests: ContainerRequests,
    /// Rules of the first request that used these scores. Only the requested amounts are read, which are equal for all
    /// requests.
    pub(crate) rules: Arc<Rules>,
    pub(crate) zone_request: ZoneRequest,
    /// Score of each host for the resources that would be left free; [`UNSUITABLE`] if the host has too few resources.
    pub(crate) scores: Vec<Score>,
    /// Number of the newest change ([`ChangeLog`]) that `scores` includes.
    pub(crate) last_seen_change: u64,
    /// Number of classes that use these fit scores.
    class_count: usize,
}

impl RequestClass {
    pub(crate) fn is_control_plane(&self) -> bool {
        self.key.is_control_plane()
    }
}

impl FitScores {
    /// Returns the score of the host at index `host_index` for the resources that would be left free; [`UNSUITABLE`] if
    /// its free resources are insufficient.
    pub(crate) fn resource_score(
        &self,
        cluster: &ClusterState,
        free: &[FreeResources],
        host_index: usize,
    ) -> Score {
        let points =
            free.get(host_index).and_then(|free| score::resource_points(free, &self.zone_request));
        match points {
            Some(points)
                if cluster
                    .has_sufficient_resources(&self.rules, HostId::from_index(host_index)) =>
            {
                score::score_from_points(points)
            }
            _ => UNSUITABLE,
        }
    }

    pub(crate) fn set_score(&mut self, host: usize, score: Score) {
        if self.scores.len() <= host {
            self.scores.resize(host + 1, UNSUITABLE);
        }
        self.scores[host] = score;
    }
}

/// The stored request classes, and their fit scores.
#[derive(Debug, Default)]
pub(crate) struct RequestClasses {
    classes: Vec<RequestClass>,
    indexes_by_key: HashMap<Arc<RequestClassKey>, usize>,
    fit_scores: Vec<FitScores>,
    indexes_by_requests: HashMap<ContainerRequests, usize>,
    /// Indexes in `fit_scores` of the most recently used fit scores. These are updated at every change of a host, while
    /// the changed host is in the CPU's cache.
    recent_fit_indexes: Vec<usize>,
    use_counter: u64,
}

/// Maximum number of classes. It bounds the memory, because each class needs four to six bytes per host. At the
/// maximum, a new class evicts the least recently used class.
const MAX_CLASSES: usize = 1024;
/// Maximum number of fit scores that [`RequestClasses::update_recent_fit_scores`] updates per change.
const MAX_RECENT_FIT_SCORES: usize = 32;

impl RequestClasses {
    /// Returns the index and the key of the class of a request. Adds the class if it is missing; a new class has no
    /// scores yet.
    pub(crate) fn find_or_insert(
        &mut self,
        key: RequestClassKey,
        rules: &Arc<Rules>,
    ) -> (usize, Arc<RequestClassKey>) {
        self.use_counter += 1;
        if let Some(&at) = self.indexes_by_key.get(&key) {
            let class = &mut self.classes[at];
            class.last_used = self.use_counter;
            return (at, Arc::clone(&class.key));
        }
        let key = Arc::new(key);
        let class = RequestClass {
            key: Arc::clone(&key),
            rules: Arc::clone(rules),
            vm_requirements: key.vm_requirements.clone(),
            scores: ScoreIndex::default(),
            base_scores: Vec::new(),
            last_seen_change: 0,
            spread_generation: 0,
            fit_index: self.fit_scores_index(&key.requests, rules),
            last_used: self.use_counter,
        };
        let at = if self.classes.len() < MAX_CLASSES {
            self.classes.push(class);
            self.classes.len() - 1
        } else {
            let oldest = self.classes.iter().enumerate().min_by_key(|(_, class)| class.last_used);
            let at = oldest.map_or(0, |(at, _)| at);
            let before = std::mem::replace(&mut self.classes[at], class);
            self.indexes_by_key.remove(&before.key);
            self.fit_scores[before.fit_index].class_count -= 1;
            at
        };
        self.indexes_by_key.insert(Arc::clone(&key), at);
        (at, key)
    }

    /// Returns the index of the fit scores for these requests, and increments the `class_count` of the fit scores. If
    /// there are no fit scores for these requests, reuses an entry of `fit_scores` that no class uses, or adds an
    /// entry.
    fn fit_scores_index(&mut self, requests: &ContainerRequests, rules: &Arc<Rules>) -> usize {
        if let Some(&at) = self.indexes_by_requests.get(requests) {
            self.fit_scores[at].class_count += 1;
            return at;
        }
        let new = FitScores {
            requests: requests.clone(),
            rules: Arc::clone(rules),
            zone_request: ZoneRequest::from_pod(&requests.pod),
            scores: Vec::new(),
            last_seen_change: 0,
            class_count: 1,
        };
        let at = if let Some(at) = self.fit_scores.iter().position(|fit| fit.class_count == 0) {
            let before = std::mem::replace(&mut self.fit_scores[at], new);
            self.indexes_by_requests.remove(&before.requests);
            at
        } else {
            self.fit_scores.push(new);
            self.fit_scores.len() - 1
        };
        self.indexes_by_requests.insert(requests.clone(), at);
        at
    }

    /// Returns the class at `index` and its fit scores; `None` if another class was stored at this index meanwhile.
    pub(crate) fn get_mut(
        &mut self,
        index: usize,
        key: &Arc<RequestClassKey>,
    ) -> Option<(&mut RequestClass, &mut FitScores)> {
        self.use_counter += 1;
        let class = self.classes.get_mut(index)?;
        if !Arc::ptr_eq(&class.key, key) && class.key != *key {
            return None;
        }
        class.last_used = self.use_counter;
        if !self.recent_fit_indexes.contains(&class.fit_index) {
            if self.recent_fit_indexes.len() >= MAX_RECENT_FIT_SCORES {
                self.recent_fit_indexes.remove(0);
            }
            self.recent_fit_indexes.push(class.fit_index);
        }
        let fit = self.fit_scores.get_mut(class.fit_index)?;
        Some((class, fit))
    }

    /// Invalidates the scores of all classes, because the ranks of hosts have changed.
    pub(crate) fn reset_scores(&mut self) {
        for class in &mut self.classes {
            class.last_seen_change = 0;
        }
    }

    /// Updates the recently used fit scores for the host that changed last, but only fit scores that already include
    /// all earlier changes. All other fit scores are updated when they are used.
    pub(crate) fn update_recent_fit_scores(
        &mut self,
        changes: &ChangeLog,
        compute_score: impl Fn(&FitScores) -> Score,
    ) {
        let Some(host) = changes.newest_host() else { return };
        for at in &self.recent_fit_indexes {
            if let Some(fit) = self.fit_scores.get_mut(*at)
                && fit.last_seen_change > 0
                && fit.last_seen_change + 1 == changes.last_number()
            {
                let score = compute_score(fit);
                fit.set_score(host, score);
                fit.last_seen_change = changes.last_number();
            }
        }
    }
}
