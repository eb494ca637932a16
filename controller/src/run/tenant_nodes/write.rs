//! Writes labels to the Nodes of a tenant, by server-side apply without force.

use std::time::Duration;

use berth_api::names::CONTROLLER_FIELD_MANAGER;
use berth_runtime::call::CallError;
use berth_runtime::reconcile::ReconcileError;
use berth_runtime::untrusted::{UntrustedClient, UntrustedError};
use hyper::Request;
use hyper::header::CONTENT_TYPE;
use kube::client::Body;
use serde_json::json;

use crate::tenant_nodes::node::NodeObject;
use crate::tenant_nodes::plan::NodeWrite;

/// Largest number of bytes of a Node in an answer; the API server permits 1.5 MiB.
const MAX_NODE_LENGTH: usize = 1 << 21;

/// Error of a reconcile of a tenant's Nodes.
#[derive(Debug, thiserror::Error)]
pub(super) enum WriteError {
    /// A write of a Node failed.
    #[error("Node {node} of the tenant: labels: {error}")]
    Node {
        /// Name of the Node.
        node: String,
        /// Error of the tenant's API server.
        error: UntrustedError,
    },
    /// Not all writes were answered within the time limit.
    #[error(
        "the tenant's API server answers slowly: not all labels are written yet; the writes continue"
    )]
    Slow,
    /// The status could not be written.
    #[error("status of TenantCluster {0}: {1}")]
    Status(String, CallError),
}

impl ReconcileError for WriteError {
    fn retry_after(&self) -> Duration {
        match self {
            Self::Node { error, .. } => error.retry_after(),
            Self::Slow => Duration::ZERO,
            Self::Status(_, error) => error.retry_after(),
        }
    }

    fn is_conflict(&self) -> bool {
        // Another manager wrote the label or the status first; the watch delivers the new version.
        match self {
            Self::Node { error, .. } => *error == UntrustedError::Status(409),
            Self::Slow => false,
            Self::Status(_, error) => error.status_code() == Some(409),
        }
    }
}

/// Applies the labels of a Node, and returns the Node; `None` if the Node does not exist any more.
pub(super) async fn apply_labels(
    client: &UntrustedClient,
    write: &NodeWrite,
) -> Result<Option<NodeObject>, WriteError> {
    let error = |error| WriteError::Node { node: write.node.clone(), error };
    // With the UID, the server refuses to label another Node of the same name.
    let body = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": write.node, "uid": write.uid, "labels": write.labels},
    });
    let uri = format!("/api/v1/nodes/{}?fieldManager={CONTROLLER_FIELD_MANAGER}", write.node);
    let request = Request::patch(uri)
        .header(CONTENT_TYPE, "application/apply-patch+yaml")
        .body(Body::from(body.to_string().into_bytes()))
        .map_err(|_| error(UntrustedError::Malformed))?;
    match client.request(request, MAX_NODE_LENGTH).await {
        Ok(node) => Ok(Some(node)),
        Err(UntrustedError::Status(404)) => Ok(None),
        Err(failed) => Err(error(failed)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};

    use hyper::Response;
    use kube::Client;
    use serde_json::Value;

    use super::*;

    #[tokio::test]
    async fn labels_are_applied_without_force() {
        let requests: Arc<Mutex<Vec<(String, Value)>>> = Arc::default();
        let seen = Arc::clone(&requests);
        let service = tower::service_fn(move |request: Request<Body>| {
            let seen = Arc::clone(&seen);
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect_bytes().await.unwrap();
                let body = serde_json::from_slice(&body).unwrap();
                seen.lock().unwrap().push((format!("{} {}", parts.method, parts.uri), body));
                let answer = json!({"metadata": {"name": "web-1"}}).to_string();
                Response::builder().body(Body::from(answer.into_bytes()))
            }
        });
        let client = UntrustedClient::from_client(Client::new(service, "default"));
        let labels = BTreeMap::from([("rack".to_owned(), "7".to_owned())]);
        let write = NodeWrite { node: "web-1".to_owned(), uid: "u".to_owned(), labels };
        let node = apply_labels(&client, &write).await.unwrap().unwrap();
        assert_eq!(node.name(), "web-1");
        let (request, body) = requests.lock().unwrap().remove(0);
        assert_eq!(request, "PATCH /api/v1/nodes/web-1?fieldManager=berth-controller");
        let metadata = json!({"name": "web-1", "uid": "u", "labels": {"rack": "7"}});
        assert_eq!(body, json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata}));
    }
}
