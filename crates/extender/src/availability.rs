//! Availability of hosts: which hosts currently accept pods. [`super::states`] documents the transitions.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use berth_placement::rules::HostId;

use super::states::Availability;

/// Reason for a known host whose Node or InfraNode is unusable.
const UNUSABLE: &str = "node(s) had no usable agent report";
/// Reason for a host whose kubelet admits pods in an unknown order.
pub(super) const AWAITING_REPORT: &str =
    "node(s) had new pods that are missing from the agent report";
/// Reason for a host that awaits the removal of pods: the host's report still lists them, or may still list them.
const AWAITING_POD_REMOVAL: &str = "node(s) had terminating pods";

impl Availability {
    /// Returns the reason why the host does not accept a pod. `has_exclusive` is true for a pod with exclusive CPUs or
    /// huge pages.
    pub(super) const fn refusal(self, has_exclusive: bool) -> Option<&'static str> {
        match self {
            Self::Available => None,
            Self::Unusable => Some(UNUSABLE),
            Self::AwaitingReport if has_exclusive => Some(AWAITING_REPORT),
            Self::AwaitingPodRemoval if has_exclusive => Some(AWAITING_POD_REMOVAL),
            Self::AwaitingReport | Self::AwaitingPodRemoval => None,
        }
    }
}

/// Hosts that are not available, and the versions of all reports.
#[derive(Debug, Default)]
pub(super) struct HostAvailability {
    unusable: HashSet<HostId>,
    /// Hosts that await a report, each with the time at which the wait times out.
    awaiting_report: HashMap<HostId, Instant>,
    /// For each host, the pods with exclusive CPUs or huge pages that are terminating or that the report no longer
    /// lists. It is unknown whether the kubelet has released the resources of these pods, and therefore which zones a
    /// new pod would get.
    awaiting_removal: HashMap<HostId, BTreeSet<Arc<str>>>,
    /// `metadata.resourceVersion` of each host's InfraNode.
    report_versions: HashMap<HostId, u64>,
}

impl HostAvailability {
    pub(super) fn get(&self, host: HostId) -> Availability {
        if self.unusable.contains(&host) {
            Availability::Unusable
        } else if self.awaiting_report.contains_key(&host) {
            Availability::AwaitingReport
        } else if self.awaiting_removal.contains_key(&host) {
            Availability::AwaitingPodRemoval
        } else {
            Availability::Available
        }
    }

    /// Returns true if all hosts are available.
    pub(super) fn is_all_available(&self) -> bool {
        self.unusable.is_empty()
            && self.awaiting_report.is_empty()
            && self.awaiting_removal.is_empty()
    }

    fn debug_assert_transition(&self, host: HostId, before: Availability) {
        let after = self.get(host);
        debug_assert!(
            before.can_transition_to(after),
            "invalid transition of {host:?} from {before:?} to {after:?}"
        );
    }

    pub(super) fn is_unusable(&self, host: HostId) -> bool {
        self.unusable.contains(&host)
    }

    /// Marks a host as unusable: the host accepts no pods.
    pub(super) fn set_unusable(&mut self, host: HostId) {
        let before = self.get(host);
        self.unusable.insert(host);
        self.debug_assert_transition(host, before);
    }

    /// Marks a host as usable: its Node and InfraNode are readable.
    pub(super) fn set_usable(&mut self, host: HostId) {
        let before = self.get(host);
        self.unusable.remove(&host);
        self.debug_assert_transition(host, before);
    }

    /// Marks a host as awaiting a report that agrees with the pods of the host.
    pub(super) fn await_report(&mut self, host: HostId, deadline: Instant) {
        let before = self.get(host);
        self.awaiting_report.insert(host, deadline);
        self.debug_assert_transition(host, before);
    }

    /// Ends the wait for a report that agrees with the pods of a host.
    pub(super) fn end_report_wait(&mut self, host: HostId) {
        let before = self.get(host);
        self.awaiting_report.remove(&host);
        self.debug_assert_transition(host, before);
    }

    /// Ends the waits for reports that have timed out, and returns the hosts of these waits.
    pub(super) fn expire_reports(&mut self, now: Instant) -> Vec<HostId> {
        let timed_out = self.awaiting_report.iter().filter(|(_, until)| **until <= now);
        let timed_out: Vec<HostId> = timed_out.map(|(host, _)| *host).collect();
        for host in &timed_out {
            self.end_report_wait(*host);
        }
        timed_out
    }

    /// Marks a host as awaiting the removal of a pod, that is, the release of the pod's resources by the kubelet.
    pub(super) fn mark_awaiting_removal(&mut self, host: HostId, uid: &str) {
        let before = self.get(host);
        self.awaiting_removal.entry(host).or_default().insert(uid.into());
        self.debug_assert_transition(host, before);
    }

    /// Ends the wait of a host for the removal of a pod; returns true if the host awaited the removal.
    pub(super) fn end_removal_wait(&mut self, host: HostId, uid: &str) -> bool {
        let before = self.get(host);
        let Some(pods) = self.awaiting_removal.get_mut(&host) else { return false };
        let was_awaited = pods.remove(uid);
        if pods.is_empty() {
            self.awaiting_removal.remove(&host);
        }
        self.debug_assert_transition(host, before);
        was_awaited
    }

    /// Returns the pods whose removal a host awaits.
    pub(super) fn awaited_removals(&self, host: HostId) -> impl Iterator<Item = &Arc<str>> {
        self.awaiting_removal.get(&host).into_iter().flatten()
    }

    /// Returns true if `version` is lower than the version of the host's last report.
    pub(super) fn is_outdated(&self, host: HostId, version: Option<u64>) -> bool {
        let last = self.report_versions.get(&host);
        last.zip(version).is_some_and(|(last, version)| version < *last)
    }

    pub(super) fn set_report_version(&mut self, host: HostId, version: u64) {
        self.report_versions.insert(host, version);
    }

    pub(super) fn forget_report_version(&mut self, host: HostId) {
        self.report_versions.remove(&host);
    }

    /// Removes all report versions. If the API server's store was restored from a backup, the next versions may be
    /// lower than the last known versions.
    pub(super) fn forget_report_versions(&mut self) {
        self.report_versions.clear();
    }

    /// Removes a host whose Node is deleted.
    pub(super) fn remove_host(&mut self, host: HostId) {
        self.unusable.remove(&host);
        self.report_versions.remove(&host);
        self.awaiting_report.remove(&host);
        self.awaiting_removal.remove(&host);
    }
}
