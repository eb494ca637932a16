//! Writes the NodeResourceTopology, if enabled; [`crate::publish::topology`] computes it.
//!
//! The publisher is a separate task, so that a cluster without the CRD of this kind does not delay other writes. The
//! agent reads the object before it writes it, and does not watch it, so an idle agent sends no requests. Other
//! programs publish such objects too, and the lists in an object have a single owner. If another manager writes the
//! object, the agent does not change it, and emits an Event and a log line.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_api::EventReason;
use berth_api::names::AGENT_FIELD_MANAGER;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client, ResourceExt as _};
use tokio::sync::mpsc::Sender;

use super::events::CycleEvent;
use super::publisher::Report;
use super::store::{ObservedObject, Store};
use crate::publish::topology::{API_VERSION, FIELDS, KIND, Topology, build_topology};
use berth_runtime::backoff::RetryBackoff;
use berth_runtime::call::{CallError, with_timeout};
use berth_runtime::field_conflicts::FIELD_MANAGER_CONFLICT;

/// Debounce: all changes within this time are one write.
const DEBOUNCE_INTERVAL: Duration = Duration::from_millis(100);
/// Longest retry interval.
const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// Time after which an object of another manager is read again.
const REFUSED_RETRY_INTERVAL: Duration = Duration::from_secs(600);

/// Publisher of the NodeResourceTopology, with the state that it has between writes.
struct Publisher {
    api: Api<DynamicObject>,
    node: String,
    store: Arc<Store>,
    latest_report: Arc<dyn Fn() -> Option<Report> + Send + Sync>,
    events: Sender<CycleEvent>,
    /// Object on the API server as of the last read or write, with the UID of its owner, the Node.
    published: Option<(String, Topology)>,
    /// Time when the agent found that another manager writes the object; `None` without such a conflict.
    conflict_found_at: Option<Instant>,
    /// Last logged error that prevented a write of the object.
    last_error: String,
}

/// Publishes the object until the task is aborted.
pub(super) fn publish(
    client: &Client,
    node: String,
    store: Arc<Store>,
    latest_report: Arc<dyn Fn() -> Option<Report> + Send + Sync>,
    events: Sender<CycleEvent>,
) -> impl Future<Output = ()> + Send + use<> {
    let (group, version) = API_VERSION.split_once('/').unwrap_or_default();
    let kind = GroupVersionKind::gvk(group, version, KIND);
    let kind = ApiResource::from_gvk_with_plural(&kind, "noderesourcetopologies");
    let api = Api::all_with(client.clone(), &kind);
    let publisher = Publisher {
        api,
        node,
        store,
        latest_report,
        events,
        published: None,
        conflict_found_at: None,
        last_error: String::new(),
    };
    publisher.run()
}

impl Publisher {
    async fn run(mut self) {
        let mut backoff = RetryBackoff::with_limit(MAX_BACKOFF);
        loop {
            self.store.topology_changed.notified().await;
            tokio::time::sleep(DEBOUNCE_INTERVAL).await;
            match self.write().await {
                Ok(()) => backoff.reset(),
                Err(error) => {
                    self.warn_if_changed(&format_with_hint(&error));
                    // The retry writes the report that is the latest at that time.
                    self.store.topology_changed.notify_one();
                    backoff.wait_before_retry(error.retry_after()).await;
                }
            }
        }
    }

    /// Writes the object if it differs from the report, and no other manager writes it.
    async fn write(&mut self) -> Result<(), CallError> {
        // The InfraNode must exist, because Events refer to it.
        let (ObservedObject::Present(node), ObservedObject::Present(_)) =
            (self.store.observed_node(), self.store.observed_infra_node())
        else {
            return Ok(());
        };
        let Some(report) = (self.latest_report)() else { return Ok(()) };
        let Some(status) = &report.node.status else { return Ok(()) };
        let desired = match build_topology(status, report.memory_state.as_ref()) {
            Ok(desired) => (node.uid, desired),
            Err(error) => {
                self.warn_if_changed(&error.to_string());
                return Ok(());
            }
        };
        if self.conflict_found_at.is_some_and(|since| since.elapsed() < REFUSED_RETRY_INTERVAL) {
            return Ok(());
        }
        if self.published.as_ref() == Some(&desired) {
            self.last_error.clear();
            return Ok(());
        }
        let current = with_timeout(self.api.get_opt(&self.node)).await?;
        if let Some(current) = &current {
            let managers = field_managers(&current.metadata);
            let other_managers: Vec<&str> = managers
                .iter()
                .map(String::as_str)
                .filter(|name| *name != AGENT_FIELD_MANAGER)
                .collect();
            if !other_managers.is_empty() {
                self.record_conflict(&other_managers.join(", "));
                return Ok(());
            }
            let is_owned_by_node = current
                .owner_references()
                .iter()
                .any(|owner| owner.uid == desired.0 && owner.name == self.node);
            if is_owned_by_node
                && managers.contains(AGENT_FIELD_MANAGER)
                && desired.1.has_same_content(&current.data)
            {
                self.set_published(desired);
                return Ok(());
            }
        }
        // The body has the UID, so that the apply fails if the object was deleted and created again in
        // the meantime.
        let uid = current.as_ref().and_then(|current| current.metadata.uid.as_deref());
        let body = desired.1.apply_body(&self.node, &desired.0, uid);
        let params = PatchParams::apply(AGENT_FIELD_MANAGER);
        match with_timeout(self.api.patch(&self.node, &params, &Patch::Apply(&body))).await {
            Ok(_) => {
                if current.is_none() {
                    tracing::info!(kind = KIND, name = %self.node, "created the object");
                }
                self.set_published(desired);
                Ok(())
            }
            // Another manager wrote the object after it was read, or the object was written before the API server
            // recorded `managedFields`.
            Err(error) => match format_field_conflicts(&error) {
                Some(conflicts) => {
                    self.record_conflict(&conflicts);
                    Ok(())
                }
                None => Err(error),
            },
        }
    }

    fn set_published(&mut self, published: (String, Topology)) {
        self.published = Some(published);
        self.conflict_found_at = None;
        self.last_error.clear();
    }

    fn record_conflict(&mut self, other_managers: &str) {
        self.published = None;
        self.conflict_found_at = Some(Instant::now());
        let error = format!(
            "other managers own its fields: {other_managers}; either stop them and delete the object, or run this agent without \
             --node-resource-topology"
        );
        if self.warn_if_changed(&error) {
            let reason = EventReason::ManagedElsewhere;
            let sentence = format!("{KIND} {} is not written: {error}", self.node);
            let event = CycleEvent { reason, sentences: vec![sentence] };
            // If the queue is full, the Event is lost, but the log has the message.
            self.events.try_send(event).unwrap_or_default();
        }
    }

    /// Logs an error unless it equals the last logged error. Returns true if it was logged.
    fn warn_if_changed(&mut self, error: &str) -> bool {
        let is_new = self.last_error != error;
        if is_new {
            tracing::warn!(kind = KIND, name = %self.node, %error, "failed to write the object");
            error.clone_into(&mut self.last_error);
        }
        is_new
    }
}

/// Returns the managers that write fields of the object.
fn field_managers(metadata: &ObjectMeta) -> BTreeSet<String> {
    let entries = metadata.managed_fields.iter().flatten().filter(|entry| {
        let fields = entry.fields_v1.as_ref().map(|fields| &fields.0);
        FIELDS.iter().any(|field| fields.is_some_and(|all| all.get(format!("f:{field}")).is_some()))
    });
    entries.map(|entry| entry.manager.clone().unwrap_or_else(|| "unknown".to_owned())).collect()
}

/// Returns the field conflicts of an apply, in the words of the API server.
fn format_field_conflicts(error: &CallError) -> Option<String> {
    let status = error.status().filter(|status| status.code == 409)?;
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let conflicts: Vec<String> = causes
        .filter(|cause| cause.reason == FIELD_MANAGER_CONFLICT)
        .map(|cause| format!("{}: {}", cause.field, cause.message))
        .collect();
    (!conflicts.is_empty()).then(|| conflicts.join("; "))
}

/// Returns the error with a hint for known causes.
fn format_with_hint(error: &CallError) -> String {
    let hint = match error.status_code() {
        Some(403) => "; check the RBAC rules in deploy/components/node-resource-topology",
        Some(404) => {
            "; the cluster has no such kind: apply the CustomResourceDefinition of scheduler-plugins"
        }
        Some(409) => "; the object was recreated, retrying",
        _ => "",
    };
    format!("{error}{hint}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn managers_of_zones_or_attributes_own_the_object() {
        let managers = |entries: serde_json::Value| {
            let metadata = json!({"managedFields": entries});
            field_managers(&serde_json::from_value(metadata).unwrap())
                .into_iter()
                .collect::<Vec<_>>()
        };
        let entry = |manager: &str, fields: serde_json::Value| json!({"manager": manager, "fieldsV1": fields});
        assert_eq!(managers(json!([])), Vec::<String>::new());
        assert_eq!(
            managers(json!([
                entry("berth-agent", json!({"f:zones": {}, "f:attributes": {}})),
                entry("nfd", json!({"f:zones": {}})),
                entry("old", json!({"f:topologyPolicies": {}})),
                // A label of a user is not a conflict.
                entry("kubectl", json!({"f:metadata": {"f:labels": {"f:zones": {}}}})),
                {"fieldsV1": {"f:attributes": {}}},
                {"manager": "empty"},
            ])),
            ["berth-agent", "nfd", "old", "unknown"]
        );
    }
}
