//! Answers to kube-scheduler's calls.

use std::borrow::Cow;

use super::error::{BindError, FilterError, NotReadyReason};

/// Answer to a `filter` call.
#[derive(Debug, PartialEq, Eq)]
pub enum FilterAnswer<'n> {
    /// The host that is reserved for the pod.
    ReservedHost(&'n str),
    /// The hosts on which a pod with ResourceClaims fits. No host is reserved: kube-scheduler chooses one of them,
    /// because only its plugin knows the devices of the claims. `bind` then checks and reserves that host.
    UnreservedHosts(Vec<&'n str>),
    /// No host accepts the pod; each host has a short reason.
    Refused(Vec<(&'n str, Cow<'static, str>)>),
    /// The watches lag behind; the caller should repeat the call after a moment.
    NotReady(NotReadyReason),
    /// The call fails, and a repeated call would soon fail again.
    Failed(FilterError),
}

/// Answer to a `bind` call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BindAnswer {
    /// The caller must send the binding and then call
    /// [`Extender::record_binding_success`](super::Extender::record_binding_success) or
    /// [`Extender::record_binding_failure`](super::Extender::record_binding_failure) with the outcome.
    SendBinding,
    /// The pod is already bound to this host.
    AlreadyBound,
    /// The pod is unknown; the caller must repeat the call with the pod.
    PodRequired,
    /// The watches lag behind; the caller should repeat the call after a moment.
    NotReady(NotReadyReason),
    /// The pod may not be bound to this host.
    Refused(BindError),
}
