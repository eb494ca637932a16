//! Why hosts refuse a pod, remembered: one that waits is asked about again and again, as are others of its kind, and
//! meanwhile few hosts have changed.

use std::borrow::Cow;
use std::collections::HashMap;

use berth_placement::engine::{Engine, Request, RequestClassKey};
use berth_placement::rules::HostId;

/// Where the engine finds no one reason.
const FULL: &str = "node(s) had too little room for it";
/// Kinds that are remembered; with more all are forgotten.
const KINDS: usize = 64;

/// Reasons in few words, by kinds of pods.
#[derive(Debug, Default)]
pub(super) struct Refusals(HashMap<RequestClassKey, Known>);

/// Reasons of hosts for one kind.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Up to which change of hosts they are right.
    seen: u64,
    reasons: Vec<Option<Cow<'static, str>>>,
}

impl Refusals {
    /// What is known for a pod; a kind that other pods matter to is looked at anew each time.
    pub(super) fn take(&mut self, engine: &Engine, request: &Request) -> Known {
        let known = engine.class_key(request).and_then(|kind| self.0.remove(kind));
        let mut known = known.unwrap_or_default();
        match engine.changed_since(known.seen) {
            Some(changed) => {
                for host in changed {
                    if let Some(reason) = known.reasons.get_mut(host.index()) {
                        *reason = None;
                    }
                }
            }
            None => known.reasons.clear(),
        }
        known.seen = engine.last_change();
        known
    }

    /// Remembers it.
    pub(super) fn keep(&mut self, engine: &Engine, request: &Request, known: Known) {
        let Some(kind) = engine.class_key(request) else { return };
        if self.0.len() >= KINDS {
            self.0.clear();
        }
        self.0.insert(kind.clone(), known);
    }
}

impl Known {
    /// Why a host refuses.
    pub(super) fn why(
        &mut self,
        engine: &Engine,
        request: &Request,
        host: HostId,
    ) -> Cow<'static, str> {
        if self.reasons.len() <= host.index() {
            self.reasons.resize(host.index() + 1, None);
        }
        let look = || {
            let reasons = engine.why_not(request, host);
            reasons.first().map_or(Cow::Borrowed(FULL), |reason| reason.short())
        };
        match self.reasons.get_mut(host.index()) {
            Some(known) => known.get_or_insert_with(look).clone(),
            None => look(),
        }
    }
}
