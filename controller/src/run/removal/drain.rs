//! A machine with a removal mark, and the state of its drain within one reconcile.

use std::time::{Duration, Instant};

use berth_runtime::backoff::add_jitter;
use berth_runtime::untrusted::RequestFailure;
use k8s_openapi::jiff::Timestamp;
use kube::api::DynamicObject;
use tokio::sync::OwnedSemaphorePermit;

use super::delays::{DELAY_RANGE, SHORT_DELAY};
use crate::removal::mark::RemovalMark;
use crate::removal::plan::EvictionOutcomes;
use crate::removal::pod::DrainPod;
use crate::run::tenant_access::drain_fault_of;
use crate::tenants::fault::Fault;

/// Shortest time limit of a step. Even the lists of the largest clusters, or 50 evictions, take less time.
const MIN_STEP_TIMEOUT: Duration = Duration::from_secs(300);

/// A machine with a removal mark.
pub(super) struct MarkedMachine {
    pub(super) object: DynamicObject,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) removal: RemovalMark,
    pub(super) deadline: Timestamp,
    pub(super) problems: Vec<String>,
}

/// Answers of the tenant's API server in one reconcile.
pub(super) struct Drain {
    /// Permit to hold the list of pods and the outcomes of evictions in memory.
    pub(super) list_permit: Option<OwnedSemaphorePermit>,
    pub(super) pods: Option<Vec<DrainPod>>,
    pub(super) outcomes: EvictionOutcomes,
    pub(super) volume_count: Option<usize>,
    /// Time at which the last list of pods was complete; before the first list, the start of the reconcile.
    pub(super) observed_at: Instant,
    /// Fault of the last failed request to the tenant's API server.
    pub(super) failure: Option<Fault>,
    /// True if the tenant's API server has answered that it has no Node of the machine.
    pub(super) is_absence_confirmed: bool,
    /// True if this reconcile has deleted the machine's Node.
    pub(super) is_node_deleted: bool,
    /// Duration for which the tenant's API server refuses further requests (`Retry-After`).
    pub(super) retry_after: Duration,
}

impl Default for Drain {
    fn default() -> Self {
        Self {
            list_permit: None,
            pods: None,
            outcomes: EvictionOutcomes::new(),
            volume_count: None,
            observed_at: Instant::now(),
            failure: None,
            is_absence_confirmed: false,
            is_node_deleted: false,
            retry_after: Duration::ZERO,
        }
    }
}

impl MarkedMachine {
    /// Returns the time limit of a step. Without a limit, a server that answers each page of a list just before its
    /// timeout would delay the removal by hours beyond its deadline.
    pub(super) fn step_timeout(&self, now: Timestamp) -> Duration {
        let rest = Duration::try_from(self.deadline.duration_since(now)).unwrap_or_default();
        rest.max(MIN_STEP_TIMEOUT)
    }
}

impl Drain {
    /// Records the error of a request to the tenant's API server. If the Node has changed meanwhile, the watch triggers
    /// a reconcile. All errors are handled alike, because a webhook of the tenant can return any error permanently.
    pub(super) fn record_failure(
        &mut self,
        machine: &MarkedMachine,
        request: &str,
        failure: &RequestFailure,
    ) {
        tracing::debug!(namespace = %machine.namespace, machine = %machine.name, request, error = %failure, "a request of a drain failed");
        self.failure = Some(drain_fault_of(request, failure));
        self.retry_after = self.retry_after.max(failure.error.retry_after());
    }

    /// Sets the number of VolumeAttachments of the Node. If the tenant still creates volumes for the Node, pods may be
    /// bound to it long after the cordon; therefore, its pods are listed once more before the Node is deleted.
    pub(super) fn set_volume_count(&mut self, count: usize) {
        self.volume_count = Some(count);
        if count == 0 {
            self.pods = None;
        }
    }

    /// Returns the delay before the next reconcile, which grows with the age of the removal.
    pub(super) fn delay(&self, machine: &MarkedMachine) -> Duration {
        let now = Timestamp::now();
        let between = |from: Timestamp, to: Timestamp| {
            Duration::try_from(to.duration_since(from)).unwrap_or_default()
        };
        let (shortest, longest) = DELAY_RANGE;
        let usual = (between(machine.removal.since, now) / 8).clamp(shortest, longest);
        let until_deadline = between(now, machine.deadline);
        // After the deadline, the removal waits for nothing but the host, so the longest delay is sufficient.
        let delay = if until_deadline.is_zero() { longest } else { usual.min(until_deadline) };
        add_jitter(delay.max(SHORT_DELAY)).max(self.retry_after)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::removal::mark::RemovalReason;

    #[test]
    fn a_step_ends_soon_after_the_deadline() {
        let at = |seconds: i64| Timestamp::from_second(seconds).unwrap();
        let object = json!({"metadata": {"name": "web-1", "namespace": "cluster-shop"}});
        let machine = MarkedMachine {
            object: serde_json::from_value(object).unwrap(),
            namespace: "cluster-shop".to_owned(),
            name: "web-1".to_owned(),
            removal: RemovalMark::new(RemovalReason::HostDrain, at(0)),
            deadline: at(7200),
            problems: Vec::new(),
        };
        assert_eq!(machine.step_timeout(at(0)), Duration::from_secs(7200));
        assert_eq!(machine.step_timeout(at(7199)), MIN_STEP_TIMEOUT);
        assert_eq!(machine.step_timeout(at(9000)), MIN_STEP_TIMEOUT);
    }
}
