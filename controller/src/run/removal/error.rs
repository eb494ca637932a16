//! Errors of requests to the infra API server; each request may succeed when it is retried. Errors of a tenant's API
//! server are no errors of a reconcile: they are reported, and the removal waits.

use std::time::Duration;

use berth_runtime::reconcile::ReconcileError;

/// A failed request: verb and object of the request, and the error that the API server returned.
#[derive(Debug, thiserror::Error)]
#[error("{request}: {error}")]
pub(super) struct RemovalError {
    pub(super) request: String,
    pub(super) error: kube::Error,
}

impl ReconcileError for RemovalError {
    fn retry_after(&self) -> Duration {
        berth_runtime::call::retry_after(&self.error)
    }

    fn is_conflict(&self) -> bool {
        matches!(&self.error, kube::Error::Api(status) if status.code == 409)
    }
}
