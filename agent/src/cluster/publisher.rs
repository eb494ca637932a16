//! Writes to the cluster what it does not say yet of this host.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_api::names::{AGENT, CONTROLLER_STATUS, CREATED_BY};
use berth_api::{InfraNode, LinkName};
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use serde_json::{Value, json};

use super::seen::{Generation, InfraNodeSeen, NodeSeen, Seen, Sight};
use super::{Objects, SlimNode, owner};
use crate::observe::kubelet::MemoryManagerState;
use crate::publish::node::{Facts, Field, NodeSays};
use crate::publish::resources;
use berth_runtime::client::{CallError, Pauses, within};
use berth_runtime::refusal::{Refusals, conflicts, remove};

/// What there is to say after a cycle.
#[derive(Debug, Clone)]
pub struct Report {
    /// The host.
    pub node: InfraNode,
    /// The InfraNode whose spec was acted on.
    pub acted_on: Option<Generation>,
    /// Bridges that VMs can be attached to, by network; `None` if links could not be looked at.
    pub bridges: Option<BTreeMap<String, Vec<LinkName>>>,
    /// Whether pods run that may have been placed by a label.
    pub hold: bool,
    /// The checkpoint of the kubelet's Memory Manager.
    pub memory: Option<MemoryManagerState>,
}

/// A burst of changes is one write.
const SETTLE: Duration = Duration::from_millis(100);
/// What the server did not keep is tried again then: its schema may be a newer one by now.
const FORGET: Duration = Duration::from_secs(600);
/// Longest pause between tries.
const PAUSE: Duration = Duration::from_secs(30);

/// What lives from one write to the next.
struct Publisher {
    objects: Objects,
    seen: Arc<Seen>,
    reports: Arc<dyn Fn() -> Option<Report> + Send + Sync>,
    refused_status: Refusals,
    refused_node: Refusals,
    /// Whether the server makes nulls of empty texts in an apply, and then refuses them (seen with 1.20).
    empties_are_nulls: bool,
    /// Bodies that the server took and did not keep: it knows fewer fields than we do.
    futile: BTreeMap<&'static str, Futile>,
}

/// What the server took and did not keep.
struct Futile {
    since: Instant,
    uid: String,
    body: Value,
}

impl Futile {
    fn new(uid: &str, body: Value) -> Self {
        Self { since: Instant::now(), uid: uid.to_owned(), body }
    }
}

/// Publishes for ever.
pub(super) async fn publish(
    objects: Objects,
    seen: Arc<Seen>,
    reports: Arc<dyn Fn() -> Option<Report> + Send + Sync>,
) {
    let mut publisher = Publisher {
        objects,
        seen: Arc::clone(&seen),
        reports,
        refused_status: Refusals::default(),
        refused_node: Refusals::default(),
        empties_are_nulls: false,
        futile: BTreeMap::new(),
    };
    let mut pauses = Pauses::up_to(PAUSE);
    let mut said = BTreeSet::new();
    loop {
        seen.changed.notified().await;
        tokio::time::sleep(SETTLE).await;
        let (failed, rest) = publisher.write().await;
        for what in failed.iter().filter(|what| !said.contains(*what)) {
            tracing::warn!("{what}");
        }
        if failed.is_empty() {
            pauses.reset();
        } else {
            // What is said then is what is so then.
            seen.wake();
            pauses.wait(rest).await;
        }
        said = failed;
    }
}

impl Publisher {
    /// Writes all that differs; tells all that could not be written, and for how long the server wants to be left alone.
    async fn write(&mut self) -> (BTreeSet<String>, Duration) {
        let (mut failed, mut rest) = (BTreeSet::new(), Duration::ZERO);
        let Some(report) = (self.reports)() else { return (failed, rest) };
        let node = self.seen.node();
        let name = self.objects.node.clone();
        let results = [
            ("InfraNode", self.infra_node(&report, &node).await),
            ("Node", self.node(&report, node).await),
        ];
        for (kind, result) in results {
            if let Err(error) = result {
                rest = rest.max(error.rest());
                failed.insert(format!("{kind} {name} was not written: {}", meaning(&error)));
            }
        }
        (failed, rest)
    }

    async fn infra_node(
        &mut self,
        report: &Report,
        node: &Sight<NodeSeen>,
    ) -> Result<(), CallError> {
        match (self.seen.infra_node(), node) {
            // The watch brings it, and then its status is written.
            (Sight::Missing, Sight::There(node)) => self.create(&node.uid).await,
            (Sight::There(object), _) => self.status(report, &object).await,
            (Sight::Missing | Sight::Unknown, _) => Ok(()),
        }
    }

    /// Owned by the Node, so that it goes when the Node goes.
    async fn create(&self, node_uid: &str) -> Result<(), CallError> {
        let name = &self.objects.node;
        let object: DynamicObject = serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1",
            "kind": "InfraNode",
            "metadata": {
                "name": name,
                "annotations": {CREATED_BY: AGENT},
                "ownerReferences": [owner(name, node_uid)],
            },
            "spec": {},
        }))
        .map_err(|error| CallError::Kube(Box::new(kube::Error::SerdeError(error))))?;
        let params = PostParams { field_manager: Some(AGENT.to_owned()), ..PostParams::default() };
        match within(self.objects.infra_nodes.create(&params, &object)).await {
            Err(error) if error.code() == Some(409) => Ok(()),
            other => other.map(|_| tracing::info!("InfraNode {name} was created")),
        }
    }

    async fn status(&mut self, report: &Report, object: &InfraNodeSeen) -> Result<(), CallError> {
        let asked = self.seen.asked().and_then(|asked| asked.generation);
        if report.acted_on.is_none() && asked.is_some() {
            // Of what was kept on disk; the cycle that the server's answer begins tells more.
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
        if report.acted_on.as_ref().is_some_and(|of| of.uid != object.uid) {
            without_generation(&mut body);
        }
        let there = prune(as_value(object.status.as_ref()));
        if body == there || self.is_futile("InfraNode", &object.uid, &body) {
            return Ok(());
        }
        let name = self.objects.node.clone();
        let mut apply = body.clone();
        apply["apiVersion"] = "berth.dev/v1alpha1".into();
        apply["kind"] = "InfraNode".into();
        // Of the object that was seen, not of one that was made anew since.
        apply["metadata"] = json!({"name": name, "uid": object.uid});
        let params = PatchParams::apply(AGENT);
        let patch = Patch::Apply(&apply);
        let api = &self.objects.infra_nodes;
        let mut written = within(api.patch_status(&name, &params, &patch)).await;
        // The controller speaks for agents that give no sign of life; here is one.
        let spoken_for = |_: &str, manager: &str| manager == CONTROLLER_STATUS;
        if written.as_ref().is_err_and(|error| all_conflicts(error, spoken_for)) {
            written = within(api.patch_status(&name, &params.force(), &patch)).await;
        }
        // We send none.
        let found_null = |error: &CallError| error.is_invalid("\"null\"");
        if !self.empties_are_nulls && written.as_ref().is_err_and(found_null) {
            tracing::info!(
                "InfraNode {name}: the server cannot keep empty texts, so they are left out"
            );
            self.empties_are_nulls = true;
            return self.again();
        }
        let written = match note(&mut self.refused_status, written, "InfraNode", &name, spoken_for)?
        {
            None => return self.again(),
            Some(written) => written,
        };
        self.seen.see_status(&written);
        let Sight::There(kept) = self.seen.infra_node() else { return Ok(()) };
        if prune(as_value(kept.status.as_ref())) == body {
            self.futile.remove("InfraNode");
        } else {
            tracing::warn!(
                "InfraNode {name}: the server does not keep all of its status: its CustomResourceDefinition is not this \
                 agent's; apply the one of this version (deploy/crds)"
            );
            self.futile.insert("InfraNode", Futile::new(&object.uid, body));
        }
        Ok(())
    }

    async fn node(&mut self, report: &Report, node: Sight<NodeSeen>) -> Result<(), CallError> {
        let Sight::There(node) = node else { return Ok(()) };
        let Some(status) = &report.node.status else { return Ok(()) };
        let refused = self.refused_node.fields();
        let refused = refused.iter().filter_map(|path| Field::of_conflict(path)).collect();
        let says = NodeSays::new(
            &Facts {
                labels: &berth_api::node_labels(status),
                conditions: &status.conditions,
                resources: &resources::resources(
                    &report.node.spec,
                    status,
                    report.bridges.as_ref(),
                ),
                hold: report.hold,
                refused: &refused,
            },
            &node.told,
        );
        let name = self.objects.node.clone();
        let mut body = says.apply(&name);
        if !says.differs(&node.told) || self.is_futile("Node", &node.uid, &body) {
            return Ok(());
        }
        let futile = body.clone();
        body["metadata"]["uid"] = node.uid.clone().into();
        let params = PatchParams::apply(AGENT);
        let patch = Patch::Apply(&body);
        let api = &self.objects.nodes;
        let mut written = within(api.patch_status(&name, &params, &patch)).await;
        // Nobody else wants these fields, so they are not left at 0.
        let was_reset = |path: &str, manager: &str| node.told.was_reset(path, manager);
        if written.as_ref().is_err_and(|error| all_conflicts(error, was_reset)) {
            written = within(api.patch_status(&name, &params.force(), &patch)).await;
        }
        let written: SlimNode =
            match note(&mut self.refused_node, written, "Node", &name, was_reset)? {
                None => return self.again(),
                Some(written) => written,
            };
        self.seen.see_node(Some(written));
        let Sight::There(kept) = self.seen.node() else { return Ok(()) };
        if says.differs(&kept.told) {
            tracing::warn!("Node {name}: the server does not keep all that was applied");
            self.futile.insert("Node", Futile::new(&node.uid, futile));
        } else {
            self.futile.remove("Node");
        }
        Ok(())
    }

    /// Whether the server did not keep this lately.
    fn is_futile(&self, kind: &str, uid: &str, body: &Value) -> bool {
        let told = self.futile.get(kind).filter(|futile| futile.since.elapsed() < FORGET);
        told.is_some_and(|futile| futile.uid == uid && futile.body == *body)
    }

    /// Without the fields that were refused.
    fn again(&self) -> Result<(), CallError> {
        self.seen.wake();
        Ok(())
    }
}

/// Leaves out which generation was acted on: it is one of an object that was there before this one.
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

/// Whether an apply met conflicts, and all of them are with fields (path, manager) that may be taken over.
fn all_conflicts(error: &CallError, may_take: impl Fn(&str, &str) -> bool) -> bool {
    let held =
        error.status().filter(|status| status.code == 409).map(conflicts).unwrap_or_default();
    !held.is_empty() && held.iter().all(|(path, manager)| may_take(path, manager))
}

/// Takes note of fields that are another's, but for those that may be taken over once these are left out; `None` if
/// there were any, else what was written.
fn note<T>(
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
            let Some(said) = conflict.and_then(|status| refusals.note(status, &may_take)) else {
                return Err(error);
            };
            tracing::warn!("{kind} {name}: left to others, who hold these fields: {said}");
            Ok(None)
        }
    }
}

/// The error, with what to do where that is known.
fn meaning(error: &CallError) -> String {
    let hint = match error.code() {
        Some(403) => "; see the rights in deploy/base, and which Node the credential belongs to",
        Some(404) => "; are the CustomResourceDefinitions of deploy/crds applied?",
        Some(422) => "; does the CustomResourceDefinition in the cluster belong to this version?",
        Some(409) => "; it was made anew meanwhile, or others write it at the same time",
        _ => "",
    };
    format!("{error}{hint}")
}
