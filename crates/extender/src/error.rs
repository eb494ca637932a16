//! Errors, and reasons why a call cannot be answered yet.

use berth_kubevirt_render::launcher;
use berth_placement::rules;

/// Invalid field of a Pod or a Node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{object}: {field}: `{value}`: {problem}")]
pub struct InvalidField {
    object: String,
    field: String,
    value: String,
    problem: String,
}

impl InvalidField {
    pub(super) fn new(object: String, invalid: rules::InvalidField) -> Self {
        let rules::InvalidField { field, value, problem } = invalid;
        Self { object, field, value, problem }
    }
}

/// Reason why a call of kube-scheduler cannot be answered before further watch events arrive.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotReadyReason {
    /// The pods of the cluster are not listed yet, so the allocated resources are unknown.
    #[error("the pods of the cluster have not been listed yet")]
    PodsNotListed,
    /// The VirtualMachineInstance of the pod is not known yet.
    #[error(
        "{pod}: VirtualMachineInstance {instance} has not been observed in the pod's namespace yet"
    )]
    UnknownInstance {
        /// The pod, as `Pod namespace/name`.
        pod: String,
        /// UID of the VirtualMachineInstance to which the pod belongs, according to its labels.
        instance: String,
    },
    /// A binding of the pod was sent, and its outcome is not known yet.
    #[error("{pod}: the binding to {host} is in progress")]
    BindingPending {
        /// The pod, as `Pod namespace/name`.
        pod: String,
        /// Name of the host to which the pod is being bound.
        host: String,
    },
}

/// Reason why a `filter` call fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// The pod's resources or another field that the extender reads are invalid.
    #[error(transparent)]
    InvalidPod(#[from] launcher::Invalid),
    /// An affinity rule, spread constraint or toleration of the pod is invalid.
    #[error(transparent)]
    Field(#[from] InvalidField),
    /// The pod has no UID.
    #[error("{pod}: metadata.uid: is empty")]
    EmptyUid {
        /// The pod, as `Pod namespace/name`.
        pod: String,
    },
    /// The watch has shown that the pod was deleted or has ended.
    #[error("{pod} was deleted or has terminated")]
    Deleted {
        /// The pod, as `Pod namespace/name`.
        pod: String,
    },
    /// The pod is already bound to a host that is not in `NodeNames` of the call.
    #[error("{pod} is already bound to {host}")]
    AlreadyBound {
        /// The pod, as `Pod namespace/name`.
        pod: String,
        /// Name of the host to which the pod is bound.
        host: String,
    },
    /// The engine has selected a host that is not in `NodeNames` of the call.
    #[error("{pod}: the selected host is not in `NodeNames` of the filter request")]
    HostNotOffered {
        /// The pod, as `Pod namespace/name`.
        pod: String,
    },
}

/// Reason why a pod must not be bound to a host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// The watch has shown that the pod was deleted or has ended.
    #[error("pod {uid} was deleted or has terminated")]
    Deleted {
        /// UID of the pod.
        uid: String,
    },
    /// Resources for the pod are reserved on another host.
    #[error("the pod has a reservation on {reserved_host}, not on {host}")]
    WrongHost {
        /// Name of the host on which resources are reserved.
        reserved_host: String,
        /// Name of the host in the `bind` call.
        host: String,
    },
    /// The host does not accept the pod now.
    #[error("{host}: {reason}")]
    Unavailable {
        /// Name of the host.
        host: String,
        /// Reason, in the same words as in the Event `FailedScheduling` of kube-scheduler.
        reason: &'static str,
    },
    /// The pod's resources or another field that the extender reads are invalid.
    #[error(transparent)]
    InvalidPod(#[from] launcher::Invalid),
    /// An affinity rule, spread constraint or toleration of the pod is invalid.
    #[error(transparent)]
    Field(#[from] InvalidField),
    /// The pod was replaced by another pod of the same name.
    #[error("{pod} has UID {actual}, but the call has UID {expected}")]
    UidMismatch {
        /// The pod, as `Pod namespace/name`.
        pod: String,
        /// UID of the pod that now has this name.
        actual: String,
        /// UID in the `bind` call.
        expected: String,
    },
    /// The pod does not fit in every order in which the kubelet may admit the pods of the host.
    #[error("{}", super::availability::AWAITING_REPORT_REASON)]
    UnknownAdmissionOrder,
    /// The pod no longer fits on the host.
    #[error("the pod no longer fits on the host: {reason}")]
    InsufficientResources {
        /// The engine's reason why the pod does not fit.
        reason: String,
    },
    /// After the binding, the reservation of another pod on the host would no longer fit.
    #[error("after the binding, the reservation of another pod on the host would no longer fit")]
    DisplacesReservation,
}

/// Reason why the resources or the rules of a pod on a host are not counted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PodError {
    /// Neither the pod's resources nor its rules are counted.
    #[error("{0}; the pod's resources are not counted")]
    NotCounted(#[source] InvalidField),
    /// The pod's resources are counted, but its affinity and spread rules are ignored.
    #[error("{0}; the pod's resources are counted, but its affinity and spread rules are ignored")]
    CountedWithoutRules(#[source] InvalidField),
}

/// Reason why a pod's request cannot be compiled.
#[derive(Debug)]
pub(super) enum RequestError {
    NotReady(NotReadyReason),
    Field(InvalidField),
}

impl From<InvalidField> for RequestError {
    fn from(invalid: InvalidField) -> Self {
        Self::Field(invalid)
    }
}

/// Reason why a VirtualMachineInstance cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VmError {
    /// A field is invalid, or the launcher pod of the VirtualMachineInstance cannot be predicted.
    #[error(transparent)]
    Field(#[from] launcher::Invalid),
    /// The object is of another kind.
    #[error("the object is not a VirtualMachineInstance of kubevirt.io")]
    WrongKind,
}
