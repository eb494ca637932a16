//! Record of all events of the tenant's Nodes, pods and VolumeAttachments, and the invariants of drains that these
//! events must satisfy. The events of all kinds are ordered by their resource versions, which are revisions of one
//! etcd.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::ResourceExt as _;
use kube::api::DynamicObject;
use serde_json::Value;

use super::availability::Availability;

/// An event of a watch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event<'a> {
    /// Resource version of the event.
    pub(crate) version: u64,
    /// Time of the reception, since the start of the observation.
    pub(crate) at: Duration,
    pub(crate) is_deleted: bool,
    pub(crate) object: &'a DynamicObject,
}

#[derive(Debug, Default)]
struct NodeRecord {
    /// Changes of `spec.unschedulable`, with the resource versions of their events.
    cordons: Vec<(u64, bool)>,
    was_ready: bool,
    deleted_at: Option<u64>,
}

#[derive(Debug, Default)]
struct PodRecord {
    name: String,
    app: String,
    node: Option<String>,
    bound_at: Option<u64>,
    is_healthy: bool,
    /// Version of the event with which the pod began to stop.
    stopped_at: Option<u64>,
    deleted_at: Option<u64>,
}

#[derive(Debug)]
struct VolumeRecord {
    node: String,
    created_at: u64,
    deleted_at: Option<u64>,
}

/// A pod that stopped although its PodDisruptionBudget permitted no eviction.
#[derive(Debug)]
struct BudgetViolation {
    pod: String,
    healthy: usize,
}

/// All events since the start.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// Number of pods of each app that must be healthy.
    pub(crate) minimum: usize,
    nodes: BTreeMap<String, NodeRecord>,
    /// Pods by their UIDs.
    pods: BTreeMap<String, PodRecord>,
    volumes: BTreeMap<String, VolumeRecord>,
    budget_violations: Vec<BudgetViolation>,
    pub(crate) availability: Availability,
    /// Violations that are not computed from the events of the tenant.
    pub(crate) other_violations: Vec<String>,
}

impl Record {
    /// Returns a record of apps that must have at least `minimum` healthy pods.
    pub(crate) fn new(minimum: usize) -> Self {
        Self { minimum, ..Self::default() }
    }

    pub(crate) fn handle_node(&mut self, event: Event<'_>) {
        let Event { version, at, is_deleted, object } = event;
        self.availability.handle_node(at, is_deleted, &object.name_any(), is_ready(object));
        let node = self.nodes.entry(object.name_any()).or_default();
        let is_cordoned = object.data["spec"]["unschedulable"] == true;
        if node.cordons.last().is_none_or(|(_, before)| *before != is_cordoned) {
            node.cordons.push((version, is_cordoned));
        }
        node.was_ready |= is_ready(object);
        node.deleted_at = is_deleted.then_some(version);
    }

    pub(crate) fn handle_machine(&mut self, event: Event<'_>) {
        let Event { at, is_deleted, object, .. } = event;
        self.availability.handle_machine(at, is_deleted, object);
    }

    pub(crate) fn handle_volume(&mut self, event: Event<'_>) {
        let Event { version, is_deleted, object, .. } = event;
        let node = object.data["spec"]["nodeName"].as_str().unwrap_or_default().to_owned();
        let new = VolumeRecord { node, created_at: version, deleted_at: None };
        let volume = self.volumes.entry(object.name_any()).or_insert(new);
        volume.deleted_at = is_deleted.then_some(version);
    }

    pub(crate) fn handle_pod(&mut self, event: Event<'_>) {
        let Event { version, is_deleted, object, .. } = event;
        let uid = object.uid().unwrap_or_default();
        let pod = self.pods.entry(uid.clone()).or_default();
        pod.name = object.name_any();
        pod.app = object.labels().get("app").cloned().unwrap_or_default();
        if let Some(node) = object.data["spec"]["nodeName"].as_str() {
            pod.node = Some(node.to_owned());
            pod.bound_at.get_or_insert(version);
        }
        let is_stopping = is_deleted || object.metadata.deletion_timestamp.is_some();
        let was_healthy = std::mem::replace(&mut pod.is_healthy, !is_stopping && is_ready(object));
        if is_stopping {
            pod.stopped_at.get_or_insert(version);
        }
        pod.deleted_at = is_deleted.then_some(version);
        let app = pod.app.clone();
        if was_healthy && is_stopping {
            let is_healthy = |pod: &&PodRecord| pod.is_healthy && pod.app == app;
            let healthy = self.pods.values().filter(is_healthy).count();
            if healthy < self.minimum {
                self.budget_violations.push(BudgetViolation { pod: uid, healthy });
            }
        }
    }

    /// Returns the number of Nodes that were ready and are deleted.
    pub(crate) fn drained_nodes(&self) -> usize {
        self.nodes.values().filter(|node| node.was_ready && node.deleted_at.is_some()).count()
    }

    /// Returns true if the Node was ready at any time.
    pub(crate) fn was_ready(&self, node: &str) -> bool {
        self.nodes.get(node).is_some_and(|node| node.was_ready)
    }

    /// Returns the violations. Events of different kinds may arrive out of order, so a violation may disappear when
    /// later events arrive.
    pub(crate) fn violations(&self) -> Vec<String> {
        let mut found = self.other_violations.clone();
        found.extend(self.availability.violations());
        for pod in self.pods.values() {
            found.extend(self.violation_of_pod(pod));
        }
        for (name, volume) in &self.volumes {
            let deleted = self.nodes.get(&volume.node).and_then(|node| node.deleted_at);
            let Some(deleted) = deleted.filter(|deleted| volume.created_at < *deleted) else {
                continue;
            };
            if volume.deleted_at.is_none_or(|at| at > deleted) {
                found.push(format!("VolumeAttachment {name}: its Node was deleted before"));
            }
        }
        for BudgetViolation { pod, healthy } in &self.budget_violations {
            let Some(pod) = self.pods.get(pod) else { continue };
            // The pods of a deleted Node are deleted without an eviction.
            if !pod.stopped_at.is_some_and(|at| self.is_deleted(pod, at)) {
                let (name, app) = (&pod.name, &pod.app);
                found.push(format!("pod {name} was evicted: {healthy} pods of {app} are left"));
            }
        }
        found
    }

    fn violation_of_pod(&self, pod: &PodRecord) -> Option<String> {
        let (name, node_name) = (&pod.name, pod.node.as_ref()?);
        let node = self.nodes.get(node_name)?;
        if let Some(deleted) = node.deleted_at {
            // A scheduler whose cache is stale may choose a Node that is already deleted.
            let was_bound = pod.bound_at.is_some_and(|at| at < deleted);
            if was_bound && pod.deleted_at.is_none_or(|at| at > deleted) {
                return Some(format!("Node {node_name} was deleted before its pod {name}"));
            }
        }
        let stopped = pod.stopped_at?;
        let known = node.cordons.iter().rev().find(|(version, _)| *version < stopped);
        let is_cordoned = known.is_some_and(|(_, is_cordoned)| *is_cordoned);
        let is_evicted = !self.is_deleted(pod, stopped);
        (is_evicted && !is_cordoned)
            .then(|| format!("pod {name} was evicted: Node {node_name} is not cordoned"))
    }

    /// Returns true if the Node of a pod was deleted before a version.
    fn is_deleted(&self, pod: &PodRecord, version: u64) -> bool {
        let node = pod.node.as_ref().and_then(|name| self.nodes.get(name));
        node.and_then(|node| node.deleted_at).is_some_and(|deleted| deleted < version)
    }
}

/// Returns true if a Node or a pod has the condition Ready.
fn is_ready(object: &DynamicObject) -> bool {
    let conditions = object.data["status"]["conditions"].as_array();
    let is_ready = |one: &Value| one["type"] == "Ready" && one["status"] == "True";
    conditions.is_some_and(|all| all.iter().any(is_ready))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[derive(Clone, Copy)]
    enum DrainStep {
        Cordon,
        Evict,
        Detach,
        DeleteNode,
    }

    fn event(version: u64, is_deleted: bool, object: &DynamicObject) -> Event<'_> {
        Event { version, at: Duration::ZERO, is_deleted, object }
    }

    /// Returns the violations after these changes of a Node with one pod and one volume.
    fn violations(minimum: usize, changes: &[DrainStep]) -> Vec<String> {
        let object = |value: Value| serde_json::from_value::<DynamicObject>(value).unwrap();
        let ready = json!({"conditions": [{"type": "Ready", "status": "True"}]});
        let node = |is_cordoned: bool| {
            let spec = json!({"unschedulable": is_cordoned});
            object(json!({"metadata": {"name": "a"}, "spec": spec, "status": ready}))
        };
        let metadata = json!({"name": "p", "uid": "u", "labels": {"app": "shop"}});
        let spec = json!({"nodeName": "a"});
        let pod = object(json!({"metadata": metadata, "spec": spec, "status": ready}));
        let volume = object(json!({"metadata": {"name": "v"}, "spec": spec}));
        let mut record = Record::new(minimum);
        record.handle_node(event(1, false, &node(false)));
        record.handle_pod(event(2, false, &pod));
        record.handle_volume(event(3, false, &volume));
        assert_eq!((record.was_ready("a"), record.drained_nodes()), (true, 0));
        for (version, change) in (4..).zip(changes) {
            match change {
                DrainStep::Cordon => record.handle_node(event(version, false, &node(true))),
                DrainStep::Evict => record.handle_pod(event(version, true, &pod)),
                DrainStep::Detach => record.handle_volume(event(version, true, &volume)),
                DrainStep::DeleteNode => record.handle_node(event(version, true, &node(true))),
            }
        }
        record.violations()
    }

    #[test]
    fn a_complete_drain_has_no_violation() {
        use DrainStep::{Cordon, DeleteNode, Detach, Evict};
        assert_eq!(violations(0, &[Cordon, Evict, Detach, DeleteNode]), [""; 0]);
    }

    #[test]
    fn each_missing_step_is_a_violation() {
        use DrainStep::{Cordon, DeleteNode, Detach, Evict};
        for (minimum, changes, expected) in [
            (0, &[Evict, Cordon, Detach, DeleteNode], "pod p was evicted: Node a is not cordoned"),
            (0, &[Cordon, Detach, DeleteNode, Evict], "Node a was deleted before its pod p"),
            (
                0,
                &[Cordon, Evict, DeleteNode, Detach],
                "VolumeAttachment v: its Node was deleted before",
            ),
            (1, &[Cordon, Evict, Detach, DeleteNode], "pod p was evicted: 0 pods of shop are left"),
        ] {
            assert_eq!(violations(minimum, changes), [expected]);
        }
    }
}
