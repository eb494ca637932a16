//! Errors, and reasons why a call cannot be answered yet.

use berth_kubevirt_render::launcher;
use berth_placement::rules;

/// Unusable field of a Pod or a Node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{object}: {field}: `{value}`: {problem}")]
pub struct InvalidField {
    object: String,
    field: String,
    value: String,
    problem: String,
}

impl InvalidField {
    pub(super) fn new(object: String, invalid: rules::Invalid) -> Self {
        let rules::Invalid { field, value, problem } = invalid;
        Self { object, field, value, problem }
    }
}

/// Reason why a call cannot be answered before the watches deliver further events.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotReady {
    /// Pods are not listed yet, so the resources in use are unknown.
    #[error("pods are not listed yet")]
    PodsNotListed,
    /// The pod's VirtualMachineInstance is unknown.
    #[error("{pod}: VirtualMachineInstance {instance} is not known in its namespace")]
    UnknownInstance {
        /// The pod.
        pod: String,
        /// The uid of the instance that the pod names.
        instance: String,
    },
    /// A binding was sent, and its outcome is unknown.
    #[error("{pod} is being bound to {host}")]
    BindingPending {
        /// The pod.
        pod: String,
        /// The host.
        host: String,
    },
}

/// Reason why `filter` fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// The pod cannot be read.
    #[error(transparent)]
    Pod(#[from] launcher::Invalid),
    /// A rule of the pod cannot be compiled.
    #[error(transparent)]
    Field(#[from] InvalidField),
    /// The pod has no uid.
    #[error("{pod}: metadata.uid: is empty")]
    EmptyUid {
        /// The pod.
        pod: String,
    },
    /// The watch has shown that the pod is deleted or has ended.
    #[error("{pod} is deleted, or has ended")]
    Deleted {
        /// The pod.
        pod: String,
    },
    /// The pod is bound to a host that the scheduler does not offer.
    #[error("{pod} is bound to {host} already")]
    AlreadyBound {
        /// The pod.
        pod: String,
        /// The host.
        host: String,
    },
    /// The engine has chosen a host that the scheduler does not offer.
    #[error("{pod}: the chosen host is not in NodeNames")]
    HostNotOffered {
        /// The pod.
        pod: String,
    },
}

/// Reason why a pod may not be bound to a host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// The watch has shown that the pod is deleted or has ended.
    #[error("pod {uid} is deleted, or has ended")]
    Deleted {
        /// The pod.
        uid: String,
    },
    /// Another host is reserved for the pod.
    #[error("{reserved} is reserved for the pod, not {host}")]
    OtherHost {
        /// The host of the reservation.
        reserved: String,
        /// The host of the call.
        host: String,
    },
    /// The host does not accept the pod now.
    #[error("{host}: {reason}")]
    Unavailable {
        /// The host.
        host: String,
        /// The reason, as in the scheduler's event.
        reason: &'static str,
    },
    /// The pod cannot be read.
    #[error(transparent)]
    Pod(#[from] launcher::Invalid),
    /// A rule of the pod cannot be compiled.
    #[error(transparent)]
    Field(#[from] InvalidField),
    /// Another pod now has the same name.
    #[error("{pod} has the uid {actual}, not {expected}")]
    OtherUid {
        /// The pod.
        pod: String,
        /// The uid of the other pod.
        actual: String,
        /// The uid of the call.
        expected: String,
    },
    /// The pod does not fit in every order in which the kubelet may admit pods.
    #[error("{}", super::availability::AWAITING_REPORT)]
    UnknownOrder,
    /// The host has no room for the pod.
    #[error("the pod no longer fits there: {reason}")]
    NoRoom {
        /// The engine's reason.
        reason: String,
    },
    /// An earlier reservation would no longer fit.
    #[error("an earlier reservation would no longer fit")]
    WouldDisplace,
}

/// Reason why a pod on a host is not counted, or is counted without its rules.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PodError {
    /// The pod is not counted.
    #[error("{0}; the pod is not counted")]
    NotCounted(#[source] InvalidField),
    /// The pod's resources are counted, its rules are not.
    #[error("{0}; the pod's resources are counted, its affinity and spread rules are ignored")]
    CountedWithoutRules(#[source] InvalidField),
}

/// Reason why a request cannot be compiled.
#[derive(Debug)]
pub(super) enum RequestError {
    NotReady(NotReady),
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
    /// A field cannot be read, or no launcher pod can be predicted from the object.
    #[error(transparent)]
    Field(#[from] launcher::Invalid),
    /// The object is of another kind.
    #[error("not a VirtualMachineInstance of kubevirt.io")]
    OtherKind,
}
