//! Pods without a host: pods from the watch, pods that no host accepts, and pods whose VM is unknown.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;

use super::observed_pod::ObservedPod;
use super::refused_pods::RefusedPods;
use super::unassigned_pods::UnassignedPods;
use super::unknown_instances::UnknownInstances;

/// Time for which a deleted pod is remembered, because the scheduler may still call `filter` for the pod.
const DELETED_RETENTION: Duration = Duration::from_secs(60);

/// Pods without a host, and pods that were recently deleted.
#[derive(Debug, Default)]
pub(super) struct PodQueue {
    pub(super) unassigned_pods: UnassignedPods,
    pub(super) refused_pods: RefusedPods,
    pub(super) unknown_instances: UnknownInstances,
    deletion_times: HashMap<String, Instant>,
}

impl PodQueue {
    /// Inserts a pod without a host. Returns false if the pod was deleted; the pod is then not inserted.
    pub(super) fn insert(&mut self, pod: Arc<Pod>, observed: &ObservedPod) -> bool {
        if self.is_deleted(observed.uid()) {
            return false;
        }
        self.unassigned_pods.insert(pod, observed);
        true
    }

    /// Removes a pod that is now on a host.
    pub(super) fn mark_assigned(&mut self, uid: &str) {
        self.unassigned_pods.remove(uid);
        self.refused_pods.remove(uid);
    }

    /// Records that a pod has a reservation: removes it from `refused_pods` and `unknown_instances`. The pod remains in
    /// `unassigned_pods` until it is bound.
    pub(super) fn mark_reserved(&mut self, uid: &str) {
        self.refused_pods.remove(uid);
        self.unknown_instances.remove(uid);
    }

    /// Removes a pod that was deleted or has ended, and remembers its UID for [`DELETED_RETENTION`].
    pub(super) fn mark_deleted(&mut self, now: Instant, uid: &str) {
        self.mark_assigned(uid);
        self.deletion_times.insert(uid.to_owned(), now);
    }

    pub(super) fn is_deleted(&self, uid: &str) -> bool {
        self.deletion_times.contains_key(uid)
    }

    /// Forgets pods that were deleted more than [`DELETED_RETENTION`] ago, and expired entries of `unknown_instances`.
    pub(super) fn expire(&mut self, now: Instant) {
        let Self {
            unassigned_pods: unassigned, unknown_instances, deletion_times: deleted, ..
        } = self;
        unknown_instances.expire(now, |uid| unassigned.get(uid).is_some());
        deleted.retain(|_, since| now.saturating_duration_since(*since) < DELETED_RETENTION);
    }
}
