//! Errors of kube-scheduler's calls.

use axum::extract::rejection::{BytesRejection, FailedToBufferBody};
use berth_extender::{BindError, LeaseError, NotReadyReason};
use berth_runtime::call::CallError;

/// Maximum size of a request body in bytes: sufficient for 50,000 host names and the largest pod that an API server
/// accepts.
pub(super) const MAX_BODY_BYTES: usize = 8 << 20;

/// Reason why the body of a request cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum BodyError {
    #[error("the request body is longer than {MAX_BODY_BYTES} bytes")]
    TooLong,
    #[error("failed to read the request body")]
    Incomplete(#[source] BytesRejection),
}

impl From<BytesRejection> for BodyError {
    fn from(rejection: BytesRejection) -> Self {
        match rejection {
            BytesRejection::FailedToBufferBody(FailedToBufferBody::LengthLimitError(_)) => {
                Self::TooLong
            }
            rejection => Self::Incomplete(rejection),
        }
    }
}

/// Reason why the extender cannot answer calls now.
#[derive(Debug, thiserror::Error)]
pub(super) enum GateError {
    #[error("{0}")]
    KindsNotListed(String),
    #[error(transparent)]
    Lease(#[from] LeaseError),
    #[error("failed to read Lease {name}")]
    ReadLease {
        name: String,
        #[source]
        source: kube::Error,
    },
    #[error("failed to read Lease {name}: no response within {seconds} s")]
    LeaseTimeout { name: String, seconds: u64 },
    #[error("the API server did not respond before the timeout of kube-scheduler's call")]
    DeadlineExceeded,
}

/// Reason why a `bind` call fails.
#[derive(Debug, thiserror::Error)]
pub(super) enum BindFailure {
    #[error("earlier bindings to this host are still in progress")]
    HostBusy,
    #[error("the extender is listing all objects again")]
    Relisting,
    #[error(transparent)]
    Gate(#[from] GateError),
    #[error(transparent)]
    Refused(#[from] BindError),
    #[error(transparent)]
    NotReady(#[from] NotReadyReason),
    #[error("the extender has no data about the pod")]
    UnknownPod,
    #[error("failed to read the pod")]
    ReadPod(#[from] kube::Error),
    #[error("failed to read the pod: no response in time")]
    ReadPodTimeout,
    #[error(transparent)]
    Api(CallError),
}
