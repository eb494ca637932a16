//! Writes changes of the host to its InfraNode and its Node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_api::names::{AGENT, API_VERSION, CONTROLLER_STATUS_FIELD_MANAGER, CREATED_BY};
use berth_api::{InfraNode, LinkName};
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use serde_json::{Value, json};

use super::objects::{Objects, TrimmedNode, owner_reference};
use super::store::{Generation, Observed, ObservedInfraNode, ObservedNode, Store};
use crate::publish::node::{DesiredNode, Field, Input};
use crate::publish::resources;
use berth_host_facts::kubelet::MemoryManagerState;
use berth_runtime::backoff::RetryBackoff;
use berth_runtime::call::{CallError, with_timeout};
use berth_runtime::refusal::{Refusals, conflicts, remove};

/// Result of a cycle, to be published.
#[derive(Debug, Clone)]
pub struct Report {
    /// The host as an InfraNode, including the status.
    pub node: InfraNode,
    /// Generation of the InfraNode that the cycle applied.
    pub applied_generation: Option<Generation>,
    /// Bridges that VMs can be attached to, by network; `None` if the links are unknown.
    pub bridges: Option<BTreeMap<String, Vec<LinkName>>>,
    /// True if pods run that a scheduler may have placed by a label, so that labels must not change.
    pub labels_in_use: bool,
    /// Checkpoint of the kubelet's Memory Manager.
    pub memory: Option<MemoryManagerState>,
}

/// Debounce: all changes within this time are written together.
const DEBOUNCE: Duration = Duration::from_millis(100);
/// Time after which fields that the server dropped are sent again, because the schema of the server
/// may have been updated.
const RETRY_DROPPED: Duration = Duration::from_secs(600);
/// Longest retry interval.
const MAX_BACKOFF: Duration = Duration::from_secs(30);

/// Publisher of the InfraNode and the Node, with the state that it has between writes.
struct Publisher {
    objects: Objects,
    store: Arc<Store>,
    reports: Arc<dyn Fn() -> Option<Report> + Send + Sync>,
    refused_status: Refusals,
    refused_node: Refusals,
    /// True if the server converts empty strings in an apply to nulls and then refuses the nulls (observed with
    /// 1.20).
    empties_are_nulls: bool,
    /// Bodies that the server accepted but did not store completely, because its schema has fewer fields.
    dropped: BTreeMap<&'static str, Dropped>,
}

/// A body that the server accepted but did not store completely.
struct Dropped {
    since: Instant,
    uid: String,
    body: Value,
}

impl Dropped {
    fn new(uid: &str, body: Value) -> Self {
        Self { since: Instant::now(), uid: uid.to_owned(), body }
    }
}

/// Publishes reports until the task is aborted.
pub(super) async fn publish(
    objects: Objects,
    store: Arc<Store>,
    reports: Arc<dyn Fn() -> Option<Report> + Send + Sync>,
) {
    let mut publisher = Publisher {
        objects,
        store: Arc::clone(&store),
        reports,
        refused_status: Refusals::default(),
        refused_node: Refusals::default(),
        empties_are_nulls: false,
        dropped: BTreeMap::new(),
    };
    let mut backoff = RetryBackoff::with_limit(MAX_BACKOFF);
    let mut last = BTreeSet::new();
    loop {
        store.changed.notified().await;
        tokio::time::sleep(DEBOUNCE).await;
        let (failed, retry_after) = publisher.write().await;
        for (kind, error) in failed.difference(&last) {
            tracing::warn!(kind, name = %publisher.objects.node, %error, "failed to write the object");
        }
        if failed.is_empty() {
            backoff.reset();
        } else {
            // The retry writes the report that is the latest at that time.
            store.wake();
            backoff.wait(retry_after).await;
        }
        last = failed;
    }
}

impl Publisher {
    /// Writes all objects that differ. Returns the errors by kind, and the longest Retry-After of the server.
    async fn write(&mut self) -> (BTreeSet<(&'static str, String)>, Duration) {
        let (mut failed, mut retry_after) = (BTreeSet::new(), Duration::ZERO);
        let Some(report) = (self.reports)() else { return (failed, retry_after) };
        let node = self.store.node();
        let results = [
            ("InfraNode", self.infra_node(&report, &node).await),
            ("Node", self.node(&report, node).await),
        ];
        for (kind, result) in results {
            if let Err(error) = result {
                retry_after = retry_after.max(error.retry_after());
                failed.insert((kind, with_hint(&error)));
            }
        }
        (failed, retry_after)
    }

    async fn infra_node(
        &mut self,
        report: &Report,
        node: &Observed<ObservedNode>,
    ) -> Result<(), CallError> {
        match (self.store.infra_node(), node) {
            // The watch reports the new object, and its status is written then.
            (Observed::Absent, Observed::Present(node)) => self.create(&node.uid).await,
            (Observed::Present(object), _) => self.status(report, &object).await,
            (Observed::Absent | Observed::Unknown, _) => Ok(()),
        }
    }

    /// Creates the InfraNode, owned by the Node, so that it is garbage-collected with the Node.
    async fn create(&self, node_uid: &str) -> Result<(), CallError> {
        let name = &self.objects.node;
        let object: DynamicObject = serde_json::from_value(json!({
            "apiVersion": API_VERSION,
            "kind": "InfraNode",
            "metadata": {
                "name": name,
                "annotations": {CREATED_BY: AGENT},
                "ownerReferences": [owner_reference(name, node_uid)],
            },
            "spec": {},
        }))
        .map_err(|error| CallError::Kube(Box::new(kube::Error::SerdeError(error))))?;
        let params = PostParams { field_manager: Some(AGENT.to_owned()), ..PostParams::default() };
        match with_timeout(self.objects.infra_nodes.create(&params, &object)).await {
            Err(error) if error.code() == Some(409) => Ok(()),
            other => other
                .map(|_| tracing::info!(kind = "InfraNode", name = %name, "created the object")),
        }
    }

    async fn status(
        &mut self,
        report: &Report,
        object: &ObservedInfraNode,
    ) -> Result<(), CallError> {
        let desired = self.store.desired().and_then(|desired| desired.generation);
        if report.applied_generation.is_none() && desired.is_some() {
            // The report is about the spec that was saved on disk; the next cycle reports on the spec of the API
            // server.
            return Ok(());
        }
        let as_value = |status| serde_json::to_value(status).unwrap_or_default();
        let refused = self.refused_status.fields();
        let leave_out_empty = self.empties_are_nulls;
        let prune = |status: Value| {
            let mut body = json!({"status": status});
            if leave_out_empty {
                without_empty_text(&mut body);
            }
            refused.iter().for_each(|path| remove(&mut body, path));
            body
        };
        let mut body = prune(as_value(report.node.status.as_ref()));
        if report.applied_generation.as_ref().is_some_and(|of| of.uid != object.uid) {
            without_generation(&mut body);
        }
        let there = prune(as_value(object.status.as_ref()));
        if body == there || self.recently_dropped("InfraNode", &object.uid, &body) {
            return Ok(());
        }
        let name = self.objects.node.clone();
        let mut apply = body.clone();
        apply["apiVersion"] = API_VERSION.into();
        apply["kind"] = "InfraNode".into();
        // The body has the UID, so that the apply fails if the object was deleted and created again in
        // the meantime.
        apply["metadata"] = json!({"name": name, "uid": object.uid});
        let params = PatchParams::apply(AGENT);
        let patch = Patch::Apply(&apply);
        let api = &self.objects.infra_nodes;
        let mut written = with_timeout(api.patch_status(&name, &params, &patch)).await;
        // The controller sets conditions of an agent that is unresponsive. This agent is responsive, so it takes
        // ownership of these conditions by force.
        let by_controller = |_: &str, manager: &str| manager == CONTROLLER_STATUS_FIELD_MANAGER;
        if written.as_ref().is_err_and(|error| all_conflicts(error, by_controller)) {
            written = with_timeout(api.patch_status(&name, &params.force(), &patch)).await;
        }
        // The agent's body contains no nulls, so the server converted empty strings to nulls.
        let found_null = |error: &CallError| error.is_invalid("\"null\"");
        if !self.empties_are_nulls && written.as_ref().is_err_and(found_null) {
            tracing::info!(
                kind = "InfraNode",
                name = %name,
                "the API server cannot store empty strings, leaving them out"
            );
            self.empties_are_nulls = true;
            return self.retry();
        }
        let written = match record_refusals(
            &mut self.refused_status,
            written,
            "InfraNode",
            &name,
            by_controller,
        )? {
            None => return self.retry(),
            Some(written) => written,
        };
        self.store.update_status(&written);
        let Observed::Present(kept) = self.store.infra_node() else { return Ok(()) };
        if prune(as_value(kept.status.as_ref())) == body {
            self.dropped.remove("InfraNode");
        } else {
            tracing::warn!(
                kind = "InfraNode",
                name = %name,
                remedy = "apply deploy/crds of the agent's version",
                "the API server dropped fields of the status, because its CustomResourceDefinition has another version"
            );
            self.dropped.insert("InfraNode", Dropped::new(&object.uid, body));
        }
        Ok(())
    }

    async fn node(
        &mut self,
        report: &Report,
        node: Observed<ObservedNode>,
    ) -> Result<(), CallError> {
        let Observed::Present(node) = node else { return Ok(()) };
        let Some(status) = &report.node.status else { return Ok(()) };
        let refused = self.refused_node.fields();
        let refused = refused.iter().filter_map(|path| Field::parse(path)).collect();
        let desired = DesiredNode::new(
            &Input {
                labels: &berth_api::feature_labels(status),
                conditions: &status.conditions,
                resources: &resources::resources(
                    &report.node.spec,
                    status,
                    report.bridges.as_ref(),
                ),
                labels_in_use: report.labels_in_use,
                refused: &refused,
            },
            &node.published,
        );
        let name = self.objects.node.clone();
        let mut body = desired.apply(&name);
        if !desired.differs(&node.published) || self.recently_dropped("Node", &node.uid, &body) {
            return Ok(());
        }
        let sent = body.clone();
        body["metadata"]["uid"] = node.uid.clone().into();
        let params = PatchParams::apply(AGENT);
        let patch = Patch::Apply(&body);
        let api = &self.objects.nodes;
        let mut written = with_timeout(api.patch_status(&name, &params, &patch)).await;
        // Fields that `is_kubelet_reset` accepts are needed by no other manager, so the agent takes ownership of them
        // again.
        let is_kubelet_reset =
            |path: &str, manager: &str| node.published.is_kubelet_reset(path, manager);
        if written.as_ref().is_err_and(|error| all_conflicts(error, is_kubelet_reset)) {
            written = with_timeout(api.patch_status(&name, &params.force(), &patch)).await;
        }
        let written: TrimmedNode = match record_refusals(
            &mut self.refused_node,
            written,
            "Node",
            &name,
            is_kubelet_reset,
        )? {
            None => return self.retry(),
            Some(written) => written,
        };
        self.store.update_node(Some(written));
        let Observed::Present(kept) = self.store.node() else { return Ok(()) };
        if desired.differs(&kept.published) {
            tracing::warn!(kind = "Node", name = %name, "the API server dropped fields that the agent applied");
            self.dropped.insert("Node", Dropped::new(&node.uid, sent));
        } else {
            self.dropped.remove("Node");
        }
        Ok(())
    }

    /// Returns true if the server recently dropped fields of this body.
    fn recently_dropped(&self, kind: &str, uid: &str, body: &Value) -> bool {
        let dropped =
            self.dropped.get(kind).filter(|dropped| dropped.since.elapsed() < RETRY_DROPPED);
        dropped.is_some_and(|dropped| dropped.uid == uid && dropped.body == *body)
    }

    /// Wakes the publisher, so that it writes the object again, without the refused fields.
    fn retry(&self) -> Result<(), CallError> {
        self.store.wake();
        Ok(())
    }
}

/// Removes the observed generation from a status, because this generation belongs to an earlier object of the same
/// name.
fn without_generation(body: &mut Value) {
    let conditions = body.pointer_mut("/status/conditions").and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten().filter_map(Value::as_object_mut) {
        condition.remove("observedGeneration");
    }
    if let Some(status) = body.get_mut("status").and_then(Value::as_object_mut) {
        status.remove("observedGeneration");
    }
}

fn without_empty_text(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| value.as_str() != Some(""));
            fields.values_mut().for_each(without_empty_text);
        }
        Value::Array(items) => items.iter_mut().for_each(without_empty_text),
        _ => {}
    }
}

/// Returns true if an apply failed with conflicts, and `may_take` accepts the path and the manager of each conflict.
fn all_conflicts(error: &CallError, may_take: impl Fn(&str, &str) -> bool) -> bool {
    let held =
        error.status().filter(|status| status.code == 409).map(conflicts).unwrap_or_default();
    !held.is_empty() && held.iter().all(|(path, manager)| may_take(path, manager))
}

/// Records the fields of a conflict that other managers own, and that are left out of later applies. Fields that
/// `may_take` accepts are not recorded, because the agent can take ownership of them after the other fields are left
/// out. Returns `None` if there was such a conflict, otherwise the written object.
fn record_refusals<T>(
    refusals: &mut Refusals,
    written: Result<T, CallError>,
    kind: &str,
    name: &str,
    may_take: impl Fn(&str, &str) -> bool,
) -> Result<Option<T>, CallError> {
    match written {
        Ok(written) => Ok(Some(written)),
        Err(error) => {
            let conflict = error.status().filter(|status| status.code == 409);
            let Some(fields) =
                conflict.and_then(|status| refusals.record_conflict(status, &may_take))
            else {
                return Err(error);
            };
            tracing::warn!(kind, name, %fields, "other managers own these fields, leaving them out");
            Ok(None)
        }
    }
}

/// Returns the error with a hint for known causes.
fn with_hint(error: &CallError) -> String {
    let hint = match error.code() {
        Some(403) => "; check the RBAC rules in deploy/base, and the Node of the credential",
        Some(404) => "; are the CustomResourceDefinitions of deploy/crds applied?",
        Some(422) => "; does the CustomResourceDefinition in the cluster belong to this version?",
        Some(409) => {
            "; it was created again meanwhile, or another manager writes it at the same time"
        }
        _ => "",
    };
    format!("{error}{hint}")
}
