//! Stale allocations: memory that a report lists although its pod has ended.
//!
//! The CPU Manager of a kubelet removes the entries of ended pods from its checkpoint every ten seconds
//! (`reconcileState`). The Memory Manager removes them only when the kubelet admits another pod, before it allocates
//! (`removeStaleState` of pkg/kubelet/cm/memorymanager/memory_manager.go). If such an entry counted as allocated, the
//! host would accept no pod with exclusive CPUs or huge pages until another pod is admitted there.
//!
//! An allocation is stale, and does not count, if both of these statements have been true for a certain time:
//!
//! * **Nothing uses the allocation.** The report shows neither a control group nor exclusive CPUs of the pod. The API
//!   server's list of pods is not sufficient evidence: `GetActivePods` of the kubelet omits force-deleted pods whose
//!   containers still run (Kubernetes issue 104824), so the kubelet would allocate memory that is in use. The control
//!   group is also the only evidence of a static pod without a mirror pod, which the API server does not list.
//! * **The pod does not exist.** No pod with this UID is on a host or waits for one. This condition is needed because a
//!   pod that the kubelet has just admitted has no control group either.
//!
//! This time is [`END_DELAY`] if the watch has shown the end of the pod in the last minute, and the reports have shown
//! the end of its control group. Otherwise the time is [`LIST_TIMEOUT`], because the pod may be new and the watch or
//! the report late, or the extender was restarted and has not seen the end of the pod. Meanwhile the host awaits the
//! removal of the pod, because it is unknown which zones a new pod would get.
//!
//! A pod ends with its containers (phase `Succeeded` or `Failed`) or with its deletion. In both cases the kubelet
//! removes the entries of the pod.

use std::time::{Duration, Instant};

use berth_placement::inventory::ReportedHost;

use super::extender::Extender;
use super::reservation::{LIST_TIMEOUT, Stage};

/// Time for which an allocation must be unused before it is stale, if the end of both its pod and its control group was
/// observed.
const END_DELAY: Duration = Duration::from_secs(10);

impl Extender {
    /// Removes the stale allocations from a new report of a host.
    pub(super) fn remove_stale_allocations(&mut self, host: &str, report: &mut ReportedHost) {
        let engine = &self.reservations.engine;
        let last_report = engine.host(host).and_then(|id| engine.reported_host(id));
        self.stale_candidates.read_report(host, last_report, report);
        report.allocations.retain(|allocation| {
            let uid = allocation.uid.as_str();
            !self.stale_candidates.is_stale(host, uid) || self.has_pod(uid)
        });
    }

    /// Determines which allocations of a host are stale now, and releases them. While the host has unused allocations
    /// that are not stale yet, marks the host as awaiting the removal of a pod.
    pub(super) fn update_stale_allocations(&mut self, now: Instant, name: &str) {
        let Some(host) = self.reservations.engine.host(name) else { return };
        if self.awaits_pod_list {
            return;
        }
        let mut candidates = std::mem::take(&mut self.stale_candidates);
        let stale_uids = candidates
            .update(name, now, |uid, had_control_group| self.orphan_delay(uid, had_control_group));
        let has_orphans = candidates.has_orphans(name);
        self.stale_candidates = candidates;
        if !stale_uids.is_empty() {
            self.reservations.engine.remove_allocations(host, &stale_uids);
            self.compare_report(name, host);
            self.queue.refused_pods.mark_host_changed(host);
        }
        if self.availability.set_orphaned_allocations(host, has_orphans) {
            self.queue.refused_pods.mark_host_changed(host);
        }
    }

    /// Returns the time for which an allocation must be unused before it is stale; `None` if the allocation's pod
    /// exists. `had_control_group` is true if the kubelet has removed the pod's control group.
    fn orphan_delay(&self, uid: &str, had_control_group: bool) -> Option<Duration> {
        if self.has_pod(uid) {
            None
        } else if had_control_group && self.queue.is_deleted(uid) {
            Some(END_DELAY)
        } else {
            Some(LIST_TIMEOUT)
        }
    }

    /// Returns true if a pod with this UID has not ended and is on a host or waits for a host.
    fn has_pod(&self, uid: &str) -> bool {
        let has_ended = |stage: Stage| matches!(stage, Stage::Kept { .. } | Stage::Leaving { .. });
        self.reservations.get(uid).is_some_and(|reservation| !has_ended(reservation.stage))
            || self.queue.unassigned_pods.get(uid).is_some()
    }
}
