//! Allocations of a kubelet that nothing uses, and the times at which they become stale. The module `stale_allocations`
//! documents when an allocation is stale.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_placement::inventory::ReportedHost;

/// An allocation that nothing uses: in the host's report, its pod has neither a control group nor exclusive CPUs.
#[derive(Clone, Copy, Debug)]
struct StaleCandidate {
    /// True if an earlier report showed a control group of the pod, which the kubelet has therefore removed.
    had_control_group: bool,
    state: CandidateState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CandidateState {
    /// The pod exists, but the kubelet has not started it yet. Also the state before the API server's pods are listed.
    PodExists,
    /// The pod does not exist. The allocation becomes stale at `stale_at`.
    Orphan { stale_at: Instant },
    /// The allocation is stale: it does not count as used.
    Stale,
}

/// The unused allocations in the last report of each host, by the name of the host and the UID of the pod.
#[derive(Debug, Default)]
pub(super) struct StaleCandidates {
    hosts: BTreeMap<Arc<str>, BTreeMap<Arc<str>, StaleCandidate>>,
}

impl StaleCandidates {
    /// Replaces the candidates of a host with the unused allocations in the host's new report. An allocation that was
    /// already unused in the previous report keeps its state.
    pub(super) fn read_report(
        &mut self,
        host: &str,
        last_report: Option<&ReportedHost>,
        report: &ReportedHost,
    ) {
        let before = self.hosts.remove(host).unwrap_or_default();
        let had_control_group = |uid: &str| {
            let mut last = last_report.into_iter().flat_map(|report| &report.allocations);
            last.any(|one| one.uid == uid && one.has_control_group == Some(true))
        };
        let unused = report.allocations.iter().filter(|allocation| allocation.is_unused());
        let candidates: BTreeMap<Arc<str>, StaleCandidate> = unused
            .map(|allocation| {
                let uid = allocation.uid.as_str();
                let new = || StaleCandidate {
                    had_control_group: had_control_group(uid),
                    state: CandidateState::PodExists,
                };
                (Arc::from(uid), before.get(uid).copied().unwrap_or_else(new))
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
        candidate.is_some_and(|candidate| candidate.state == CandidateState::Stale)
    }

    /// Returns true if the host has an unused allocation that is not stale yet and whose pod does not exist.
    pub(super) fn has_orphans(&self, host: &str) -> bool {
        let mut candidates = self.hosts.get(host).into_iter().flat_map(BTreeMap::values);
        candidates.any(|candidate| matches!(candidate.state, CandidateState::Orphan { .. }))
    }

    /// Updates the states of a host's candidates, and returns the UIDs of the pods whose allocations have become stale.
    /// `orphan_delay` receives the UID of a pod, and true if the kubelet has removed the pod's control group. It
    /// returns the time for which the allocation must be unused before it is stale, or `None` if the pod exists.
    pub(super) fn update(
        &mut self,
        host: &str,
        now: Instant,
        orphan_delay: impl Fn(&str, bool) -> Option<Duration>,
    ) -> Vec<Arc<str>> {
        let mut stale_uids = Vec::new();
        for (uid, candidate) in self.hosts.get_mut(host).into_iter().flatten() {
            let delay = orphan_delay(uid, candidate.had_control_group);
            candidate.state = match (candidate.state, delay) {
                (_, None) => CandidateState::PodExists,
                (CandidateState::PodExists, Some(delay)) => {
                    CandidateState::Orphan { stale_at: now.checked_add(delay).unwrap_or(now) }
                }
                (CandidateState::Orphan { stale_at }, Some(_)) if stale_at <= now => {
                    stale_uids.push(Arc::clone(uid));
                    CandidateState::Stale
                }
                (unchanged, Some(_)) => unchanged,
            };
        }
        stale_uids
    }
}
