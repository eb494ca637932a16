//! Requests of a drain to a tenant's API server. All answers have limits, because the tenant controls the server.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::names::CORDONED_ANNOTATION;
use berth_runtime::untrusted::{
    CollectionLimits, RequestFailure, UntrustedClient, UntrustedError, list_collection,
};
use hyper::Request;
use hyper::header::CONTENT_TYPE;
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use crate::removal::eviction::{EvictionOutcome, eviction_outcome};
use crate::removal::pod::{DrainPod, PodObject};
use crate::run::tenant_access::{
    MAX_OBJECT_LENGTH, NODE_LIMITS, NODES_PATH, json_body, patch_object,
};
use crate::tenant_nodes::node::NodeObject;
use crate::tenant_nodes::node_match::may_be_node_of;

/// Maximum number of Nodes that are read for one machine. Two are sufficient to report that the Node is ambiguous.
const MAX_NODES: usize = 2;
/// Maximum length of the answer to an eviction, in bytes.
const MAX_EVICTION_LENGTH: usize = 1 << 16;
/// Limits for the list of pods. A pod usually has 10 KiB; the API server permits 1.5 MiB. A kubelet runs at most 110
/// pods by default.
const POD_LIMITS: CollectionLimits = CollectionLimits {
    page_size: 20,
    max_pages: 100,
    max_page_length: 1 << 22,
    max_event_length: 0,
};
/// Maximum number of pods of a Node that are stored. A server can put more objects on a page than requested, so the
/// maximum number of pages does not limit the number of pods.
const MAX_PODS: usize = 2000;
/// Limits for the list of VolumeAttachments, which contains those of all Nodes, because the API server can select
/// VolumeAttachments only by name. A VolumeAttachment usually has 1 KiB.
const VOLUME_LIMITS: CollectionLimits = CollectionLimits {
    page_size: 200,
    max_pages: 100,
    max_page_length: 1 << 22,
    max_event_length: 0,
};
/// Versions of the eviction API: the second one is for Kubernetes before 1.22.
const EVICTION_VERSIONS: [&str; 2] = ["policy/v1", "policy/v1beta1"];

/// A VolumeAttachment, of which only the name of the Node is read.
#[derive(Default, Deserialize)]
#[serde(default)]
struct VolumeAttachment {
    spec: VolumeAttachmentSpec,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct VolumeAttachmentSpec {
    node_name: String,
}

/// Cordons a Node, or uncordons it. Returns the Node as it is after the write.
pub(super) async fn set_cordoned(
    client: &UntrustedClient,
    node: &str,
    uid: &str,
    is_cordoned: bool,
) -> Result<NodeObject, RequestFailure> {
    let (mark, unschedulable) =
        if is_cordoned { (json!("removal"), json!(true)) } else { (Value::Null, Value::Null) };
    // The UID makes the server refuse the request if the Node was replaced by another one of the same name.
    let body = json!({
        "metadata": {"uid": uid, "annotations": {CORDONED_ANNOTATION: mark}},
        "spec": {"unschedulable": unschedulable},
    });
    patch_object(client, &format!("{NODES_PATH}/{node}"), "application/merge-patch+json", &body)
        .await
}

/// Lists the Nodes that may be the Node of a machine. An API server cannot select Nodes by their providerIDs.
pub(super) async fn list_nodes_of(
    client: &UntrustedClient,
    machine: &str,
) -> Result<Vec<NodeObject>, UntrustedError> {
    let mut nodes = Vec::new();
    let add = |node: NodeObject| {
        if nodes.len() < MAX_NODES && may_be_node_of(&node, machine) {
            nodes.push(node);
        }
    };
    list_collection(client, NODES_PATH, NODE_LIMITS, add).await?;
    Ok(nodes)
}

/// Lists the pods on a Node, except those that a drain skips.
pub(super) async fn list_pods(
    client: &UntrustedClient,
    node: &str,
    now: Timestamp,
) -> Result<Vec<DrainPod>, UntrustedError> {
    let path = format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{node}");
    let (mut pods, mut is_truncated) = (Vec::new(), false);
    let add = |object: PodObject| {
        let Some(pod) = DrainPod::from_object(object, now) else { return };
        if pods.len() < MAX_PODS {
            pods.push(pod);
        } else {
            is_truncated = true;
        }
    };
    list_collection(client, &path, POD_LIMITS, add).await?;
    // A drain that knows only the first pods would end before the Node is empty.
    if is_truncated { Err(UntrustedError::TooLong) } else { Ok(pods) }
}

/// Numbers of VolumeAttachments, by Node.
pub(super) type VolumeCounts = BTreeMap<String, usize>;

/// Counts the VolumeAttachments of the Nodes in `counts`, and adds the numbers to `counts`.
pub(super) async fn count_volumes(
    client: &UntrustedClient,
    mut counts: VolumeCounts,
) -> Result<VolumeCounts, UntrustedError> {
    let add = |attachment: VolumeAttachment| {
        if let Some(count) = counts.get_mut(&attachment.spec.node_name) {
            *count = count.saturating_add(1);
        }
    };
    let path = "/apis/storage.k8s.io/v1/volumeattachments";
    list_collection(client, path, VOLUME_LIMITS, add).await?;
    Ok(counts)
}

/// Evicts a pod. Returns the outcome, and the duration for which the server refuses further requests (`Retry-After`).
pub(super) async fn evict(
    client: &UntrustedClient,
    pod: &DrainPod,
) -> Result<(EvictionOutcome, Duration), UntrustedError> {
    let DrainPod { namespace, name, uid, .. } = pod;
    let uri = format!("/api/v1/namespaces/{namespace}/pods/{name}/eviction");
    let mut refused = None;
    for version in EVICTION_VERSIONS {
        // The UID makes the server refuse the eviction if the pod was replaced by another one of the same name, which
        // may be on another Node.
        let body = json!({
            "apiVersion": version, "kind": "Eviction", "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}},
        });
        let request = Request::post(&uri)
            .header(CONTENT_TYPE, "application/json")
            .body(json_body(&body))
            .map_err(|_| UntrustedError::Malformed)?;
        let answer = client.exchange(request, MAX_EVICTION_LENGTH).await?;
        let outcome =
            eviction_outcome(answer.code, &answer.body, || client.explanation(&answer.body));
        // A server without this version of the eviction API answers 400, as a webhook may. If both versions get 400,
        // the first answer is from a webhook.
        if answer.code != 400 {
            return Ok((outcome, answer.retry_after));
        }
        refused = refused.or(Some((outcome, answer.retry_after)));
    }
    Ok(refused.unwrap_or((EvictionOutcome::Busy, Duration::ZERO)))
}

/// Deletes a Node. Succeeds if the Node does not exist any more.
pub(super) async fn delete_node(
    client: &UntrustedClient,
    node: &str,
    uid: &str,
) -> Result<(), RequestFailure> {
    let body = json!({
        "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid},
    });
    let request = Request::delete(format!("{NODES_PATH}/{node}"))
        .header(CONTENT_TYPE, "application/json")
        .body(json_body(&body))
        .map_err(|_| UntrustedError::Malformed)?;
    match client.write::<IgnoredAny>(request, MAX_OBJECT_LENGTH).await {
        Ok(_) => Ok(()),
        Err(failure) if failure.error == UntrustedError::Status(404) => Ok(()),
        Err(failure) => Err(failure),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use hyper::Response;
    use kube::Client;
    use kube::client::Body;

    use super::*;

    type Requests = Arc<Mutex<Vec<(String, Value)>>>;

    /// Returns a client of a test server. The server answers each request with the status and body that `answer`
    /// returns for the request line and the body.
    fn client(answer: fn(&str, &Value) -> (u16, Value)) -> (UntrustedClient, Requests) {
        let requests = Requests::default();
        let seen = Arc::clone(&requests);
        let service = tower::service_fn(move |request: Request<Body>| {
            let seen = Arc::clone(&seen);
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect_bytes().await.unwrap();
                let body: Value = serde_json::from_slice(&body).unwrap_or_default();
                let line = format!("{} {}", parts.method, parts.uri);
                let (code, text) = answer(&line, &body);
                seen.lock().unwrap().push((line, body));
                Response::builder().status(code).body(Body::from(text.to_string().into_bytes()))
            }
        });
        (UntrustedClient::from_client(Client::new(service, "default")), requests)
    }

    fn pod() -> DrainPod {
        let (namespace, name) = ("shop".to_owned(), "web-1".to_owned());
        DrainPod { namespace, name, uid: "u".to_owned(), terminating: None }
    }

    #[tokio::test]
    async fn an_old_server_gets_the_old_eviction_version() {
        let (client, requests) = client(|_, body| match body["apiVersion"].as_str() {
            Some("policy/v1beta1") => (201, json!({})),
            _ => (400, json!({})),
        });
        let (outcome, _) = evict(&client, &pod()).await.unwrap();
        assert_eq!(outcome, EvictionOutcome::Accepted);
        let requests = requests.lock().unwrap();
        assert_eq!(requests.len(), 2);
        assert_eq!(requests[0].0, "POST /api/v1/namespaces/shop/pods/web-1/eviction");
        assert_eq!(requests[0].1["deleteOptions"]["preconditions"]["uid"], "u");
    }

    #[tokio::test]
    async fn refusals_of_a_webhook_are_explained() {
        let (client, _) = client(|_, body| match body["apiVersion"].as_str() {
            Some("policy/v1beta1") => (400, json!({"message": "no kind Eviction is registered"})),
            _ => (400, json!({"message": "webhook a.example.com denied the request"})),
        });
        let (outcome, _) = evict(&client, &pod()).await.unwrap();
        let words = "status 400, with the message \"webhook a.example.com denied the request\"";
        assert!(outcome.to_string().contains(words), "{outcome}");
        let refused = set_cordoned(&client, "web-1", "u", true).await.unwrap_err();
        assert!(refused.to_string().contains(words), "{refused}");
        let refused = delete_node(&client, "web-1", "u").await.unwrap_err();
        assert!(refused.to_string().contains(words), "{refused}");
    }

    #[tokio::test]
    async fn a_node_is_cordoned_and_uncordoned() {
        let (client, requests) = client(|_, _| (200, json!({"metadata": {"name": "web-1"}})));
        set_cordoned(&client, "web-1", "u", true).await.unwrap();
        set_cordoned(&client, "web-1", "u", false).await.unwrap();
        let requests = requests.lock().unwrap();
        assert_eq!(requests[0].0, "PATCH /api/v1/nodes/web-1?fieldManager=berth-controller");
        assert_eq!(requests[0].1["spec"]["unschedulable"], true);
        assert_eq!(requests[1].1["spec"]["unschedulable"], Value::Null);
        assert_eq!(requests[1].1["metadata"]["uid"], "u");
    }

    #[tokio::test]
    async fn pods_and_volumes_of_the_node_are_listed() {
        let (client, requests) = client(|line, _| {
            let volume = |node: &str| json!({"spec": {"nodeName": node, "attacher": "x"}});
            let pod = json!({"metadata": {"name": "web-1", "namespace": "shop", "uid": "u"}});
            let is_first = !line.contains("continue=");
            let token = if is_first { "next" } else { "" };
            let items = if line.contains("/pods") {
                json!([pod])
            } else {
                json!([volume("a"), volume("b"), {}])
            };
            (200, json!({"metadata": {"continue": token}, "items": items}))
        });
        assert_eq!(list_pods(&client, "a", Timestamp::UNIX_EPOCH).await.unwrap(), [pod(), pod()]);
        let zero = VolumeCounts::from([("a".to_owned(), 0)]);
        let counts = count_volumes(&client, zero).await.unwrap();
        assert_eq!(counts, VolumeCounts::from([("a".to_owned(), 2)]));
        let lines: Vec<String> = requests.lock().unwrap().iter().map(|one| one.0.clone()).collect();
        assert_eq!(lines[0], "GET /api/v1/pods?fieldSelector=spec.nodeName%3Da&limit=20");
        assert_eq!(
            lines[1],
            "GET /api/v1/pods?fieldSelector=spec.nodeName%3Da&limit=20&continue=next"
        );
    }

    #[tokio::test]
    async fn a_list_of_too_many_pods_is_refused() {
        let (client, _) = client(|line, _| {
            let pod = json!({"metadata": {"name": "web-1", "namespace": "shop", "uid": "u"}});
            // The server returns more objects per page than requested, in four or five pages.
            let pages =
                if line.contains("spec.nodeName%3Dsmall") { "x".repeat(4) } else { "x".repeat(5) };
            let token = line.split("continue=").nth(1).unwrap_or(&pages).get(1..);
            (
                200,
                json!({"metadata": {"continue": token.unwrap_or_default()}, "items": vec![pod; 500]}),
            )
        });
        assert_eq!(
            list_pods(&client, "small", Timestamp::UNIX_EPOCH).await.unwrap().len(),
            MAX_PODS
        );
        assert_eq!(
            list_pods(&client, "large", Timestamp::UNIX_EPOCH).await,
            Err(UntrustedError::TooLong)
        );
    }

    #[tokio::test]
    async fn nodes_of_the_machine_are_listed() {
        let (client, requests) = client(|_, _| {
            let node = |name: &str, id: &str| json!({"metadata": {"name": name}, "spec": {"providerID": id}});
            let named = node("other", "kubevirt://web-1");
            (200, json!({"items": [node("web-1", "kubevirt://web-2"), named, node("web-3", "")]}))
        });
        let found = list_nodes_of(&client, "web-1").await.unwrap();
        assert_eq!(found.iter().map(NodeObject::name).collect::<Vec<_>>(), ["other"]);
        assert!(list_nodes_of(&client, "web-9").await.unwrap().is_empty());
        assert_eq!(requests.lock().unwrap()[0].0, "GET /api/v1/nodes?limit=10");
    }

    #[tokio::test]
    async fn a_deleted_node_is_no_error() {
        for (code, expected) in [
            (200, Ok(())),
            (404, Ok(())),
            (403, Err(UntrustedError::Status(403))),
            // The kubelet has registered the Node again, and the new Node may have other pods.
            (409, Err(UntrustedError::Status(409))),
            (503, Err(UntrustedError::Busy(503, Duration::ZERO))),
        ] {
            let answer: fn(&str, &Value) -> (u16, Value) = match code {
                200 => |_, _| (200, json!({})),
                404 => |_, _| (404, json!({})),
                403 => |_, _| (403, json!({})),
                409 => |_, _| (409, json!({})),
                _ => |_, _| (503, json!({})),
            };
            let (client, _) = client(answer);
            assert_eq!(
                delete_node(&client, "a", "u").await,
                expected.map_err(RequestFailure::from)
            );
        }
    }
}
