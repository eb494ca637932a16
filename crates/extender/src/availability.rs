//! Availability of hosts: which hosts currently accept pods. [`super::state_transitions`] documents the transitions.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use berth_placement::rules::HostId;

use super::state_transitions::Availability;

/// Reason for a host with an invalid Node or InfraNode.
const UNUSABLE_REASON: &str = "node(s) had no usable agent report";
/// Reason for a host on which the kubelet's order of admission is unknown.
pub(super) const AWAITING_REPORT_REASON: &str =
    "node(s) had new pods that are missing from the agent report";
/// Reason for a host that awaits the removal of pods: terminating pods whose allocations the kubelet may not have
/// released.
const AWAITING_POD_REMOVAL_REASON: &str = "node(s) had terminating pods";

impl Availability {
    /// Returns the reason why the host does not accept a pod. `has_exclusive_resources` is true for a pod with
    /// exclusive CPUs or huge pages.
    pub(super) const fn refusal_reason(
        self,
        has_exclusive_resources: bool,
    ) -> Option<&'static str> {
        match self {
            Self::Available => None,
            Self::Unusable => Some(UNUSABLE_REASON),
            Self::AwaitingReport if has_exclusive_resources => Some(AWAITING_REPORT_REASON),
            Self::AwaitingPodRemoval if has_exclusive_resources => {
                Some(AWAITING_POD_REMOVAL_REASON)
            }
            Self::AwaitingReport | Self::AwaitingPodRemoval => None,
        }
    }
}

/// Hosts that are not available, and the versions of the last reports of all hosts.
#[derive(Debug, Default)]
pub(super) struct HostAvailability {
    unusable_hosts: HashSet<HostId>,
    /// Hosts that await a report, each with the time at which the wait ends without a report.
    report_deadlines: HashMap<HostId, Instant>,
    /// Pods with exclusive CPUs or huge pages, by host, that are terminating or that the report no longer lists. It is
    /// unknown whether the kubelet has released their resources, and therefore which zones the kubelet would allocate
    /// to a new pod.
    pods_awaiting_removal: HashMap<HostId, BTreeSet<Arc<str>>>,
    /// Hosts with allocations in their report that belong to no known pod, but are not yet treated as stale. Until they
    /// are, it is unknown whether the kubelet takes these allocations into account for a new pod.
    hosts_with_orphaned_allocations: HashSet<HostId>,
    /// `metadata.resourceVersion` of the last report (InfraNode) of each host.
    report_versions: HashMap<HostId, u64>,
}

impl HostAvailability {
    pub(super) fn get(&self, host: HostId) -> Availability {
        if self.unusable_hosts.contains(&host) {
            Availability::Unusable
        } else if self.report_deadlines.contains_key(&host) {
            Availability::AwaitingReport
        } else if self.pods_awaiting_removal.contains_key(&host)
            || self.hosts_with_orphaned_allocations.contains(&host)
        {
            Availability::AwaitingPodRemoval
        } else {
            Availability::Available
        }
    }

    /// Returns true if all hosts are available.
    pub(super) fn are_all_available(&self) -> bool {
        self.unusable_hosts.is_empty()
            && self.report_deadlines.is_empty()
            && self.pods_awaiting_removal.is_empty()
            && self.hosts_with_orphaned_allocations.is_empty()
    }

    fn debug_assert_transition(&self, host: HostId, before: Availability) {
        let after = self.get(host);
        debug_assert!(
            before.can_transition_to(after),
            "invalid transition of {host:?} from {before:?} to {after:?}"
        );
    }

    pub(super) fn is_unusable(&self, host: HostId) -> bool {
        self.unusable_hosts.contains(&host)
    }

    /// Marks a host as unusable: the host accepts no pods.
    pub(super) fn set_unusable(&mut self, host: HostId) {
        let before = self.get(host);
        self.unusable_hosts.insert(host);
        self.debug_assert_transition(host, before);
    }

    /// Marks a host as usable: its Node and InfraNode are readable.
    pub(super) fn set_usable(&mut self, host: HostId) {
        let before = self.get(host);
        self.unusable_hosts.remove(&host);
        self.debug_assert_transition(host, before);
    }

    /// Marks a host as awaiting a report that lists the pods of the host. The wait ends at `deadline`.
    pub(super) fn await_report(&mut self, host: HostId, deadline: Instant) {
        let before = self.get(host);
        self.report_deadlines.insert(host, deadline);
        self.debug_assert_transition(host, before);
    }

    /// Ends the wait for a report that lists the pods of a host.
    pub(super) fn end_report_wait(&mut self, host: HostId) {
        let before = self.get(host);
        self.report_deadlines.remove(&host);
        self.debug_assert_transition(host, before);
    }

    /// Ends all waits for reports that have timed out, and returns the hosts.
    pub(super) fn expire_report_waits(&mut self, now: Instant) -> Vec<HostId> {
        let timed_out = self.report_deadlines.iter().filter(|(_, until)| **until <= now);
        let timed_out: Vec<HostId> = timed_out.map(|(host, _)| *host).collect();
        for host in &timed_out {
            self.end_report_wait(*host);
        }
        timed_out
    }

    /// Marks a host as awaiting the removal of a pod: the kubelet must release the pod's resources.
    pub(super) fn mark_awaiting_removal(&mut self, host: HostId, uid: &str) {
        let before = self.get(host);
        self.pods_awaiting_removal.entry(host).or_default().insert(uid.into());
        self.debug_assert_transition(host, before);
    }

    /// Ends the wait of a host for the removal of a pod; returns true if the host awaited the removal.
    pub(super) fn end_removal_wait(&mut self, host: HostId, uid: &str) -> bool {
        let before = self.get(host);
        let Some(pods) = self.pods_awaiting_removal.get_mut(&host) else { return false };
        let was_awaited = pods.remove(uid);
        if pods.is_empty() {
            self.pods_awaiting_removal.remove(&host);
        }
        self.debug_assert_transition(host, before);
        was_awaited
    }

    /// Returns the UIDs of the pods whose removal a host awaits.
    pub(super) fn awaited_removals(&self, host: HostId) -> impl Iterator<Item = &Arc<str>> {
        self.pods_awaiting_removal.get(&host).into_iter().flatten()
    }

    /// Records whether a host has allocations in its report that belong to no known pod, but are not yet treated as
    /// stale. Returns true if the host had such allocations before and has none now.
    pub(super) fn set_orphaned_allocations(&mut self, host: HostId, has_orphans: bool) -> bool {
        let before = self.get(host);
        let had_orphans = if has_orphans {
            !self.hosts_with_orphaned_allocations.insert(host)
        } else {
            self.hosts_with_orphaned_allocations.remove(&host)
        };
        self.debug_assert_transition(host, before);
        had_orphans && !has_orphans
    }

    /// Returns true if `version` is lower than the version of the last report of the host.
    pub(super) fn is_outdated(&self, host: HostId, version: Option<u64>) -> bool {
        let last = self.report_versions.get(&host);
        last.zip(version).is_some_and(|(last, version)| version < *last)
    }

    pub(super) fn set_report_version(&mut self, host: HostId, version: u64) {
        self.report_versions.insert(host, version);
    }

    pub(super) fn remove_report_version(&mut self, host: HostId) {
        self.report_versions.remove(&host);
    }

    /// Forgets the versions of all reports. If the API server's store was restored from a backup, later versions may be
    /// lower.
    pub(super) fn clear_report_versions(&mut self) {
        self.report_versions.clear();
    }

    /// Removes a host whose Node is deleted.
    pub(super) fn remove_host(&mut self, host: HostId) {
        self.unusable_hosts.remove(&host);
        self.report_versions.remove(&host);
        self.report_deadlines.remove(&host);
        self.pods_awaiting_removal.remove(&host);
        self.hosts_with_orphaned_allocations.remove(&host);
    }
}
