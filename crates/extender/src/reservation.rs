//! Reservation of one pod on one host: its stage, until when it holds, and for which VM.

use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_kubevirt_render::launcher::Existing;
use berth_placement::engine::Request;

use super::states::ReservationState;

/// Timeout of the reservation of a pod of a PodGroup. kube-scheduler 1.36 asks for each pod of the group and for each
/// placement that it simulates, and does not report to an extender which of them it drops (`podGroupPodSchedulingAlgorithm`).
pub(super) const POD_GROUP_TIMEOUT: Duration = Duration::from_secs(10);
/// Time from a `filter` call within which the pod is bound, or `filter` is called for it again.
pub(super) const RESERVED_TIMEOUT: Duration = Duration::from_secs(30);
/// The same while volumes are provisioned: the scheduler waits ten minutes for them (`bindTimeoutSeconds`).
pub(super) const VOLUMES_TIMEOUT: Duration = Duration::from_secs(660);
/// Time within which the watch shows a binding whose outcome is not known.
pub(super) const BINDING_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for which a deleted pod may still have CPUs that no report has listed.
pub(super) const LEAVING_TIMEOUT: Duration = Duration::from_secs(10);
/// Time after which a pod that was bound here is in every list of pods.
pub(super) const LISTED_TIMEOUT: Duration = Duration::from_secs(60);

/// Stage of a reservation; [`super::states`] has the transitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// `filter` has answered with the host.
    Reserved { until: Instant },
    /// The binding was sent, and its outcome is not known yet.
    Binding { until: Instant },
    /// The pod is on the host.
    Bound { since: Instant },
    /// The first-consumer pod has ended, and the VM's launcher pod is to follow it on this host.
    Kept { until: Option<Instant> },
    /// The pod has ended, and its kubelet may not know yet.
    Leaving { until: Instant },
    /// The pod is terminating, and its kubelet has released what it had.
    Released,
}

impl Stage {
    /// Returns the time at which the reservation expires.
    pub(super) const fn expiry(self) -> Option<Instant> {
        match self {
            Self::Reserved { until } | Self::Binding { until } | Self::Leaving { until } => {
                Some(until)
            }
            Self::Kept { until } => until,
            Self::Bound { .. } | Self::Released => None,
        }
    }

    /// Returns true if the reservation may move to another host, as its kubelet knows nothing of it.
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

/// Key of the reservations of one VM: a VM that migrates has two. The namespace is part of it, so that no pod uses the
/// reservation of another namespace's VM.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct VmKey {
    pub(super) namespace: String,
    pub(super) instance: String,
    /// Migration of which the pod is the target; empty if there is none.
    pub(super) migration: String,
}

impl VmKey {
    pub(super) fn from_pod(existing: &Existing) -> Option<Self> {
        let instance = existing.vmi_uid.clone()?;
        let migration = existing.migration_uid.clone().unwrap_or_default();
        Some(Self { namespace: existing.namespace.clone(), instance, migration })
    }
}

/// Reservation of one pod.
#[derive(Clone, Debug)]
pub(super) struct Reservation {
    pub(super) host: Arc<str>,
    pub(super) stage: Stage,
    pub(super) request: Request,
    pub(super) vm: Option<VmKey>,
    pub(super) is_first_consumer: bool,
    /// Hash of the fields that rules of other pods read, at the time of the reservation.
    pub(super) stamp: u64,
    /// True once the watch has shown the pod on the host.
    pub(super) is_seen: bool,
    /// True once a report has listed the pod.
    pub(super) is_listed: bool,
    pub(super) is_terminating: bool,
}

/// Returns true if the kubelet gives the pod exclusive CPUs or huge pages of zones.
pub(super) fn has_exclusive(request: &Request) -> bool {
    request.pinned_cpus() > 0 || request.page_size().is_some()
}

/// Returns true if the kubelet gives the pod no CPUs, memory or devices of a zone, so that its order of admission does not
/// matter to other pods: the kubelet's managers that know zones look at Guaranteed pods alone, and KubeVirt's own devices
/// have no zone.
pub(super) fn takes_nothing_of_zones(request: &Request) -> bool {
    let pod = request.pod();
    let mut containers = pod.init_containers.iter().chain(&pod.containers);
    !pod.is_guaranteed()
        && containers.all(|container| {
            container.requests.extended.keys().all(|name| name.starts_with("devices.kubevirt.io/"))
        })
}
