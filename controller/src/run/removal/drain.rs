//! State of one reconcile of a removal.

use std::time::{Duration, Instant};

use berth_runtime::backoff::add_jitter;
use berth_runtime::untrusted::RequestFailure;
use k8s_openapi::jiff::Timestamp;
use kube::api::DynamicObject;
use tokio::sync::OwnedSemaphorePermit;

use super::facts::MachineNode;
use crate::removal::mark::Removal;
use crate::removal::plan::{EvictionOutcomes, Step};
use crate::removal::pod::DrainPod;
use crate::run::tenant_access::drain_fault_of;
use crate::tenants::fault::Fault;

/// Shortest and longest pause between two reconciles of a machine that waits. The tenant's pods and VolumeAttachments are
/// not watched.
pub(super) const PAUSE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(30));
/// Pause after an object has changed during the reconcile, or after the last step of a reconcile.
pub(super) const SHORT_PAUSE: Duration = Duration::from_secs(1);

/// A removal that is in progress.
pub(super) struct Drain {
    pub(super) machine: DynamicObject,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) removal: Removal,
    pub(super) deadline: Timestamp,
    pub(super) problems: Vec<String>,
    /// Permit for the pods and the outcomes.
    pub(super) list_permit: Option<OwnedSemaphorePermit>,
    pub(super) pods: Option<Vec<DrainPod>>,
    pub(super) outcomes: EvictionOutcomes,
    pub(super) volume_count: Option<usize>,
    /// Time after the last list of pods; at first, the begin of the reconcile.
    pub(super) observed_at: Instant,
    /// Fault of a request to the tenant that failed.
    pub(super) failure: Option<Fault>,
    /// True if the tenant's API server has no Node of the machine.
    pub(super) is_absence_confirmed: bool,
    /// True if this reconcile has deleted the Node.
    pub(super) is_node_deleted: bool,
    /// Time for which the tenant's API server accepts no further request.
    pub(super) retry_after: Duration,
}

impl Drain {
    /// Records the error of a request to the tenant. If the Node has changed meanwhile, the watch triggers a reconcile.
    /// All errors are handled alike, because a webhook of the tenant can answer with any of them for ever.
    pub(super) fn record_failure(&mut self, request: &str, failure: &RequestFailure) {
        tracing::debug!(namespace = %self.namespace, machine = %self.name, request, error = %failure, "a request of a drain failed");
        self.failure = Some(drain_fault_of(request, failure));
        self.retry_after = self.retry_after.max(failure.error.retry_after());
    }

    /// Returns the verb and the objects of a step's request.
    pub(super) fn describe_request(&self, step: &Step<'_>, node: Option<&MachineNode>) -> String {
        let node = node.map_or(self.name.as_str(), |node| node.name.as_str());
        match step {
            Step::Cordon => format!("cordon Node {node} (patch)"),
            Step::ListPods => format!("list Pods of Node {node}"),
            Step::ListVolumes => "list VolumeAttachments".to_owned(),
            Step::ConfirmNoNode => "list Nodes".to_owned(),
            Step::DeleteNode => format!("delete Node {node}"),
            _ => format!("create Evictions of Pods of Node {node}"),
        }
    }

    /// Sets the number of VolumeAttachments. Before the Node is deleted, its pods are listed once more: a pod whose volume
    /// the tenant's cluster creates for this Node may be bound long after the cordon.
    pub(super) fn set_volume_count(&mut self, count: usize) {
        self.volume_count = Some(count);
        if count == 0 {
            self.pods = None;
        }
    }

    /// Returns the pause before the next reconcile. It grows with the age of the removal.
    pub(super) fn pause(&self) -> Duration {
        let now = Timestamp::now();
        let between = |from: Timestamp, to: Timestamp| {
            Duration::try_from(to.duration_since(from)).unwrap_or_default()
        };
        let (shortest, longest) = PAUSE;
        let usual = (between(self.removal.since, now) / 8).clamp(shortest, longest);
        let until_deadline = between(now, self.deadline);
        // After the deadline, only the host is waited for.
        let pause = if until_deadline.is_zero() { longest } else { usual.min(until_deadline) };
        add_jitter(pause.max(SHORT_PAUSE)).max(self.retry_after)
    }
}
