//! Cache of the reasons why hosts refuse a pod: a pod that waits is filtered again and again, as are others of its request
//! class, and few hosts change in between.

use std::borrow::Cow;
use std::collections::HashMap;

use berth_placement::engine::{Engine, Request, RequestClassKey};
use berth_placement::rules::HostId;

/// Reason where the engine finds no single one.
const FULL: &str = "node(s) had too little room for it";
/// Number of request classes that are cached; with more, the cache is emptied.
const CLASSES: usize = 64;

/// Short reasons by request class.
#[derive(Debug, Default)]
pub(super) struct RefusalCache(HashMap<RequestClassKey, ClassRefusals>);

/// Reasons of hosts for one request class.
#[derive(Debug, Default)]
pub(super) struct ClassRefusals {
    /// The change of hosts up to which the reasons are right.
    last_change: u64,
    reasons: Vec<Option<Cow<'static, str>>>,
}

impl RefusalCache {
    /// Takes the reasons for a pod out of the cache, without those of hosts that have changed. For a pod whose rules
    /// count other pods there are none.
    pub(super) fn take(&mut self, engine: &Engine, request: &Request) -> ClassRefusals {
        let cached = engine.class_key(request).and_then(|class| self.0.remove(class));
        let mut cached = cached.unwrap_or_default();
        match engine.changed_since(cached.last_change) {
            Some(changed) => {
                for host in changed {
                    if let Some(reason) = cached.reasons.get_mut(host.index()) {
                        *reason = None;
                    }
                }
            }
            None => cached.reasons.clear(),
        }
        cached.last_change = engine.last_change();
        cached
    }

    pub(super) fn insert(&mut self, engine: &Engine, request: &Request, refusals: ClassRefusals) {
        let Some(class) = engine.class_key(request) else { return };
        if self.0.len() >= CLASSES {
            self.0.clear();
        }
        self.0.insert(class.clone(), refusals);
    }
}

impl ClassRefusals {
    /// Returns the reason why a host refuses the pod.
    pub(super) fn reason(
        &mut self,
        engine: &Engine,
        request: &Request,
        host: HostId,
    ) -> Cow<'static, str> {
        if self.reasons.len() <= host.index() {
            self.reasons.resize(host.index() + 1, None);
        }
        let compute = || {
            let reasons = engine.why_not(request, host);
            reasons.first().map_or(Cow::Borrowed(FULL), |reason| reason.short())
        };
        match self.reasons.get_mut(host.index()) {
            Some(cached) => cached.get_or_insert_with(compute).clone(),
            None => compute(),
        }
    }
}
