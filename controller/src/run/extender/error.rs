//! Errors of kube-scheduler's calls.

use axum::extract::rejection::{BytesRejection, FailedToBufferBody};
use berth_extender::{BindError, LeaseError, NotReady};
use berth_runtime::call::CallError;

/// Maximum size of a request body in bytes: sufficient for 50,000 host names and the largest pod that an API server
/// accepts.
pub(super) const MAX_BODY: usize = 8 << 20;

/// Reason why the body of a request cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum BodyError {
    #[error("the body is longer than {MAX_BODY} bytes")]
    TooLong,
    #[error("failed to read the body")]
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
    Unlisted(String),
    #[error(transparent)]
    Lease(#[from] LeaseError),
    #[error("Lease {name}: failed to read")]
    ReadLease {
        name: String,
        #[source]
        source: kube::Error,
    },
    #[error("Lease {name}: no answer within {seconds} s")]
    LeaseTimeout { name: String, seconds: u64 },
    #[error("the API server did not answer in time for kube-scheduler")]
    DeadlineExceeded,
}

/// Reason why a `bind` call fails.
#[derive(Debug, thiserror::Error)]
pub(super) enum BindFailure {
    #[error("earlier bindings to this host are still in progress")]
    HostBusy,
    #[error("all objects are being listed again")]
    Relisting,
    #[error(transparent)]
    Gate(#[from] GateError),
    #[error(transparent)]
    Refused(#[from] BindError),
    #[error(transparent)]
    NotReady(#[from] NotReady),
    #[error("the pod is not known")]
    UnknownPod,
    #[error("failed to read the pod")]
    ReadPod(#[from] kube::Error),
    #[error("failed to read the pod: no answer in time")]
    ReadPodTimeout,
    #[error(transparent)]
    Api(CallError),
}
