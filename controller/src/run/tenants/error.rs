//! Errors that end a reconcile of a tenant.

use std::time::Duration;

use berth_runtime::call::{CallError, is_conflict};
use berth_runtime::reconcile::ReconcileError;

pub(super) use crate::run::api_requests::none_if_not_found;

/// Error that ends a reconcile of a tenant.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another client has written the object since it was read; the next reconcile reads the new version. The value
    /// names the object or the request.
    #[error("{0}: another client changed the object at the same time")]
    ChangedConcurrently(String),
    /// The API server refused a request, or could not be reached.
    #[error("{request}: {error}")]
    Server {
        /// Verb and object of the request.
        request: String,
        /// Error of the API server.
        error: Box<kube::Error>,
    },
    /// A list of objects failed.
    #[error("{request}: {error}")]
    List {
        /// Verb and object of the request.
        request: String,
        /// Error of the list.
        error: CallError,
    },
    /// Objects of the tenant could not be applied. The value is the message, which is also in the status of the tenant.
    #[error("{0}")]
    NotApplied(String),
    /// A task that should never end has ended. The value is the name of the task.
    #[error("{0} ended unexpectedly")]
    TaskEnded(&'static str),
}

/// Adds verb and object of a request to its error. A conflict (409) becomes [`Error::ChangedConcurrently`], because the
/// next reconcile resolves it.
pub(super) fn with_request<T>(
    request: impl Into<String>,
    result: kube::Result<T>,
) -> Result<T, Error> {
    result.map_err(|error| {
        if is_conflict(&error) {
            Error::ChangedConcurrently(request.into())
        } else {
            Error::Server { request: request.into(), error: Box::new(error) }
        }
    })
}

impl ReconcileError for Error {
    fn is_conflict(&self) -> bool {
        matches!(self, Self::ChangedConcurrently(_))
    }

    fn retry_after(&self) -> Duration {
        match self {
            Self::Server { error, .. } => berth_runtime::call::retry_after(error),
            Self::List { error, .. } => error.retry_after(),
            Self::ChangedConcurrently(_) | Self::NotApplied(_) | Self::TaskEnded(_) => {
                Duration::ZERO
            }
        }
    }
}
