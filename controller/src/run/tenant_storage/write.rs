//! Writes StorageClasses in a tenant's cluster, by server-side apply without force.

use std::time::Duration;

use berth_api::names::CONTROLLER_FIELD_MANAGER;
use berth_runtime::call::CallError;
use berth_runtime::reconcile::ReconcileError;
use berth_runtime::untrusted::{UntrustedClient, UntrustedError};
use hyper::Request;
use hyper::header::CONTENT_TYPE;
use kube::client::Body;

use crate::tenant_storage::class::ClassObject;
use crate::tenant_storage::plan::ClassChange;

/// Largest number of bytes of a StorageClass in an answer; the API server permits 1.5 MiB.
const MAX_CLASS_LENGTH: usize = 1 << 21;

/// Error of a reconcile of a tenant's StorageClasses.
#[derive(Debug, thiserror::Error)]
pub(super) enum WriteError {
    /// A write of a class failed.
    #[error("StorageClass {class} of the tenant: {error}")]
    Class {
        /// Name of the class.
        class: String,
        /// Error of the tenant's API server.
        error: UntrustedError,
    },
    /// Not all writes were answered within the time limit.
    #[error(
        "the tenant's API server answers slowly: not all StorageClasses are written yet; the writes continue"
    )]
    Slow,
    /// The status could not be written.
    #[error("status of TenantCluster {0}: {1}")]
    Status(String, CallError),
}

impl ReconcileError for WriteError {
    fn retry_after(&self) -> Duration {
        match self {
            Self::Class { error, .. } => error.retry_after(),
            Self::Slow => Duration::ZERO,
            Self::Status(_, error) => error.retry_after(),
        }
    }

    fn is_conflict(&self) -> bool {
        // Another manager wrote the class or the status first; the watch delivers the new version.
        match self {
            Self::Class { error, .. } => *error == UntrustedError::Status(409),
            Self::Slow => false,
            Self::Status(_, error) => error.status_code() == Some(409),
        }
    }
}

/// Applies a StorageClass, and returns it.
pub(super) async fn apply_class(
    client: &UntrustedClient,
    change: &ClassChange,
) -> Result<ClassObject, WriteError> {
    let error = |error| WriteError::Class { class: change.name.clone(), error };
    let uri = format!(
        "/apis/storage.k8s.io/v1/storageclasses/{}?fieldManager={CONTROLLER_FIELD_MANAGER}",
        change.name
    );
    let request = Request::patch(uri)
        .header(CONTENT_TYPE, "application/apply-patch+yaml")
        .body(Body::from(change.body().to_string().into_bytes()))
        .map_err(|_| error(UntrustedError::Malformed))?;
    client.request(request, MAX_CLASS_LENGTH).await.map_err(error)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};

    use hyper::Response;
    use kube::Client;
    use serde_json::{Value, json};

    use super::*;
    use crate::tenant_storage::desired::{DesiredClass, DesiredClasses};
    use crate::tenant_storage::plan::plan_classes;

    #[tokio::test]
    async fn classes_are_applied_without_force() {
        let requests: Arc<Mutex<Vec<(String, Value)>>> = Arc::default();
        let seen = Arc::clone(&requests);
        let service = tower::service_fn(move |request: Request<Body>| {
            let seen = Arc::clone(&seen);
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect_bytes().await.unwrap();
                let body = serde_json::from_slice(&body).unwrap();
                seen.lock().unwrap().push((format!("{} {}", parts.method, parts.uri), body));
                let answer = json!({"metadata": {"name": "kubevirt-a"}}).to_string();
                Response::builder().body(Body::from(answer.into_bytes()))
            }
        });
        let client = UntrustedClient::from_client(Client::new(service, "default"));
        let classes = BTreeMap::from([("kubevirt-a".to_owned(), DesiredClass::default())]);
        let desired = DesiredClasses { classes, ..DesiredClasses::default() };
        let plan = plan_classes(&desired, &BTreeMap::new());
        let class = apply_class(&client, &plan.changes[0]).await.unwrap();
        assert_eq!(class.name(), "kubevirt-a");
        let (request, body) = requests.lock().unwrap().remove(0);
        let path = "/apis/storage.k8s.io/v1/storageclasses/kubevirt-a";
        assert_eq!(request, format!("PATCH {path}?fieldManager=berth-controller"));
        assert_eq!(body, plan.changes[0].body());
    }
}
