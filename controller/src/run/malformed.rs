//! Objects that cannot be understood: told where whoever wrote them looks, in a condition and an Event.
//!
//! The server refuses most of them by their schemas. What is left was written under older ones, by another version, or
//! breaks a rule that no schema can say. What was known of such an object before holds until it is corrected.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_api::names::CONTROLLER_MALFORMED;
use berth_api::names::condition::READY;
use berth_api::{ConditionReason, EventReason};
use berth_runtime::client::{CallError, within};
use berth_runtime::watch::{MalformedObject, ObjectKey};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Api;
use kube::core::DynamicObject;
use serde_json::json;

use super::Context;
use super::apply::Target;
use crate::profiles::{Said, condition};

/// Kinds whose `Ready` is the controller's; that of an InfraNode is its agent's.
const WITH_STATUS: [&str; 3] = ["HostProfile", "InfraConfig", "TenantCluster"];
/// Before one is told again that could not be.
const AGAIN: Duration = Duration::from_secs(30);

/// Tells of them for ever.
pub(super) async fn run(context: Arc<Context>) {
    let malformed = context.watches.malformed();
    let mut told: BTreeMap<ObjectKey, Option<String>> = BTreeMap::new();
    loop {
        let all = malformed.all();
        told.retain(|key, _| all.contains_key(key));
        let mut is_told = true;
        for (key, odd) in all {
            let version = odd.metadata.resource_version.clone();
            if told.get(&key) == Some(&version) {
                continue;
            }
            match tell(&context, &odd).await {
                Ok(()) => {
                    told.insert(key, version);
                }
                Err(error) => {
                    is_told = false;
                    tracing::warn!("{} {}: that it is malformed: {error}", key.0, key.2);
                }
            }
        }
        let again = async {
            if is_told {
                std::future::pending().await
            } else {
                tokio::time::sleep(AGAIN).await;
            }
        };
        tokio::select! {
            () = malformed.changed() => {}
            () = again => {}
        }
    }
}

async fn tell(context: &Context, odd: &MalformedObject) -> Result<(), CallError> {
    let MalformedObject { resource, metadata, .. } = odd;
    let name = metadata.name.as_deref().unwrap_or_default();
    let client = context.client.clone();
    let api: Api<DynamicObject> = match &metadata.namespace {
        Some(namespace) => Api::namespaced_with(client, namespace, resource),
        None => Api::all_with(client, resource),
    };
    let Some(object) = within(api.get_opt(name)).await? else { return Ok(()) };
    let object = serde_json::to_value(object).unwrap_or_default();
    // Corrected meanwhile.
    let Some(message) = (odd.problem)(object.clone()) else { return Ok(()) };
    let message = berth_runtime::cli::text::printable(&message);
    let before: Vec<Condition> = object["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|one| serde_json::from_value(one.clone()).ok())
        .collect();
    let is_said = |one: &Condition| one.type_ == READY && one.message == message;
    if before.iter().any(is_said) {
        return Ok(());
    }
    if WITH_STATUS.contains(&resource.kind.as_str()) {
        let said = Said {
            type_: READY,
            status: "False",
            reason: ConditionReason::Malformed,
            message: message.clone(),
        };
        let ready = condition(&said, &before, metadata.generation, &super::now());
        let namespace = metadata.namespace.as_deref();
        let target = Target::named(resource.clone(), namespace, name);
        // Under a name of its own: whatever else the status says stays.
        let body = json!({"conditions": [ready]});
        context.writer.apply_status_as(CONTROLLER_MALFORMED, &target, body).await?;
    }
    let reference = ObjectReference {
        api_version: Some(resource.api_version.clone()),
        kind: Some(resource.kind.clone()),
        name: metadata.name.clone(),
        namespace: metadata.namespace.clone(),
        uid: metadata.uid.clone(),
        ..ObjectReference::default()
    };
    context.events.warn_of(reference, EventReason::Malformed.as_str(), &message).await;
    Ok(())
}
