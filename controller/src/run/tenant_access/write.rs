//! Writes to objects in a tenant's cluster, and the errors of the reconcilers that write them.

use std::time::Duration;

use berth_api::names::CONTROLLER_FIELD_MANAGER;
use berth_runtime::call::CallError;
use berth_runtime::reconcile::ReconcileError;
use berth_runtime::untrusted::{RequestFailure, UntrustedClient, UntrustedError};
use hyper::Request;
use hyper::header::CONTENT_TYPE;
use kube::client::Body;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Maximum length of an object in an answer, in bytes. The API server permits 1.5 MiB.
pub(in crate::run) const MAX_OBJECT_LENGTH: usize = 1 << 21;

/// Error of a reconcile of the objects in a tenant's cluster.
#[derive(Debug, thiserror::Error)]
pub(in crate::run) enum WriteError {
    /// A write of an object failed.
    #[error("patch {kind} {name} of the tenant: {failure}")]
    Object {
        kind: &'static str,
        name: String,
        /// Error of the tenant's API server.
        failure: RequestFailure,
    },
    /// Not all writes were answered within the time limit. The value is the plural of the kind of the objects.
    #[error(
        "the tenant's API server answers slowly: not all {0} have been written yet; the writes continue"
    )]
    Slow(&'static str),
    /// The status of the TenantCluster could not be written. The values are the name of the tenant and the error.
    #[error("apply status of TenantCluster {0}: {1}")]
    Status(String, CallError),
}

impl ReconcileError for WriteError {
    fn retry_after(&self) -> Duration {
        match self {
            Self::Object { failure, .. } => failure.error.retry_after(),
            Self::Slow(_) => Duration::ZERO,
            Self::Status(_, error) => error.retry_after(),
        }
    }

    fn is_conflict(&self) -> bool {
        // Another manager has written the object or the status meanwhile. The watch delivers the new version, which
        // triggers the next reconcile.
        match self {
            Self::Object { failure, .. } => failure.error == UntrustedError::Status(409),
            Self::Slow(_) => false,
            Self::Status(_, error) => error.is_conflict(),
        }
    }
}

/// Patches an object as the controller's field manager, and returns the object.
pub(in crate::run) async fn patch_object<T: DeserializeOwned>(
    client: &UntrustedClient,
    path: &str,
    content_type: &str,
    body: &Value,
) -> Result<T, RequestFailure> {
    let request = Request::patch(format!("{path}?fieldManager={CONTROLLER_FIELD_MANAGER}"))
        .header(CONTENT_TYPE, content_type)
        .body(json_body(body))
        .map_err(|_| UntrustedError::Malformed)?;
    client.write(request, MAX_OBJECT_LENGTH).await
}

/// Returns the body of a request.
pub(in crate::run) fn json_body(value: &Value) -> Body {
    Body::from(value.to_string().into_bytes())
}
