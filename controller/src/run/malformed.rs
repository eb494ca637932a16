//! Reports objects that cannot be parsed. For each such object, the controller sets a condition of the object and emits
//! an Event about it, so that the author of the object can see the problem.
//!
//! The API server rejects most of these objects because of their schemas. The remaining objects were written under
//! older schemas or by another version, or violate a rule that a schema cannot express. The last valid version of such
//! an object stays in effect until the object is corrected.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_api::Condition;
use berth_api::names::MALFORMED_FIELD_MANAGER;
use berth_api::names::condition::READY;
use berth_api::{ConditionReason, EventReason};
use berth_runtime::call::{CallError, with_timeout};
use berth_runtime::watch::{MalformedObject, ObjectKey};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Api;
use kube::core::DynamicObject;
use serde_json::json;

use super::apply::ApplyTarget;
use super::clock::now_in_seconds;
use super::context::Context;
use crate::profiles::{ConditionUpdate, new_condition};

/// Kinds that have a `Ready` condition of the controller. The agent writes the `Ready` condition of an InfraNode.
const KINDS_WITH_STATUS: [&str; 3] = ["HostProfile", "InfraConfig", "TenantCluster"];
/// Delay before reports that could not be written are retried.
const RETRY_DELAY: Duration = Duration::from_secs(30);

/// Reports the objects that cannot be parsed, until the future is dropped.
pub(super) async fn run(context: Arc<Context>) {
    let malformed = context.watch_health.malformed_objects();
    let mut reported: BTreeMap<ObjectKey, Option<String>> = BTreeMap::new();
    loop {
        let all = malformed.all();
        reported.retain(|key, _| all.contains_key(key));
        let mut all_reported = true;
        for (key, object) in all {
            let version = object.metadata.resource_version.clone();
            if reported.get(&key) == Some(&version) {
                continue;
            }
            match report_object(&context, &object).await {
                Ok(()) => {
                    reported.insert(key, version);
                }
                Err(error) => {
                    all_reported = false;
                    tracing::warn!(kind = %key.0, name = %key.2, %error, "failed to report malformed object");
                }
            }
        }
        let retry = async {
            if all_reported {
                std::future::pending().await
            } else {
                tokio::time::sleep(RETRY_DELAY).await;
            }
        };
        tokio::select! {
            () = malformed.wait_for_change() => {}
            () = retry => {}
        }
    }
}

async fn report_object(context: &Context, malformed: &MalformedObject) -> Result<(), CallError> {
    let MalformedObject { resource, metadata, .. } = malformed;
    let name = metadata.name.as_deref().unwrap_or_default();
    let client = context.client.clone();
    let api: Api<DynamicObject> = match &metadata.namespace {
        Some(namespace) => Api::namespaced_with(client, namespace, resource),
        None => Api::all_with(client, resource),
    };
    let Some(object) = with_timeout(api.get_opt(name)).await? else { return Ok(()) };
    let object = serde_json::to_value(object).unwrap_or_default();
    // The object was corrected in the meantime, so there is nothing to report.
    let Some(message) = (malformed.find_problem)(object.clone()) else { return Ok(()) };
    let message = berth_runtime::cli::text::replace_control_characters(&message);
    let before: Vec<Condition> = object["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|one| serde_json::from_value(one.clone()).ok())
        .collect();
    let is_reported = |one: &Condition| one.type_ == READY && one.message == message;
    if before.iter().any(is_reported) {
        return Ok(());
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
        // The condition has a separate field manager, so that the apply does not remove the other fields of the
        // status.
        let body = json!({"conditions": [ready]});
        context.writer.apply_status_as(MALFORMED_FIELD_MANAGER, &target, body).await?;
    }
    let reference = ObjectReference {
        api_version: Some(resource.api_version.clone()),
        kind: Some(resource.kind.clone()),
        name: metadata.name.clone(),
        namespace: metadata.namespace.clone(),
        uid: metadata.uid.clone(),
        ..ObjectReference::default()
    };
    context.events.warn_for(reference, EventReason::Malformed.as_str(), &message).await;
    Ok(())
}
