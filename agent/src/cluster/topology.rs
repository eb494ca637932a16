//! Writes the NodeResourceTopology, if enabled; [`crate::publish::topology`] computes it.
//!
//! The publisher is a separate task, so that a cluster without that kind does not delay other writes. The object
//! is read before it is written and not watched, so an idle agent sends no requests. Other programs publish such
//! objects too, and their lists have a single owner: if another manager writes the object, the agent does not
//! change it, and emits an Event and a log line.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_api::EventReason;
use berth_api::names::AGENT;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client, ResourceExt as _};
use tokio::sync::mpsc::Sender;

use super::events::CycleEvent;
use super::publisher::Report;
use super::store::{Observed, Store};
use crate::publish::topology::{API_VERSION, FIELDS, KIND, Topology, topology};
use berth_runtime::backoff::RetryBackoff;
use berth_runtime::call::{CallError, with_timeout};
use berth_runtime::refusal::FIELD_MANAGER_CONFLICT;

/// Debounce: all changes within this time are one write.
const DEBOUNCE: Duration = Duration::from_millis(100);
/// Longest retry interval.
const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// Time after which an object of another manager is read again.
const RETRY_REFUSED: Duration = Duration::from_secs(600);

/// Publisher of the NodeResourceTopology, with the state that it has between writes.
struct Publisher {
    api: Api<DynamicObject>,
    node: String,
    store: Arc<Store>,
    reports: Arc<dyn Fn() -> Option<Report> + Send + Sync>,
    events: Sender<CycleEvent>,
    /// Object on the API server as of the last read or write, with the UID of its owner, the Node.
    written: Option<(String, Topology)>,
    /// Time when the agent found that another manager writes the object.
    refused: Option<Instant>,
    /// Last logged reason why the object is not written.
    last_reason: String,
}

/// Publishes the object until the task is aborted.
pub(super) fn publish(
    client: &Client,
    node: String,
    store: Arc<Store>,
    reports: Arc<dyn Fn() -> Option<Report> + Send + Sync>,
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
        reports,
        events,
        written: None,
        refused: None,
        last_reason: String::new(),
    };
    publisher.run()
}

impl Publisher {
    async fn run(mut self) {
        let mut backoff = RetryBackoff::with_limit(MAX_BACKOFF);
        loop {
            self.store.topology.notified().await;
            tokio::time::sleep(DEBOUNCE).await;
            match self.write().await {
                Ok(()) => backoff.reset(),
                Err(error) => {
                    let reason = with_hint(&error);
                    self.warn_once(&format!("{KIND} {} was not written: {reason}", self.node));
                    // The retry writes the report that is the latest at that time.
                    self.store.topology.notify_one();
                    backoff.wait(error.retry_after()).await;
                }
            }
        }
    }

    /// Writes the object if it differs from the report, and no other manager writes it.
    async fn write(&mut self) -> Result<(), CallError> {
        // The InfraNode must exist, because Events refer to it.
        let (Observed::Present(node), Observed::Present(_)) =
            (self.store.node(), self.store.infra_node())
        else {
            return Ok(());
        };
        let Some(report) = (self.reports)() else { return Ok(()) };
        let Some(status) = &report.node.status else { return Ok(()) };
        let desired = match topology(status, report.memory.as_ref()) {
            Ok(desired) => (node.uid, desired),
            Err(error) => {
                self.warn_once(&error.to_string());
                return Ok(());
            }
        };
        if self.refused.is_some_and(|since| since.elapsed() < RETRY_REFUSED) {
            return Ok(());
        }
        if self.written.as_ref() == Some(&desired) {
            self.last_reason.clear();
            return Ok(());
        }
        let current = with_timeout(self.api.get_opt(&self.node)).await?;
        if let Some(current) = &current {
            let managers = managers(&current.metadata);
            let others: Vec<&str> =
                managers.iter().map(String::as_str).filter(|name| *name != AGENT).collect();
            if !others.is_empty() {
                self.refuse(&others.join(", "));
                return Ok(());
            }
            let owned = current
                .owner_references()
                .iter()
                .any(|owner| owner.uid == desired.0 && owner.name == self.node);
            if owned && managers.contains(AGENT) && desired.1.equals(&current.data) {
                self.set_written(desired);
                return Ok(());
            }
        }
        // The body has the UID, so that the apply fails if the object was deleted and created again in
        // the meantime.
        let uid = current.as_ref().and_then(|current| current.metadata.uid.as_deref());
        let body = desired.1.apply(&self.node, &desired.0, uid);
        let params = PatchParams::apply(AGENT);
        match with_timeout(self.api.patch(&self.node, &params, &Patch::Apply(&body))).await {
            Ok(_) => {
                if current.is_none() {
                    tracing::info!(kind = KIND, name = %self.node, "created the object");
                }
                self.set_written(desired);
                Ok(())
            }
            // Another manager wrote the object first, or the fields of the object are older than
            // `managedFields`.
            Err(error) => match conflict(&error) {
                Some(others) => {
                    self.refuse(&others);
                    Ok(())
                }
                None => Err(error),
            },
        }
    }

    fn set_written(&mut self, what: (String, Topology)) {
        self.written = Some(what);
        self.refused = None;
        self.last_reason.clear();
    }

    fn refuse(&mut self, others: &str) {
        self.written = None;
        self.refused = Some(Instant::now());
        let sentence = format!(
            "{KIND} {} is not written, because other managers own its fields: {others}; either stop them and delete the \
             object, or run this agent without --node-resource-topology",
            self.node
        );
        if self.warn_once(&sentence) {
            let reason = EventReason::ManagedElsewhere;
            let event = CycleEvent { reason, sentences: vec![sentence] };
            // If the queue is full, the Event is lost, but the log has the message.
            self.events.try_send(event).unwrap_or_default();
        }
    }

    /// Logs a reason unless it equals the last logged reason. Returns true if it was logged.
    fn warn_once(&mut self, reason: &str) -> bool {
        let is_new = self.last_reason != reason;
        if is_new {
            tracing::warn!(kind = KIND, name = %self.node, %reason, "the object was not written");
            reason.clone_into(&mut self.last_reason);
        }
        is_new
    }
}

/// Returns the managers that write fields of the object.
fn managers(metadata: &ObjectMeta) -> BTreeSet<String> {
    let entries = metadata.managed_fields.iter().flatten().filter(|entry| {
        let fields = entry.fields_v1.as_ref().map(|fields| &fields.0);
        FIELDS.iter().any(|field| fields.is_some_and(|all| all.get(format!("f:{field}")).is_some()))
    });
    entries.map(|entry| entry.manager.clone().unwrap_or_else(|| "unknown".to_owned())).collect()
}

/// Returns the field conflicts of an apply, in the words of the API server.
fn conflict(error: &CallError) -> Option<String> {
    let status = error.status().filter(|status| status.code == 409)?;
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let conflicts: Vec<String> = causes
        .filter(|cause| cause.reason == FIELD_MANAGER_CONFLICT)
        .map(|cause| format!("{}: {}", cause.field, cause.message))
        .collect();
    (!conflicts.is_empty()).then(|| conflicts.join("; "))
}

/// Returns the error with a hint for known causes.
fn with_hint(error: &CallError) -> String {
    let hint = match error.code() {
        Some(403) => "; check the RBAC rules in deploy/components/node-resource-topology",
        Some(404) => {
            "; the cluster has no such kind: its CustomResourceDefinition comes with scheduler-plugins"
        }
        Some(409) => "; it was created again meanwhile",
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
            managers(&serde_json::from_value(metadata).unwrap()).into_iter().collect::<Vec<_>>()
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
