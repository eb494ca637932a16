//! Writes changes of the host to its InfraNode and its Node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_api::names::{
    AGENT_FIELD_MANAGER, API_VERSION, CONTROLLER_STATUS_FIELD_MANAGER, CREATED_BY_ANNOTATION,
    DRAIN_FIELD_MANAGER, HOST_LOSS_FIELD_MANAGER,
};
use berth_api::{InfraNode, LinkName};
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use serde_json::{Value, json};

use super::objects::{Objects, TrimmedNode, owner_reference};
use super::store::{Generation, ObservedInfraNode, ObservedNode, ObservedObject, Store};
use crate::publish::node::{DesiredNode, Field, Input};
use crate::publish::resources;
use berth_host_facts::kubelet::MemoryManagerState;
use berth_runtime::backoff::RetryBackoff;
use berth_runtime::call::{CallError, with_timeout};
use berth_runtime::field_conflicts::{FieldConflicts, conflicting_managers, remove_field};

/// Result of a cycle, to be published.
#[derive(Debug, Clone)]
pub struct Report {
    /// The host as an InfraNode, including the status.
    pub node: InfraNode,
    /// Generation of the InfraNode that the cycle applied; `None` if the cycle applied the spec that is saved on disk,
    /// or none.
    pub applied_generation: Option<Generation>,
    /// Bridges that VMs can be attached to, by network; `None` if the links are unknown.
    pub bridges: Option<BTreeMap<String, Vec<LinkName>>>,
    /// True if pods run that a scheduler may have placed by a label, so that labels must not change.
    pub labels_in_use: bool,
    /// Checkpoint of the kubelet's Memory Manager; `None` if there is none, or it cannot be read.
    pub memory_state: Option<MemoryManagerState>,
}

/// Debounce: all changes within this time are written together.
const DEBOUNCE_INTERVAL: Duration = Duration::from_millis(100);
/// Time after which fields that the server dropped are sent again, because the schema of the server
/// may have been updated.
const DROPPED_RETRY_INTERVAL: Duration = Duration::from_secs(600);
/// Longest retry interval; the interval doubles with each failure.
const MAX_BACKOFF: Duration = Duration::from_secs(30);

/// Field managers of the controller that own conditions of an InfraNode.
const CONDITION_MANAGERS: [&str; 3] =
    [CONTROLLER_STATUS_FIELD_MANAGER, DRAIN_FIELD_MANAGER, HOST_LOSS_FIELD_MANAGER];

/// Publisher of the InfraNode and the Node, with the state that it has between writes.
struct Publisher {
    objects: Objects,
    store: Arc<Store>,
    latest_report: Arc<dyn Fn() -> Option<Report> + Send + Sync>,
    status_conflicts: FieldConflicts,
    node_conflicts: FieldConflicts,
    /// True if the server converts empty strings in an apply to nulls and then refuses the nulls (observed with
    /// 1.20).
    refuses_empty_strings: bool,
    /// Bodies that the server accepted but did not store completely, because its schema has fewer fields.
    dropped_bodies: BTreeMap<&'static str, DroppedBody>,
}

/// A body that the server accepted but did not store completely.
struct DroppedBody {
    dropped_at: Instant,
    uid: String,
    body: Value,
}

impl DroppedBody {
    fn new(uid: &str, body: Value) -> Self {
        Self { dropped_at: Instant::now(), uid: uid.to_owned(), body }
    }
}

/// Publishes reports until the task is aborted.
pub(super) async fn publish(
    objects: Objects,
    store: Arc<Store>,
    latest_report: Arc<dyn Fn() -> Option<Report> + Send + Sync>,
) {
    let mut publisher = Publisher {
        objects,
        store: Arc::clone(&store),
        latest_report,
        status_conflicts: FieldConflicts::default(),
        node_conflicts: FieldConflicts::default(),
        refuses_empty_strings: false,
        dropped_bodies: BTreeMap::new(),
    };
    let mut backoff = RetryBackoff::with_limit(MAX_BACKOFF);
    let mut last_errors = BTreeSet::new();
    loop {
        store.object_changed.notified().await;
        tokio::time::sleep(DEBOUNCE_INTERVAL).await;
        let (failed, retry_after) = publisher.write().await;
        for (kind, error) in failed.difference(&last_errors) {
            tracing::warn!(kind, name = %publisher.objects.node, %error, "failed to write the object");
        }
        if failed.is_empty() {
            backoff.reset();
        } else {
            // The retry writes the report that is the latest at that time.
            store.wake();
            backoff.wait_before_retry(retry_after).await;
        }
        last_errors = failed;
    }
}

impl Publisher {
    /// Writes all objects that differ. Returns the errors by kind, and the longest Retry-After of the server.
    async fn write(&mut self) -> (BTreeSet<(&'static str, String)>, Duration) {
        let (mut failed, mut retry_after) = (BTreeSet::new(), Duration::ZERO);
        let Some(report) = (self.latest_report)() else { return (failed, retry_after) };
        let node = self.store.observed_node();
        let results = [
            ("InfraNode", self.publish_infra_node(&report, &node).await),
            ("Node", self.publish_node(&report, node).await),
        ];
        for (kind, result) in results {
            if let Err(error) = result {
                retry_after = retry_after.max(error.retry_after());
                failed.insert((kind, format_with_hint(&error)));
            }
        }
        (failed, retry_after)
    }

    async fn publish_infra_node(
        &mut self,
        report: &Report,
        node: &ObservedObject<ObservedNode>,
    ) -> Result<(), CallError> {
        match (self.store.observed_infra_node(), node) {
            // The watch reports the new object, and its status is written then.
            (ObservedObject::Absent, ObservedObject::Present(node)) => {
                self.create_infra_node(&node.uid).await
            }
            (ObservedObject::Present(object), _) => self.apply_status(report, &object).await,
            (ObservedObject::Absent | ObservedObject::Unknown, _) => Ok(()),
        }
    }

    /// Creates the InfraNode, owned by the Node, so that it is garbage-collected with the Node.
    async fn create_infra_node(&self, node_uid: &str) -> Result<(), CallError> {
        let name = &self.objects.node;
        let object: DynamicObject = serde_json::from_value(json!({
            "apiVersion": API_VERSION,
            "kind": "InfraNode",
            "metadata": {
                "name": name,
                "annotations": {CREATED_BY_ANNOTATION: AGENT_FIELD_MANAGER},
                "ownerReferences": [owner_reference(name, node_uid)],
            },
            "spec": {},
        }))
        .map_err(|error| CallError::Kube(Box::new(kube::Error::SerdeError(error))))?;
        let params = PostParams {
            field_manager: Some(AGENT_FIELD_MANAGER.to_owned()),
            ..PostParams::default()
        };
        match with_timeout(self.objects.infra_nodes.create(&params, &object)).await {
            Err(error) if error.status_code() == Some(409) => Ok(()),
            other => other
                .map(|_| tracing::info!(kind = "InfraNode", name = %name, "created the object")),
        }
    }

    async fn apply_status(
        &mut self,
        report: &Report,
        object: &ObservedInfraNode,
    ) -> Result<(), CallError> {
        let desired_generation = self.store.desired_state().and_then(|desired| desired.generation);
        if report.applied_generation.is_none() && desired_generation.is_some() {
            // The report is about the spec that was saved on disk; the next cycle reports on the spec of the API
            // server.
            return Ok(());
        }
        let as_value = |status| serde_json::to_value(status).unwrap_or_default();
        let refused = self.status_conflicts.conflicting_fields();
        let omit_empty_strings = self.refuses_empty_strings;
        let prune = |status: Value| {
            let mut body = json!({"status": status});
            if omit_empty_strings {
                remove_empty_strings(&mut body);
            }
            refused.iter().for_each(|path| remove_field(&mut body, path));
            body
        };
        let mut body = prune(as_value(report.node.status.as_ref()));
        if report.applied_generation.as_ref().is_some_and(|generation| generation.uid != object.uid)
        {
            remove_observed_generation(&mut body);
        }
        let current = prune(as_value(object.status.as_ref()));
        if body == current || self.was_recently_dropped("InfraNode", &object.uid, &body) {
            return Ok(());
        }
        let name = self.objects.node.clone();
        let mut apply_body = body.clone();
        apply_body["apiVersion"] = API_VERSION.into();
        apply_body["kind"] = "InfraNode".into();
        // The body has the UID, so that the apply fails if the object was deleted and created again in
        // the meantime.
        apply_body["metadata"] = json!({"name": name, "uid": object.uid});
        let params = PatchParams::apply(AGENT_FIELD_MANAGER);
        let patch = Patch::Apply(&apply_body);
        let api = &self.objects.infra_nodes;
        let mut result = with_timeout(api.patch_status(&name, &params, &patch)).await;
        // The controller sets conditions of an agent that is unresponsive. This agent is responsive, so it takes
        // ownership of these conditions by force. Kubernetes 1.20 treats all conditions as one value: the agent then
        // also overwrites the controller's conditions of lost and drained hosts, which the controller applies again.
        let is_controller_field = |_: &str, manager: &str| CONDITION_MANAGERS.contains(&manager);
        if result.as_ref().is_err_and(|error| can_force_conflicts(error, is_controller_field)) {
            result = with_timeout(api.patch_status(&name, &params.force(), &patch)).await;
        }
        // The agent's body contains no nulls, so the server converted empty strings to nulls.
        let is_null_error = |error: &CallError| error.is_invalid("\"null\"");
        if !self.refuses_empty_strings && result.as_ref().is_err_and(is_null_error) {
            tracing::info!(
                kind = "InfraNode",
                name = %name,
                "the API server converts empty strings to null; the agent omits fields with an empty value"
            );
            self.refuses_empty_strings = true;
            return self.schedule_retry();
        }
        let written = match record_conflicts(
            &mut self.status_conflicts,
            result,
            "InfraNode",
            &name,
            is_controller_field,
        )? {
            None => return self.schedule_retry(),
            Some(written) => written,
        };
        self.store.update_status(&written);
        let ObservedObject::Present(stored) = self.store.observed_infra_node() else {
            return Ok(());
        };
        if prune(as_value(stored.status.as_ref())) == body {
            self.dropped_bodies.remove("InfraNode");
        } else {
            tracing::warn!(
                kind = "InfraNode",
                name = %name,
                remedy = "apply deploy/crds of the agent's version",
                "the API server dropped fields of the status, because its CustomResourceDefinition has another version"
            );
            self.dropped_bodies.insert("InfraNode", DroppedBody::new(&object.uid, body));
        }
        Ok(())
    }

    async fn publish_node(
        &mut self,
        report: &Report,
        node: ObservedObject<ObservedNode>,
    ) -> Result<(), CallError> {
        let ObservedObject::Present(node) = node else { return Ok(()) };
        let Some(status) = &report.node.status else { return Ok(()) };
        let refused = self.node_conflicts.conflicting_fields();
        let refused = refused.iter().filter_map(|path| Field::parse(path)).collect();
        let desired = DesiredNode::new(
            &Input {
                labels: &berth_api::feature_labels(status),
                conditions: &status.conditions,
                resources: &resources::desired_resources(
                    &report.node.spec,
                    status,
                    report.bridges.as_ref(),
                ),
                labels_in_use: report.labels_in_use,
                refused_fields: &refused,
            },
            &node.published,
        );
        let name = self.objects.node.clone();
        let mut body = desired.apply_body(&name);
        if !desired.needs_apply(&node.published)
            || self.was_recently_dropped("Node", &node.uid, &body)
        {
            return Ok(());
        }
        let sent_body = body.clone();
        body["metadata"]["uid"] = node.uid.clone().into();
        let params = PatchParams::apply(AGENT_FIELD_MANAGER);
        let patch = Patch::Apply(&body);
        let api = &self.objects.nodes;
        let mut result = with_timeout(api.patch_status(&name, &params, &patch)).await;
        // No other manager needs the fields that `is_kubelet_reset` accepts, so the agent takes ownership of them
        // again.
        let is_kubelet_reset =
            |path: &str, manager: &str| node.published.is_kubelet_reset(path, manager);
        if result.as_ref().is_err_and(|error| can_force_conflicts(error, is_kubelet_reset)) {
            result = with_timeout(api.patch_status(&name, &params.force(), &patch)).await;
        }
        let written: TrimmedNode = match record_conflicts(
            &mut self.node_conflicts,
            result,
            "Node",
            &name,
            is_kubelet_reset,
        )? {
            None => return self.schedule_retry(),
            Some(written) => written,
        };
        self.store.update_node(Some(written));
        let ObservedObject::Present(stored) = self.store.observed_node() else { return Ok(()) };
        if desired.needs_apply(&stored.published) {
            tracing::warn!(kind = "Node", name = %name, "the API server dropped fields that the agent applied");
            self.dropped_bodies.insert("Node", DroppedBody::new(&node.uid, sent_body));
        } else {
            self.dropped_bodies.remove("Node");
        }
        Ok(())
    }

    /// Returns true if the server recently dropped fields of this body.
    fn was_recently_dropped(&self, kind: &str, uid: &str, body: &Value) -> bool {
        let dropped = self
            .dropped_bodies
            .get(kind)
            .filter(|dropped| dropped.dropped_at.elapsed() < DROPPED_RETRY_INTERVAL);
        dropped.is_some_and(|dropped| dropped.uid == uid && dropped.body == *body)
    }

    /// Wakes the publisher, so that it writes the object again, without the refused fields.
    fn schedule_retry(&self) -> Result<(), CallError> {
        self.store.wake();
        Ok(())
    }
}

/// Removes the observed generation from a status, because this generation belongs to an earlier object of the same
/// name.
fn remove_observed_generation(body: &mut Value) {
    let conditions = body.pointer_mut("/status/conditions").and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten().filter_map(Value::as_object_mut) {
        condition.remove("observedGeneration");
    }
    if let Some(status) = body.get_mut("status").and_then(Value::as_object_mut) {
        status.remove("observedGeneration");
    }
}

fn remove_empty_strings(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| value.as_str() != Some(""));
            fields.values_mut().for_each(remove_empty_strings);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_empty_strings),
        _ => {}
    }
}

/// Returns true if an apply failed with conflicts, and `can_take` accepts the path and the manager of each conflict.
fn can_force_conflicts(error: &CallError, can_take: impl Fn(&str, &str) -> bool) -> bool {
    let conflicting_fields = error
        .status()
        .filter(|status| status.code == 409)
        .map(conflicting_managers)
        .unwrap_or_default();
    !conflicting_fields.is_empty()
        && conflicting_fields.iter().all(|(path, manager)| can_take(path, manager))
}

/// Returns the written object, or `None` if the apply failed with conflicts. In case of conflicts, records the fields
/// that other managers own, so that later applies leave them out. Fields that `can_take` accepts are not recorded: the
/// agent takes ownership of them in a later apply.
fn record_conflicts<T>(
    refusals: &mut FieldConflicts,
    result: Result<T, CallError>,
    kind: &str,
    name: &str,
    can_take: impl Fn(&str, &str) -> bool,
) -> Result<Option<T>, CallError> {
    match result {
        Ok(written) => Ok(Some(written)),
        Err(error) => {
            let conflict = error.status().filter(|status| status.code == 409);
            let Some(fields) =
                conflict.and_then(|status| refusals.record_conflict(status, &can_take))
            else {
                return Err(error);
            };
            tracing::warn!(kind, name, %fields, "other managers own these fields; the agent does not write them");
            Ok(None)
        }
    }
}

/// Returns the error with a hint for known causes.
fn format_with_hint(error: &CallError) -> String {
    let hint = match error.status_code() {
        Some(403) => "; check the RBAC rules in deploy/base, and the Node of the credential",
        Some(404) => "; apply the CustomResourceDefinitions of deploy/crds",
        Some(422) => "; apply the CustomResourceDefinitions of the agent's version (deploy/crds)",
        Some(409) => "; the object was recreated, or another manager writes it at the same time",
        _ => "",
    };
    format!("{error}{hint}")
}
