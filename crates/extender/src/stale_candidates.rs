//! Allocations that nothing uses, and the times at which they become stale. `stale_allocations` has the rule.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_placement::inventory::ReportedHost;

/// State of an allocation that nothing uses according to the report of its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Candidate {
    /// The pod exists, and its kubelet has not started it yet; or the pods are not listed yet.
    PodExists,
    /// The pod does not exist. The allocation becomes stale at `stale_at`.
    Orphan { stale_at: Instant },
    /// The allocation does not count.
    Stale,
}

/// The unused allocations in the last report of each host, by name of the host and UID of the pod.
#[derive(Debug, Default)]
pub(super) struct StaleCandidates {
    hosts: BTreeMap<Arc<str>, BTreeMap<Arc<str>, Candidate>>,
}

impl StaleCandidates {
    /// Replaces the candidates of a host with the unused allocations in its new report. An allocation that the last
    /// report listed, too, keeps its state.
    pub(super) fn read_report(&mut self, host: &str, report: &ReportedHost) {
        let before = self.hosts.remove(host).unwrap_or_default();
        let unused = report.allocations.iter().filter(|allocation| allocation.is_unused());
        let candidates: BTreeMap<Arc<str>, Candidate> = unused
            .map(|allocation| {
                let uid = allocation.uid.as_str();
                (Arc::from(uid), before.get(uid).copied().unwrap_or(Candidate::PodExists))
            })
            .collect();
        if !candidates.is_empty() {
            self.hosts.insert(host.into(), candidates);
        }
    }

    pub(super) fn remove_host(&mut self, host: &str) {
        self.hosts.remove(host);
    }

    /// Returns the names of the hosts with candidates.
    pub(super) fn host_names(&self) -> Vec<Arc<str>> {
        self.hosts.keys().cloned().collect()
    }

    pub(super) fn is_stale(&self, host: &str, uid: &str) -> bool {
        let candidate = self.hosts.get(host).and_then(|candidates| candidates.get(uid));
        candidate == Some(&Candidate::Stale)
    }

    /// Returns true if an allocation of the host is going to become stale.
    pub(super) fn has_orphans(&self, host: &str) -> bool {
        let mut candidates = self.hosts.get(host).into_iter().flat_map(BTreeMap::values);
        candidates.any(|candidate| matches!(candidate, Candidate::Orphan { .. }))
    }

    /// Updates the candidates of a host, and returns the UIDs of those that have become stale. `orphan_delay` returns
    /// the time after which the allocation of a pod becomes stale, and `None` for a pod that exists.
    pub(super) fn update(
        &mut self,
        host: &str,
        now: Instant,
        orphan_delay: impl Fn(&str) -> Option<Duration>,
    ) -> Vec<Arc<str>> {
        let mut stale_uids = Vec::new();
        for (uid, candidate) in self.hosts.get_mut(host).into_iter().flatten() {
            *candidate = match (*candidate, orphan_delay(uid)) {
                (_, None) => Candidate::PodExists,
                (Candidate::PodExists, Some(delay)) => {
                    Candidate::Orphan { stale_at: now.checked_add(delay).unwrap_or(now) }
                }
                (Candidate::Orphan { stale_at }, Some(_)) if stale_at <= now => {
                    stale_uids.push(Arc::clone(uid));
                    Candidate::Stale
                }
                (unchanged, Some(_)) => unchanged,
            };
        }
        stale_uids
    }
}
