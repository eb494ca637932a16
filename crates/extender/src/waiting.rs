//! Pods that fit nowhere when they were asked about, and what has changed since: whom to wake, and by which host.
//!
//! The scheduler looks again at a pod when an event of Kubernetes may have cured it. What a report says is none, so it is
//! told when one of them would fit now; once for each refusal, and only then.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use berth_placement::engine::{Engine, Request, RequestClassKey};
use berth_placement::rules::HostId;

/// A pod that waits.
#[derive(Clone, Debug)]
struct Waits {
    request: Request,
    /// The scheduler was told since it was refused.
    is_woken: bool,
    /// Nobody has looked at all hosts for it since this turn.
    unlooked: Option<u64>,
    /// A host that is held for it: room there is not for the engine to see.
    held: Option<Arc<str>>,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    pods: BTreeMap<Arc<str>, Waits>,
    /// Hosts that may have more room than before.
    stirred: BTreeSet<HostId>,
    /// Which look the next one is.
    turn: u64,
}

/// Changed hosts that are looked at one by one; with more the engine's own order is faster.
const FEW: usize = 64;
/// Kinds of pods that are looked at at a time; the others have their turn after them.
const KINDS: usize = 64;

impl Waiting {
    /// All hosts were looked at for it, and none takes it.
    pub(super) fn refused(&mut self, request: &Request, held: Option<Arc<str>>) {
        self.add(request, None, held);
    }

    /// It waits, and nobody has looked.
    pub(super) fn unlooked(&mut self, request: &Request) {
        self.add(request, Some(self.turn), None);
    }

    fn add(&mut self, request: &Request, unlooked: Option<u64>, held: Option<Arc<str>>) {
        let waits = Waits { request: request.clone(), is_woken: false, unlooked, held };
        self.pods.insert(request.uid().into(), waits);
    }

    pub(super) fn has(&self, uid: &str) -> bool {
        self.pods.contains_key(uid)
    }

    pub(super) fn remove(&mut self, uid: &str) {
        self.pods.remove(uid);
    }

    pub(super) fn len(&self) -> usize {
        self.pods.len()
    }

    /// A host may have more room than before.
    pub(super) fn stir(&mut self, host: HostId) {
        if !self.pods.is_empty() {
            self.stirred.insert(host);
        }
    }

    /// Rules that count hosts may say something else now, of any host.
    pub(super) fn unlook(&mut self) {
        for waits in self.pods.values_mut() {
            waits.unlooked.get_or_insert(self.turn);
            waits.is_woken = false;
        }
    }

    /// Whether there is anything to look at.
    pub(super) fn is_stirred(&self) -> bool {
        let unlooked =
            || self.pods.values().any(|waits| waits.unlooked.is_some() && !waits.is_woken);
        !self.stirred.is_empty() || unlooked()
    }

    /// Hosts that a waiting pod fits on now. Of those that are out, if there are any, nothing is expected.
    pub(super) fn wake(
        &mut self,
        engine: &mut Engine,
        is_out: impl Fn(HostId) -> bool,
        any_out: bool,
    ) -> BTreeSet<HostId> {
        let usable = || engine.hosts().map(|(host, _)| host).filter(|host| !is_out(*host));
        let among: Option<Vec<HostId>> = any_out.then(|| usable().collect());
        let stirred = std::mem::take(&mut self.stirred);
        let mut looked: HashSet<RequestClassKey> = HashSet::new();
        let mut found: HashSet<RequestClassKey> = HashSet::new();
        let mut hosts = BTreeSet::new();
        let turn = self.turn;
        self.turn = turn.wrapping_add(1);
        let waits = |waits: &&mut Waits| !waits.is_woken;
        let (mut unlooked, others): (Vec<_>, Vec<_>) =
            self.pods.values_mut().filter(waits).partition(|waits| waits.unlooked.is_some());
        // Whoever waits for a look the longest is the first, so that each has one however much changes.
        unlooked.sort_by_key(|waits| waits.unlooked);
        let others = others.into_iter().filter(|_| !stirred.is_empty());
        for waits in unlooked.into_iter().chain(others) {
            let since = waits.unlooked.take();
            let held = waits.held.as_deref().and_then(|host| engine.host(host));
            if let Some(host) = held.filter(|host| stirred.contains(host)) {
                waits.is_woken = true;
                hosts.insert(host);
                continue;
            }
            let kind = engine.class_key(&waits.request).cloned();
            if let Some(kind) = &kind
                && looked.contains(kind)
            {
                waits.is_woken = found.contains(kind);
                continue;
            }
            if looked.len() >= KINDS {
                waits.unlooked = since.or(Some(turn));
                continue;
            }
            let host = if since.is_some() || stirred.len() > FEW {
                engine.choose(&waits.request, among.as_deref())
            } else {
                let fits = |host: &&HostId| {
                    !is_out(**host) && engine.why_not(&waits.request, **host).is_empty()
                };
                stirred.iter().find(fits).copied()
            };
            if let Some(host) = host {
                waits.is_woken = true;
                hosts.insert(host);
                found.extend(kind.clone());
            }
            looked.extend(kind);
        }
        hosts
    }
}
