//! Classes of requests that all hosts look the same to: what they ask for, and which hosts they may go to by rules that
//! pods do not change. Each keeps a score of every host.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use super::changes::Changes;
use super::free::Wants;
use super::needs::Needs;
use super::scores::{NEVER, Score, Scores};
use crate::rules::{HostRules, Rules};
use berth_kubelet_admission::pod::{Container, Pod};

/// What makes requests alike: what their containers ask for, and what else they need.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    asks: Asks,
    needs: Needs,
    rules: HostRules,
}

impl Key {
    pub(crate) fn new(needs: &Needs, rules: &Rules) -> Self {
        let asks = Asks { pod: Arc::clone(rules.containers()), number: rules.number_of_requests() };
        Self { asks, needs: needs.clone(), rules: rules.of_hosts() }
    }
}

/// What containers ask for, without names. Limits decide on the class of service, and so on CPUs of its own.
#[derive(Clone, Debug)]
struct Asks {
    pod: Arc<Pod>,
    /// The same for equal requests.
    number: u64,
}

impl PartialEq for Asks {
    fn eq(&self, other: &Self) -> bool {
        let (mine, theirs) = (&self.pod, &other.pod);
        let is_alike = || {
            mine.overhead == theirs.overhead
                && are_alike(&mine.containers, &theirs.containers)
                && are_alike(&mine.init_containers, &theirs.init_containers)
        };
        self.number == other.number && (Arc::ptr_eq(mine, theirs) || is_alike())
    }
}

impl Eq for Asks {}

fn are_alike(mine: &[Container], theirs: &[Container]) -> bool {
    let is_alike = |(mine, theirs): (&Container, &Container)| {
        mine.is_sidecar == theirs.is_sidecar
            && mine.requests == theirs.requests
            && mine.limits == theirs.limits
    };
    mine.len() == theirs.len() && mine.iter().zip(theirs).all(is_alike)
}

impl Hash for Asks {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.number.hash(state);
    }
}

/// One class.
#[derive(Debug)]
pub(crate) struct Shape {
    key: Arc<Key>,
    /// Of the first request of the class: for rules that pods do not change, those of all are the same.
    pub(crate) rules: Arc<Rules>,
    pub(crate) needs: Needs,
    pub(crate) scores: Scores,
    /// Points of each host that pods do not change, [`NEVER`] if it is not right for the class.
    pub(crate) base: Vec<Score>,
    /// Up to which change of hosts the scores are right.
    pub(crate) seen: u64,
    /// Which of [`Shapes::fits`].
    fit: usize,
    /// When it was last asked for.
    used: u64,
}

/// How well hosts suit what containers ask for: the same for all classes that ask for the same, as hosts change far more
/// often than the class is asked for again.
#[derive(Debug)]
pub(crate) struct Fit {
    asks: Asks,
    /// Of the first request: the amounts of all are the same.
    pub(crate) rules: Arc<Rules>,
    pub(crate) wants: Wants,
    /// Points of each host for what would be left there, [`NEVER`] if there is no room.
    pub(crate) left: Vec<Score>,
    /// Up to which change of hosts that is right.
    pub(crate) seen: u64,
    /// How many classes it is for.
    classes: usize,
}

impl Fit {
    pub(crate) fn put(&mut self, host: usize, left: Score) {
        if self.left.len() <= host {
            self.left.resize(host + 1, NEVER);
        }
        self.left[host] = left;
    }
}

/// The classes that are in use.
#[derive(Debug, Default)]
pub(crate) struct Shapes {
    all: Vec<Shape>,
    by_key: HashMap<Arc<Key>, usize>,
    fits: Vec<Fit>,
    by_asks: HashMap<Asks, usize>,
    /// Those of `fits` that are told of every change at once, as a host that has just changed is at hand.
    kept_up: Vec<usize>,
    clock: u64,
}

/// Classes that are kept; each costs four to six bytes for every host. With more, the one that was not asked for longest goes.
const MOST: usize = 1024;
/// What [`Shapes::keep_up`] does of each change at most.
const KEPT_UP: usize = 32;

impl Shapes {
    /// The class of a request, and the key that it is kept by; a new one knows no host yet.
    pub(crate) fn find(&mut self, key: Key, rules: &Arc<Rules>) -> (usize, Arc<Key>) {
        self.clock += 1;
        if let Some(&at) = self.by_key.get(&key) {
            let shape = &mut self.all[at];
            shape.used = self.clock;
            return (at, Arc::clone(&shape.key));
        }
        let key = Arc::new(key);
        let shape = Shape {
            key: Arc::clone(&key),
            rules: Arc::clone(rules),
            needs: key.needs.clone(),
            scores: Scores::default(),
            base: Vec::new(),
            seen: 0,
            fit: self.fit(&key.asks, rules),
            used: self.clock,
        };
        let at = if self.all.len() < MOST {
            self.all.push(shape);
            self.all.len() - 1
        } else {
            let oldest = self.all.iter().enumerate().min_by_key(|(_, shape)| shape.used);
            let at = oldest.map_or(0, |(at, _)| at);
            let before = std::mem::replace(&mut self.all[at], shape);
            self.by_key.remove(&before.key);
            self.fits[before.fit].classes -= 1;
            at
        };
        self.by_key.insert(Arc::clone(&key), at);
        (at, key)
    }

    /// For one more class; what is for none any more makes room.
    fn fit(&mut self, asks: &Asks, rules: &Arc<Rules>) -> usize {
        if let Some(&at) = self.by_asks.get(asks) {
            self.fits[at].classes += 1;
            return at;
        }
        let new = Fit {
            asks: asks.clone(),
            rules: Arc::clone(rules),
            wants: Wants::of(&asks.pod),
            left: Vec::new(),
            seen: 0,
            classes: 1,
        };
        let at = if let Some(at) = self.fits.iter().position(|fit| fit.classes == 0) {
            let before = std::mem::replace(&mut self.fits[at], new);
            self.by_asks.remove(&before.asks);
            at
        } else {
            self.fits.push(new);
            self.fits.len() - 1
        };
        self.by_asks.insert(asks.clone(), at);
        at
    }

    /// By place, if the class there is still the one of this key.
    pub(crate) fn get_mut(&mut self, at: usize, key: &Arc<Key>) -> Option<(&mut Shape, &mut Fit)> {
        self.clock += 1;
        let shape = self.all.get_mut(at)?;
        if !Arc::ptr_eq(&shape.key, key) && shape.key != *key {
            return None;
        }
        shape.used = self.clock;
        if !self.kept_up.contains(&shape.fit) {
            if self.kept_up.len() >= KEPT_UP {
                self.kept_up.remove(0);
            }
            self.kept_up.push(shape.fit);
        }
        let fit = self.fits.get_mut(shape.fit)?;
        Some((shape, fit))
    }

    /// Tells of a change of a host those that knew all changes before it. The others are told when they are asked for.
    pub(crate) fn keep_up(&mut self, changes: &Changes, look: impl Fn(&Fit) -> Score) {
        let Some(host) = changes.newest() else { return };
        for at in &self.kept_up {
            if let Some(fit) = self.fits.get_mut(*at)
                && fit.seen > 0
                && fit.seen + 1 == changes.last()
            {
                let left = look(fit);
                fit.put(host, left);
                fit.seen = changes.last();
            }
        }
    }
}
