//! Reservation of resources on a host for a pod: stage, expiry and VM.

use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_kubevirt_render::launcher::ExistingPod;
use berth_placement::engine::Request;

use super::state_transitions::ReservationState;

/// Timeout of the reservation of a pod in a PodGroup. It is short because kube-scheduler 1.36 calls `filter` for each
/// pod of the group and for each placement that it simulates, and does not report to an extender which placements it
/// discards (`podGroupPodSchedulingAlgorithm`).
pub(super) const POD_GROUP_TIMEOUT: Duration = Duration::from_secs(10);
/// Time after a `filter` call within which the pod must be bound, or `filter` must be called for the pod again.
pub(super) const RESERVED_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout of a reservation while volumes are provisioned. It is longer than the ten minutes for which kube-scheduler
/// waits for volumes (`bindTimeoutSeconds`).
pub(super) const VOLUMES_TIMEOUT: Duration = Duration::from_secs(660);
/// Time within which the watch must show a binding whose outcome is unknown.
pub(super) const BINDING_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for which the CPUs of a deleted pod count as used if no agent report has listed the pod, because it is unknown
/// when the kubelet releases them.
pub(super) const LEAVING_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time until every list of pods includes a pod that was bound. Also the maximum time for which no pods are
/// placed on a host because the host's report does not agree with the pods on the host.
pub(super) const LIST_TIMEOUT: Duration = Duration::from_secs(60);

/// Stage of a reservation. [`super::state_transitions`] defines the permitted transitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// `filter` has returned the host. The reservation expires at `until`.
    Reserved { until: Instant },
    /// The binding was sent, and its outcome is unknown. The reservation expires at `until`.
    Binding { until: Instant },
    /// The pod is on the host. `since` is the time of the binding, or of the event that showed the pod on the host.
    Bound { since: Instant },
    /// The first-consumer pod has ended, and the resources are reserved for the VM's launcher pod. The reservation
    /// expires at `until`, or does not expire if `until` is `None`.
    Kept { until: Option<Instant> },
    /// The pod has ended, and the kubelet may not have released the resources yet. The reservation expires at `until`.
    Leaving { until: Instant },
    /// The pod is terminating, and the kubelet has released the pod's resources.
    Released,
}

impl Stage {
    /// Returns the time at which the reservation expires; `None` if it does not expire.
    pub(super) const fn expiry(self) -> Option<Instant> {
        match self {
            Self::Reserved { until } | Self::Binding { until } | Self::Leaving { until } => {
                Some(until)
            }
            Self::Kept { until } => until,
            Self::Bound { .. } | Self::Released => None,
        }
    }

    /// Returns true if the reservation may move to another host: either no binding was sent for the pod, or the pod was
    /// a first-consumer pod and has ended.
    pub(super) const fn is_movable(self) -> bool {
        matches!(self, Self::Reserved { .. } | Self::Kept { .. })
    }

    pub(super) const fn state(self) -> ReservationState {
        match self {
            Self::Reserved { .. } => ReservationState::Reserved,
            Self::Binding { .. } => ReservationState::Binding,
            Self::Bound { .. } => ReservationState::Bound,
            Self::Kept { .. } => ReservationState::Kept,
            Self::Leaving { .. } => ReservationState::Leaving,
            Self::Released => ReservationState::Released,
        }
    }
}

/// Key of the reservation of a VM. While a VM migrates, its source pod and its target pod have different keys. The key
/// contains the namespace, so that no pod uses the reservation of a VM in another namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct VmKey {
    pub(super) namespace: String,
    pub(super) instance_uid: String,
    /// UID of the migration if the pod is its target; otherwise empty.
    pub(super) migration_uid: String,
}

impl VmKey {
    pub(super) fn from_pod(existing: &ExistingPod) -> Option<Self> {
        let instance = existing.vmi_uid.clone()?;
        let migration = existing.migration_uid.clone().unwrap_or_default();
        Some(Self {
            namespace: existing.namespace.clone(),
            instance_uid: instance,
            migration_uid: migration,
        })
    }
}

/// Reservation of resources on a host for a pod.
#[derive(Clone, Debug)]
pub(super) struct Reservation {
    pub(super) host: Arc<str>,
    pub(super) stage: Stage,
    pub(super) request: Request,
    pub(super) vm: Option<VmKey>,
    pub(super) is_first_consumer: bool,
    /// `ObservedPod::content_hash` of the pod when the reservation was recorded.
    pub(super) content_hash: u64,
    /// True once the watch has shown the pod on the host.
    pub(super) is_observed_on_host: bool,
    /// True once an agent report has listed the pod.
    pub(super) is_in_report: bool,
    pub(super) is_terminating: bool,
}

/// Returns true if the kubelet allocates exclusive CPUs or huge pages to the pod.
pub(super) fn has_exclusive_resources(request: &Request) -> bool {
    request.pinned_cpus() > 0 || request.page_size().is_some()
}

/// Returns true if the kubelet allocates no CPUs, memory or devices of a NUMA zone to the pod. The order in which the
/// kubelet admits such a pod and other pods does not matter: the kubelet's NUMA-aware managers handle only Guaranteed
/// pods, and KubeVirt's own devices have no zone.
pub(super) fn has_no_zone_resources(request: &Request) -> bool {
    let pod = request.pod();
    let mut containers = pod.init_containers.iter().chain(&pod.containers);
    !pod.is_guaranteed()
        && containers.all(|container| {
            container.requests.extended.keys().all(|name| name.starts_with("devices.kubevirt.io/"))
        })
}
