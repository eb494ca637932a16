//! A machine with a removal mark, and the state of its drain within one reconcile.

use std::time::Duration;

use berth_api::ConditionReason;
use berth_runtime::backoff::add_jitter;
use berth_runtime::untrusted::UntrustedError;
use k8s_openapi::jiff::Timestamp;
use kube::api::DynamicObject;
use tokio::sync::OwnedSemaphorePermit;

use crate::removal::mark::Removal;
use crate::removal::plan::EvictionOutcomes;
use crate::removal::pod::DrainPod;
use crate::run::tenant_access::fault_of;

/// Shortest and longest delay between two reconciles of a machine that waits. The tenant's pods and VolumeAttachments are
/// not watched.
const DELAYS: (Duration, Duration) = (Duration::from_secs(5), MAX_DELAY);
/// Longest delay between two reconciles of a machine that waits.
pub(super) const MAX_DELAY: Duration = Duration::from_secs(30);
/// Pause after an object has changed during the reconcile, or after the last step of a reconcile.
pub(super) const SHORT_DELAY: Duration = Duration::from_secs(1);

/// A machine with a removal mark.
pub(super) struct MarkedMachine {
    pub(super) object: DynamicObject,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) removal: Removal,
    pub(super) deadline: Timestamp,
    pub(super) problems: Vec<String>,
}

/// Answers of the tenant's API server in one reconcile.
#[derive(Default)]
pub(super) struct Drain {
    /// Permit for the pods and the outcomes.
    pub(super) list_permit: Option<OwnedSemaphorePermit>,
    pub(super) pods: Option<Vec<DrainPod>>,
    pub(super) outcomes: EvictionOutcomes,
    pub(super) volume_count: Option<usize>,
    /// Reason why a request to the tenant failed.
    pub(super) failure: Option<ConditionReason>,
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
    pub(super) fn record_failure(&mut self, machine: &MarkedMachine, error: UntrustedError) {
        tracing::debug!(namespace = %machine.namespace, machine = %machine.name, %error, "a request of a drain failed");
        self.failure = Some(fault_of(error, "", None).reason);
        self.retry_after = self.retry_after.max(error.retry_after());
    }

    /// Sets the number of VolumeAttachments. Before the Node is deleted, its pods are listed once more: a pod whose volume
    /// the tenant's cluster creates for this Node may be bound long after the cordon.
    pub(super) fn set_volume_count(&mut self, count: usize) {
        self.volume_count = Some(count);
        if count == 0 {
            self.pods = None;
        }
    }

    /// Returns the delay before the next reconcile. It grows with the age of the removal.
    pub(super) fn delay(&self, machine: &MarkedMachine) -> Duration {
        let now = Timestamp::now();
        let between = |from: Timestamp, to: Timestamp| {
            Duration::try_from(to.duration_since(from)).unwrap_or_default()
        };
        let (shortest, longest) = DELAYS;
        let usual = (between(machine.removal.since, now) / 8).clamp(shortest, longest);
        let until_deadline = between(now, machine.deadline);
        // After the deadline, only the host is waited for.
        let delay = if until_deadline.is_zero() { longest } else { usual.min(until_deadline) };
        add_jitter(delay.max(SHORT_DELAY)).max(self.retry_after)
    }
}
