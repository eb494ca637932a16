//! Reports objects that cannot be parsed. For each such object, the controller sets a condition of the object and emits
//! an Event about it, so that the author of the object can see the problem.
//!
//! The API server rejects most malformed objects because of the schema in the CRD. The remaining malformed objects were
//! written under an older schema or by another version of Berth, or violate a rule that a schema cannot express. The
//! last valid version of a malformed object stays in effect until the object is corrected.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_api::Condition;
use berth_api::names::MALFORMED_FIELD_MANAGER;
use berth_api::names::condition::READY;
use berth_api::{ConditionReason, EventReason};
use berth_runtime::backoff::add_jitter;
use berth_runtime::call::{CallError, with_timeout};
use berth_runtime::watch::{MalformedObject, ObjectKey};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::core::DynamicObject;
use kube::{Api, Client};
use serde_json::json;
use tokio::time::Instant;

use super::apply::{ApplyTarget, Writer};
use super::clock::now_in_seconds;
use super::context::Context;
use super::events::EventEmitter;
use crate::profiles::{ConditionUpdate, new_condition};

/// Kinds whose `Ready` condition the controller writes. The agent writes the `Ready` condition of an InfraNode.
const KINDS_WITH_STATUS: [&str; 5] =
    ["HostProfile", "InfraConfig", "TenantCluster", "TenantQuota", "TenantRequest"];
/// HTTP status code of a refusal because of the content of the object.
const INVALID: u16 = 422;
/// Delay before a report that could not be written is retried.
const RETRY_DELAY: Duration = Duration::from_secs(30);
/// Interval, before jitter, between attempts to set a condition that the API server refuses. A corrected CRD makes the
/// condition valid, but does not change the object.
const REFUSED_CONDITION_INTERVAL: Duration = Duration::from_mins(10);

/// Report of one version of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Report {
    /// `resourceVersion` of the object.
    version: Option<String>,
    /// Time of the next attempt to set the condition; `None` if the report is complete.
    retry_at: Option<Instant>,
}

/// Result of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReportOutcome {
    Complete,
    /// The API server refused the condition, because the object violates the schema of its CRD.
    ConditionRefused,
}

impl Report {
    fn new(version: Option<String>, outcome: ReportOutcome, now: Instant) -> Self {
        let retry_at = match outcome {
            ReportOutcome::Complete => None,
            ReportOutcome::ConditionRefused => Some(now + add_jitter(REFUSED_CONDITION_INTERVAL)),
        };
        Self { version, retry_at }
    }

    fn is_due(&self, now: Instant) -> bool {
        self.retry_at.is_some_and(|due| due <= now)
    }
}

/// Reports the objects that cannot be parsed, until this future is dropped.
pub(super) async fn run(context: Arc<Context>) {
    let malformed = context.watch_health.malformed_objects();
    let mut reported: BTreeMap<ObjectKey, Report> = BTreeMap::new();
    loop {
        let all = malformed.all();
        reported.retain(|key, _| all.contains_key(key));
        let mut all_reported = true;
        for (key, object) in all {
            let version = object.metadata.resource_version.clone();
            let report = reported.get(&key).filter(|report| report.version == version);
            if report.is_some_and(|report| !report.is_due(Instant::now())) {
                continue;
            }
            // The Event of a version is emitted once.
            let events = report.is_none().then_some(&*context.events);
            let client = context.client.clone();
            match report_object(client, &context.writer, events, &object).await {
                Ok(outcome) => {
                    reported.insert(key, Report::new(version, outcome, Instant::now()));
                }
                Err(error) => {
                    all_reported = false;
                    tracing::warn!(kind = %key.0, name = %key.2, %error, "failed to report malformed object");
                }
            }
        }
        let refused_at = reported.values().filter_map(|report| report.retry_at).min();
        let retry_at = if all_reported { refused_at } else { Some(Instant::now() + RETRY_DELAY) };
        let retry = async {
            match retry_at {
                Some(due) => tokio::time::sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = malformed.wait_for_change() => {}
            () = retry => {}
        }
    }
}

/// Sets the condition of an object, and emits the Event if there is an emitter.
async fn report_object(
    client: Client,
    writer: &Writer,
    events: Option<&EventEmitter>,
    malformed: &MalformedObject,
) -> Result<ReportOutcome, CallError> {
    let mut outcome = ReportOutcome::Complete;
    let MalformedObject { resource, metadata, .. } = malformed;
    let name = metadata.name.as_deref().unwrap_or_default();
    let api: Api<DynamicObject> = match &metadata.namespace {
        Some(namespace) => Api::namespaced_with(client, namespace, resource),
        None => Api::all_with(client, resource),
    };
    let Some(object) = with_timeout(api.get_opt(name)).await? else { return Ok(outcome) };
    let object = serde_json::to_value(object).unwrap_or_default();
    // The object was corrected in the meantime, so there is nothing to report.
    let Some(message) = (malformed.find_problem)(object.clone()) else { return Ok(outcome) };
    let message = berth_runtime::cli::text::replace_control_characters(&message);
    let before: Vec<Condition> = object["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|one| serde_json::from_value(one.clone()).ok())
        .collect();
    let is_reported = |one: &Condition| one.type_ == READY && one.message == message;
    if before.iter().any(is_reported) {
        return Ok(outcome);
    }
    if KINDS_WITH_STATUS.contains(&resource.kind.as_str()) {
        let update = ConditionUpdate {
            type_: READY,
            status: "False",
            reason: ConditionReason::Malformed,
            message: message.clone(),
        };
        let ready = new_condition(&update, &before, metadata.generation, &now_in_seconds());
        let namespace = metadata.namespace.as_deref();
        let target = ApplyTarget::new_target(resource.clone(), namespace, name);
        // The condition has a field manager of its own: otherwise the server-side apply would remove the other fields
        // that the controller has set in the status.
        let body = json!({"conditions": [ready]});
        match writer.apply_status_as(MALFORMED_FIELD_MANAGER, &target, body).await {
            Ok(_) => {}
            // Kubernetes before 1.30 also validates the stored spec, which the current schema may refuse.
            Err(error) if error.status_code() == Some(INVALID) => {
                outcome = ReportOutcome::ConditionRefused;
                tracing::warn!(kind = %resource.kind, name, %error, "failed to set a condition of a malformed object");
            }
            Err(error) => return Err(error),
        }
    }
    let Some(events) = events else { return Ok(outcome) };
    let (kind, namespace) = (&resource.kind, metadata.namespace.as_deref());
    tracing::warn!(kind, namespace, name, problem = %message, "reported a malformed object");
    let reference = ObjectReference {
        api_version: Some(resource.api_version.clone()),
        kind: Some(resource.kind.clone()),
        name: metadata.name.clone(),
        namespace: metadata.namespace.clone(),
        uid: metadata.uid.clone(),
        ..ObjectReference::default()
    };
    events.warn_for(reference, EventReason::Malformed.as_str(), &message).await;
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use berth_api::TenantCluster;
    use hyper::{Request, Response};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    use kube::client::Body;
    use serde_json::Value;

    use super::*;

    /// Methods and bodies of requests.
    type Requests = Arc<Mutex<Vec<(String, Value)>>>;

    /// Returns a client of a server that has one tenant and answers each PATCH with this status code, and its requests.
    fn client(tenant: Value, patch_status: u16) -> (Client, Requests) {
        let requests = Requests::default();
        let seen = Arc::clone(&requests);
        let service = tower::service_fn(move |request: Request<Body>| {
            let (seen, tenant) = (Arc::clone(&seen), tenant.clone());
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect_bytes().await.unwrap();
                let body: Value = serde_json::from_slice(&body).unwrap_or_default();
                seen.lock().unwrap().push((parts.method.to_string(), body.clone()));
                let refusal = json!({"kind": "Status", "status": "Failure", "reason": "Invalid",
                    "message": "spec", "code": INVALID});
                let (code, answer) = match parts.method.as_str() {
                    "PATCH" if patch_status == INVALID => (INVALID, refusal),
                    "POST" => (201, body),
                    _ => (200, tenant),
                };
                Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()))
            }
        });
        (Client::new(service, "default"), requests)
    }

    #[tokio::test]
    async fn field_and_value_are_reported_even_if_the_status_is_refused() {
        let metadata = ObjectMeta { name: Some("shop".to_owned()), ..ObjectMeta::default() };
        let malformed = MalformedObject::new::<TenantCluster>(&metadata);
        for (field, value, problem) in [
            ("replaceAfter", json!("5m5m"), "spec.replaceAfter: `5m5m` is not a time"),
            (
                "exposure",
                json!({"machineAccess": {"nodePortRange": "30199-30100"}}),
                "spec.exposure.machineAccess.nodePortRange: `30199-30100` is not a range",
            ),
            (
                "network",
                json!({"name": "trunk", "ipv4": {"cidr": "10.0.0.0/24", "ranges": ["10.0.0.9-10.0.0.1"]}}),
                "spec.network.ipv4.ranges[0]: `10.0.0.9-10.0.0.1` is not a range",
            ),
        ] {
            for patch_status in [200, INVALID] {
                let tenant = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster",
                    "metadata": {"name": "shop"}, "spec": {field: value}});
                let (client, requests) = client(tenant, patch_status);
                let writer = Writer::new(client.clone(), Arc::default());
                let events = EventEmitter::new(client.clone(), "test");
                report_object(client, &writer, Some(&events), &malformed).await.unwrap();
                let all = requests.lock().unwrap().clone();
                let find = |method: &str| {
                    let found = all.iter().find(|(one, _)| one == method);
                    found.map_or(&Value::Null, |(_, body)| body)
                };
                let ready = &find("PATCH")["status"]["conditions"][0];
                assert_eq!(
                    (&ready["type"], &ready["reason"]),
                    (&json!(READY), &json!("Malformed"))
                );
                let event = find("POST");
                assert_eq!(event["regarding"]["name"], "shop", "{patch_status}: {all:?}");
                for text in [&ready["message"], &event["note"]] {
                    assert!(text.as_str().unwrap_or_default().starts_with(problem), "{text}");
                }
            }
        }
    }

    #[tokio::test]
    async fn refused_condition_is_tried_again_without_another_event() {
        let metadata = ObjectMeta { name: Some("shop".to_owned()), ..ObjectMeta::default() };
        let malformed = MalformedObject::new::<TenantCluster>(&metadata);
        let tenant = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster",
            "metadata": {"name": "shop"}, "spec": {"replaceAfter": "5m5m"}});
        for (patch_status, outcome) in
            [(INVALID, ReportOutcome::ConditionRefused), (200, ReportOutcome::Complete)]
        {
            let (client, requests) = client(tenant.clone(), patch_status);
            let writer = Writer::new(client.clone(), Arc::default());
            let result = report_object(client, &writer, None, &malformed).await.unwrap();
            assert_eq!(result, outcome);
            let methods: Vec<String> =
                requests.lock().unwrap().iter().map(|(method, _)| method.clone()).collect();
            assert_eq!(methods, ["GET", "PATCH"]);
        }
        let now = Instant::now();
        let refused = Report::new(None, ReportOutcome::ConditionRefused, now);
        let (earliest, latest) = (Duration::from_mins(7), Duration::from_mins(13));
        assert!(!refused.is_due(now + earliest) && refused.is_due(now + latest));
        assert!(!Report::new(None, ReportOutcome::Complete, now).is_due(now + latest));
    }
}
