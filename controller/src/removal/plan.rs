//! Computes the next step of the removal of one machine. No state is stored between steps: each step is computed from the
//! mark and from the objects that exist, so an interrupted removal continues where it stopped.
//!
//! ```text
//! cordon ─► evict pods ─► wait for pods ─► wait for VolumeAttachments ─► delete the Node ─► delete the machine
//!    │          ▲ └─── after the deadline ────────┴──────────────────────────────▲
//!    │          └───────── if there are pods ─────┘
//! ```

use std::collections::BTreeMap;

use berth_api::ConditionReason;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::eviction::EvictionOutcome;
use super::mark::{RemovalMark, RemovalReason};
use super::pod::DrainPod;

/// Largest number of evictions in one step.
const MAX_EVICTIONS: usize = 50;
/// If a Node is not ready, the drain waits for a pod until this time after the end of the pod's grace period, because
/// the kubelet will not report that the pod has ended.
const UNREADY_POD_TIMEOUT: SignedDuration = SignedDuration::from_mins(5);

/// Outcomes of the evictions that were tried since the pods were listed the first time, by the pod's UID.
pub type EvictionOutcomes = BTreeMap<String, EvictionOutcome>;

/// State from which the next step is computed.
#[derive(Clone, Copy, Debug)]
pub struct RemovalState<'a> {
    /// Removal mark of the machine.
    pub removal: RemovalMark,
    /// Current time.
    pub now: Timestamp,
    /// Time after which the machine is deleted even if the drain is not complete.
    pub deadline: Timestamp,
    /// State of the tenant's cluster.
    pub tenant: TenantState,
    /// True if the VM has ended and will not be started again, so that none of its pods run.
    pub has_ended: bool,
    /// True if the machine is removed because its host is lost, and it is unknown whether the VM still runs.
    pub is_host_lost: bool,
    /// True if the VM is on a host whose kubelet reports that it is ready, so that the VM may run.
    pub is_host_ready: bool,
    /// Pods on the Node; `None` if they are not listed yet, or not since the last VolumeAttachment was deleted.
    pub pods: Option<&'a [DrainPod]>,
    pub outcomes: &'a EvictionOutcomes,
    /// Number of VolumeAttachments of the Node; `None` if they are not listed yet.
    pub volume_count: Option<usize>,
    /// Reason why a request to the tenant's API server failed; `None` if none has failed.
    pub failure: Option<ConditionReason>,
}

/// State of the tenant's cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TenantState {
    /// The tenant has no kubeconfig, or is being deleted: machines are not drained.
    NotUsed,
    /// There is no connection, or the Node of the machine cannot be determined.
    Unknown(ConditionReason),
    /// The machine has no Node.
    NoNode {
        /// True if a read from the tenant's API server has confirmed that there is no Node. The watch may be delayed.
        is_confirmed: bool,
    },
    /// The machine has a Node.
    Node {
        /// True if no new pods are scheduled to the Node.
        is_cordoned: bool,
        /// True if the kubelet reports that the Node is ready.
        is_ready: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalOutcome {
    /// The Node was drained, or the machine had no Node.
    Drained,
    /// The Node was not drained before the deadline.
    DeadlineExceeded,
    /// A drain is not possible or not requested.
    NotDrained,
}

/// Next step of a removal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// Wait until the host is back, or has the taint `node.kubernetes.io/out-of-service`.
    WaitForHost,
    /// Wait until the tenant's API server answers, or until the Node of the machine is known.
    WaitForTenant(ConditionReason),
    /// Cordon the Node.
    Cordon,
    /// List the pods on the Node.
    ListPods,
    /// Evict these pods.
    Evict(Vec<&'a DrainPod>),
    /// Wait until these pods have stopped, and try again the evictions that were refused.
    WaitForPods {
        /// Pods whose evictions were refused, and the reasons.
        blocked: Vec<(&'a DrainPod, &'a EvictionOutcome)>,
        /// Number of pods that are stopping.
        stopping: usize,
    },
    /// List the VolumeAttachments of the Node.
    ListVolumes,
    /// Wait until this number of VolumeAttachments are deleted.
    WaitForVolumes(usize),
    /// Read the Nodes from the tenant's API server: the Node may have registered a moment ago.
    ConfirmNoNode,
    DeleteNode,
    DeleteMachine(RemovalOutcome),
}

/// Returns the next step of a removal.
#[must_use]
pub fn next_step<'a>(state: &RemovalState<'a>) -> Step<'a> {
    if state.is_host_lost {
        return Step::WaitForHost;
    }
    let is_late = state.now >= state.deadline;
    let late_outcome = if state.deadline <= state.removal.since {
        RemovalOutcome::NotDrained
    } else {
        RemovalOutcome::DeadlineExceeded
    };
    let wait_for_tenant = |reason| {
        if is_late { Step::DeleteMachine(late_outcome) } else { Step::WaitForTenant(reason) }
    };
    let (is_cordoned, is_ready) = match (state.tenant, state.failure) {
        (TenantState::NotUsed, _) => return Step::DeleteMachine(RemovalOutcome::NotDrained),
        (TenantState::Unknown(reason), _) | (_, Some(reason)) => return wait_for_tenant(reason),
        (TenantState::NoNode { is_confirmed }, None) => {
            let outcome = if is_late { late_outcome } else { RemovalOutcome::Drained };
            let delete =
                if is_confirmed { Step::DeleteMachine(outcome) } else { Step::ConfirmNoNode };
            // If another controller deletes the Node, its VolumeAttachments remain for a while.
            return if is_late { delete } else { wait_for_volumes(state.volume_count, delete) };
        }
        (TenantState::Node { is_cordoned, is_ready }, None) => (is_cordoned, is_ready),
    };
    // The pods of a VM that has ended do not run. After the deletion of their Node, Kubernetes deletes them, and
    // detaches their volumes. The same is true for a VM whose host is off. If the host is back, the VM may still run,
    // and its Node becomes ready some seconds later: its pods are evicted before they start elsewhere.
    let is_off =
        state.removal.reason == RemovalReason::HostLost && !is_ready && !state.is_host_ready;
    if is_late || state.has_ended || is_off {
        return Step::DeleteNode;
    }
    if !is_cordoned {
        return Step::Cordon;
    }
    let Some(pods) = state.pods else { return Step::ListPods };
    drain_step(state, pods, is_ready)
        .unwrap_or_else(|| wait_for_volumes(state.volume_count, Step::DeleteNode))
}

/// Returns the next step of the drain; `None` if all pods have left the Node.
fn drain_step<'a>(
    state: &RemovalState<'a>,
    pods: &'a [DrainPod],
    is_ready: bool,
) -> Option<Step<'a>> {
    let (mut due, mut blocked, mut stopping) = (Vec::new(), Vec::new(), 0_usize);
    for pod in pods {
        match (pod.terminating, state.outcomes.get(&pod.uid)) {
            (Some(end), _) => {
                let latest = end.checked_add(UNREADY_POD_TIMEOUT).unwrap_or(end);
                if is_ready || state.now < latest {
                    stopping = stopping.saturating_add(1);
                }
            }
            (None, None) => due.push(pod),
            (None, Some(EvictionOutcome::Accepted)) => stopping = stopping.saturating_add(1),
            (None, Some(refused)) => blocked.push((pod, refused)),
        }
    }
    due.truncate(MAX_EVICTIONS);
    if !due.is_empty() {
        return Some(Step::Evict(due));
    }
    let is_done = blocked.is_empty() && stopping == 0;
    (!is_done).then_some(Step::WaitForPods { blocked, stopping })
}

fn wait_for_volumes(count: Option<usize>, then: Step<'_>) -> Step<'_> {
    match count {
        None => Step::ListVolumes,
        Some(0) => then,
        Some(count) => Step::WaitForVolumes(count),
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
