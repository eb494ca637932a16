//! Writes to the Nodes in a tenant's cluster: labels and annotations by server-side apply without force, taints by a
//! JSON patch ([`crate::tenant_nodes::taint_changes`]).

use berth_runtime::untrusted::{RequestFailure, UntrustedClient, UntrustedError};
use hyper::Request;
use kube::client::Body;
use serde_json::{Value, json};

use crate::run::tenant_access::{MAX_OBJECT_LENGTH, NODES_PATH, WriteError, patch_object};
use crate::tenant_nodes::node::NodeObject;
use crate::tenant_nodes::plan::NodeWrite;
use crate::tenant_nodes::taint_changes::taint_patch;

/// Applies the labels and annotations of a Node, and returns the Node; `None` if there is nothing to apply, or the Node
/// does not exist any more.
pub(super) async fn apply_metadata(
    client: &UntrustedClient,
    write: &NodeWrite,
) -> Result<Option<NodeObject>, WriteError> {
    let Some(metadata) = &write.metadata else { return Ok(None) };
    // The UID makes the server refuse the request if the Node was replaced by another one of the same name.
    let body = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": write.node, "uid": write.uid,
            "labels": metadata.labels, "annotations": metadata.annotations,
        },
    });
    match patch(client, &write.node, "application/apply-patch+yaml", &body).await {
        Ok(node) => Ok(Some(node)),
        Err(failure) if failure.error == UntrustedError::Status(404) => Ok(None),
        Err(failure) => Err(write.write_error(failure)),
    }
}

/// Adds and removes taints of a Node, and returns the Node; `None` if there is nothing to change, or the Node does not
/// exist any more.
pub(super) async fn apply_taints(
    client: &UntrustedClient,
    write: &NodeWrite,
) -> Result<Option<NodeObject>, WriteError> {
    let Some(desired) = &write.taints else { return Ok(None) };
    // Other clients may change taints at the same time, so a conflict is retried.
    for is_last_attempt in [false, false, true] {
        // The Node is read from the API server, because the patch needs the index of each taint, which the store does
        // not contain; and the store may be stale.
        let node = match get(client, &write.node).await {
            Ok(node) if node.uid() == write.uid => node,
            Ok(_) | Err(UntrustedError::Status(404)) => return Ok(None),
            Err(error) => return Err(write.write_error(error.into())),
        };
        let Some(body) = taint_patch(desired, &node) else { return Ok(Some(node)) };
        match patch(client, &write.node, "application/json-patch+json", &body).await {
            Ok(node) => return Ok(Some(node)),
            Err(failure) => match failure.error {
                UntrustedError::Status(404) => return Ok(None),
                // A `test` operation of the patch failed, or the server found two taints with the same key and effect.
                UntrustedError::Status(409 | 422) if !is_last_attempt => {}
                _ => return Err(write.write_error(failure)),
            },
        }
    }
    Ok(None)
}

impl NodeWrite {
    fn write_error(&self, failure: RequestFailure) -> WriteError {
        WriteError::Object { kind: "Node", name: self.node.clone(), failure }
    }
}

async fn get(client: &UntrustedClient, node: &str) -> Result<NodeObject, UntrustedError> {
    let request = Request::get(format!("{NODES_PATH}/{node}")).body(Body::empty());
    client.request(request.map_err(|_| UntrustedError::Malformed)?, MAX_OBJECT_LENGTH).await
}

async fn patch(
    client: &UntrustedClient,
    node: &str,
    content_type: &str,
    body: &Value,
) -> Result<NodeObject, RequestFailure> {
    patch_object(client, &format!("{NODES_PATH}/{node}"), content_type, body).await
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::{Arc, Mutex};

    use hyper::Response;
    use kube::Client;

    use super::*;
    use crate::tenant_nodes::plan::OwnedMetadata;

    type Requests = Arc<Mutex<Vec<(String, Value)>>>;

    /// Returns a client of a test server that answers each PATCH with the next of these status codes, and the requests
    /// that the server has received.
    fn client(patch_statuses: &[u16]) -> (UntrustedClient, Requests) {
        let requests = Requests::default();
        let (seen, statuses) = (Arc::clone(&requests), Mutex::new(patch_statuses.to_vec()));
        let statuses = Arc::new(statuses);
        let service = tower::service_fn(move |request: Request<Body>| {
            let (seen, statuses) = (Arc::clone(&seen), Arc::clone(&statuses));
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect_bytes().await.unwrap();
                let body = serde_json::from_slice(&body).unwrap_or_default();
                let is_patch = parts.method == "PATCH";
                seen.lock().unwrap().push((format!("{} {}", parts.method, parts.uri), body));
                let status = if is_patch { statuses.lock().unwrap().remove(0) } else { 200 };
                let answer = json!({"metadata": {"name": "web-1", "uid": "u"}}).to_string();
                Response::builder().status(status).body(Body::from(answer.into_bytes()))
            }
        });
        (UntrustedClient::from_client(Client::new(service, "default")), requests)
    }

    fn write() -> NodeWrite {
        let labels = BTreeMap::from([("rack".to_owned(), "7".to_owned())]);
        NodeWrite {
            node: "web-1".to_owned(),
            uid: "u".to_owned(),
            metadata: Some(OwnedMetadata { labels, annotations: BTreeMap::new() }),
            taints: Some(BTreeSet::from(["gpu:NoSchedule".parse().unwrap()])),
        }
    }

    #[tokio::test]
    async fn labels_are_applied_without_force() {
        let (client, requests) = client(&[200]);
        let node = apply_metadata(&client, &write()).await.unwrap().unwrap();
        assert_eq!(node.name(), "web-1");
        let (request, body) = requests.lock().unwrap().remove(0);
        assert_eq!(request, "PATCH /api/v1/nodes/web-1?fieldManager=berth-controller");
        let metadata =
            json!({"name": "web-1", "uid": "u", "labels": {"rack": "7"}, "annotations": {}});
        assert_eq!(body, json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata}));
    }

    #[tokio::test]
    async fn taints_are_patched_again_after_a_conflict() {
        let (client, requests) = client(&[422, 200]);
        assert!(apply_taints(&client, &write()).await.unwrap().is_some());
        let methods: Vec<String> = requests
            .lock()
            .unwrap()
            .iter()
            .map(|(request, _)| request.split(' ').next().unwrap().to_owned())
            .collect();
        assert_eq!(methods, ["GET", "PATCH", "GET", "PATCH"]);
        assert_eq!(requests.lock().unwrap()[3].1[0]["value"], "u", "the UID is tested");
        let (refusing, _) = self::client(&[422; 3]);
        assert!(apply_taints(&refusing, &write()).await.is_err());
        let other = NodeWrite { uid: "other".to_owned(), ..write() };
        let (client, requests) = self::client(&[]);
        assert!(apply_taints(&client, &other).await.unwrap().is_none());
        assert_eq!(requests.lock().unwrap().len(), 1);
    }
}
