//! Cache of the reasons why hosts refuse a pod. The cache saves time because `filter` is called repeatedly for the same
//! waiting pod and for other pods of its request class, and few hosts change between these calls.

use std::borrow::Cow;
use std::collections::HashMap;

use berth_placement::engine::{Engine, Request, RequestClassKey};
use berth_placement::rules::HostId;

/// Reason that is returned if the engine does not choose a host although it finds no reason against the host.
const NO_SINGLE_REASON: &str = "node(s) had insufficient free resources for the pod";
/// Maximum number of request classes in the cache. When a class is inserted into a full cache, all others are removed.
const MAX_CLASSES: usize = 64;

/// Short reasons why hosts refuse pods, by request class.
#[derive(Debug, Default)]
pub(super) struct RefusalCache(HashMap<RequestClassKey, ClassRefusalReasons>);

/// Reasons why hosts refuse the pods of one request class.
#[derive(Debug, Default)]
pub(super) struct ClassRefusalReasons {
    /// Sequence number of the last host change that the reasons reflect.
    last_change: u64,
    reasons: Vec<Option<Cow<'static, str>>>,
}

impl RefusalCache {
    /// Removes the reasons for the pod's request class from the cache and returns those that are still valid: the
    /// reasons of hosts that have changed are dropped. A pod whose rules depend on other pods has no request class, so
    /// nothing is cached for such a pod.
    pub(super) fn take_reasons(
        &mut self,
        engine: &Engine,
        request: &Request,
    ) -> ClassRefusalReasons {
        let cached = engine.class_key(request).and_then(|class| self.0.remove(class));
        let mut cached = cached.unwrap_or_default();
        match engine.hosts_changed_since(cached.last_change) {
            Some(changed) => {
                for host in changed {
                    if let Some(reason) = cached.reasons.get_mut(host.index()) {
                        *reason = None;
                    }
                }
            }
            None => cached.reasons.clear(),
        }
        cached.last_change = engine.last_change_number();
        cached
    }

    pub(super) fn insert(
        &mut self,
        engine: &Engine,
        request: &Request,
        refusals: ClassRefusalReasons,
    ) {
        let Some(class) = engine.class_key(request) else { return };
        if self.0.len() >= MAX_CLASSES {
            self.0.clear();
        }
        self.0.insert(class.clone(), refusals);
    }
}

impl ClassRefusalReasons {
    /// Returns the reason why a host refuses the pod: the cached reason, or else the first reason that the engine
    /// finds.
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
            let reasons = engine.rejection_reasons(request, host);
            reasons.first().map_or(Cow::Borrowed(NO_SINGLE_REASON), |reason| reason.summary())
        };
        match self.reasons.get_mut(host.index()) {
            Some(cached) => cached.get_or_insert_with(compute).clone(),
            None => compute(),
        }
    }
}
