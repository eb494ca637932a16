//! Answers to kube-scheduler's calls.

use std::borrow::Cow;

use super::error::{BindError, FilterError, NotReady};

/// Answer to `filter`.
#[derive(Debug, PartialEq, Eq)]
pub enum FilterAnswer<'n> {
    /// The host that is reserved for the pod.
    Host(&'n str),
    /// No host takes the pod; each has a short reason.
    Refused(Vec<(&'n str, Cow<'static, str>)>),
    /// The watches are behind; the call is worth repeating in a moment.
    NotReady(NotReady),
    /// The call fails, and repeating it does not help soon.
    Failed(FilterError),
}

/// Answer to `bind`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BindAnswer {
    /// The binding is to be sent; then [`Extender::bound`](super::Extender::bound) or
    /// [`Extender::not_bound`](super::Extender::not_bound) is called with the outcome.
    Send,
    /// The pod is bound to this host already.
    AlreadyBound,
    /// The pod is not known; the call is to be repeated with it.
    PodNeeded,
    /// The watches are behind; the call is worth repeating in a moment.
    NotReady(NotReady),
    /// The pod may not be bound to this host.
    Refused(BindError),
}
