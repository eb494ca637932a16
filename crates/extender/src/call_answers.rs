//! Answers to kube-scheduler's calls.

use std::borrow::Cow;

use super::error::{BindError, FilterError, NotReadyReason};

/// Answer to a `filter` call.
#[derive(Debug, PartialEq, Eq)]
pub enum FilterAnswer<'n> {
    /// Resources for the pod are reserved on this host.
    ReservedHost(&'n str),
    /// For a pod with ResourceClaims: the hosts on which the pod fits. No resources are reserved, because only
    /// kube-scheduler's plugin for dynamic resource allocation knows which host has the claimed devices. `bind` then
    /// checks the host that kube-scheduler has chosen, and reserves the resources.
    UnreservedHosts(Vec<&'n str>),
    /// No host accepts the pod. Each host has a short reason.
    Refused(Vec<(&'n str, Cow<'static, str>)>),
    /// The extender has not yet received the required watch events. The caller should repeat the call after a short
    /// time.
    NotReady(NotReadyReason),
    /// The call fails. An immediate repetition would fail, too.
    Failed(FilterError),
}

/// Answer to a `bind` call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BindAnswer {
    /// The caller must send the binding and then call
    /// [`Extender::record_binding_success`](super::Extender::record_binding_success) or
    /// [`Extender::record_binding_failure`](super::Extender::record_binding_failure) with the outcome.
    SendBinding,
    /// The pod is already bound to the requested host.
    AlreadyBound,
    /// The extender does not know the pod. The caller must repeat the call with the pod.
    PodRequired,
    /// The extender has not yet received the required watch events. The caller should repeat the call after a short
    /// time.
    NotReady(NotReadyReason),
    /// The pod must not be bound to the requested host.
    Refused(BindError),
}
