//! Progress of a removal that cannot be read from the tenant's cluster after the deletion of the Node. It is recorded in
//! annotations of the VirtualMachine.

use berth_api::names::{NODE_DELETION_ANNOTATION, REMOVAL_ANNOTATION, REMOVAL_NODE_ANNOTATION};
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use serde_json::{Map, Value, json};

use super::mark::RemovalReason;

/// Returns the reason of a removal that has begun to delete the Node of its machine; `None` if the deletion of the Node
/// has not begun. A removal that has begun cannot be cancelled: without its Node, the machine would stay unready for
/// ever.
#[must_use]
pub fn reason_of_begun_deletion(machine: &DynamicObject) -> Option<RemovalReason> {
    let reason = machine.annotations().get(NODE_DELETION_ANNOTATION)?;
    Some(reason.parse().unwrap_or(RemovalReason::Rollout))
}

/// Returns true if a machine has a mark, or if the deletion of its Node has begun.
#[must_use]
pub fn is_in_removal(machine: &DynamicObject) -> bool {
    let annotations = machine.annotations();
    [REMOVAL_ANNOTATION, NODE_DELETION_ANNOTATION]
        .iter()
        .any(|name| annotations.contains_key(*name))
}

/// Returns the name of the Node that a machine has or had: the recorded name, or the name of the machine.
#[must_use]
pub fn node_name(machine: &DynamicObject) -> String {
    let recorded = machine.annotations().get(REMOVAL_NODE_ANNOTATION).cloned();
    recorded.unwrap_or_else(|| machine.name_any())
}

/// Returns the merge patch that records the name of the Node and, with `deletion`, that the removal with this reason
/// begins to delete the Node; `None` if this is already recorded. The API server refuses the patch if the machine has
/// changed since it was read: its mark may have been removed.
#[must_use]
pub fn record_patch(
    machine: &DynamicObject,
    node: &str,
    deletion: Option<RemovalReason>,
) -> Option<Value> {
    let mut annotations = Map::new();
    if node_name(machine) != node {
        annotations.insert(REMOVAL_NODE_ANNOTATION.to_owned(), node.into());
    }
    if let Some(reason) = deletion.filter(|_| reason_of_begun_deletion(machine).is_none()) {
        annotations.insert(NODE_DELETION_ANNOTATION.to_owned(), reason.as_str().into());
    }
    let (uid, version) = (machine.uid(), machine.resource_version());
    let metadata = json!({"uid": uid, "resourceVersion": version, "annotations": annotations});
    (!annotations.is_empty()).then(|| json!({"metadata": metadata}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(annotations: &Value) -> DynamicObject {
        let metadata = json!({"name": "web-1", "uid": "u", "resourceVersion": "7", "annotations": annotations});
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    }

    #[test]
    fn the_deletion_of_the_node_is_recorded_once() {
        let marked = machine(&json!({REMOVAL_ANNOTATION: "HostLost"}));
        assert_eq!(reason_of_begun_deletion(&marked), None);
        let patch = record_patch(&marked, "web-1", Some(RemovalReason::HostLost)).unwrap();
        assert_eq!(patch["metadata"]["uid"], "u");
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
        // The mark is removed afterwards.
        let recorded = machine(&patch["metadata"]["annotations"]);
        assert_eq!(reason_of_begun_deletion(&recorded), Some(RemovalReason::HostLost));
        assert_eq!(record_patch(&recorded, "web-1", Some(RemovalReason::Rollout)), None);
        assert!(is_in_removal(&marked) && is_in_removal(&recorded));
        assert!(!is_in_removal(&machine(&json!({}))));
        let malformed = machine(&json!({NODE_DELETION_ANNOTATION: "why"}));
        assert_eq!(reason_of_begun_deletion(&malformed), Some(RemovalReason::Rollout));
    }

    #[test]
    fn another_name_of_the_node_is_recorded() {
        let marked = machine(&json!({REMOVAL_ANNOTATION: "Rollout"}));
        assert_eq!(node_name(&marked), "web-1");
        assert_eq!(record_patch(&marked, "web-1", None), None);
        let patch = record_patch(&marked, "other", None).unwrap();
        let recorded = machine(&patch["metadata"]["annotations"]);
        assert_eq!(node_name(&recorded), "other");
        assert_eq!(record_patch(&recorded, "other", None), None);
        assert!(record_patch(&recorded, "web-1", None).is_some());
        assert_eq!(reason_of_begun_deletion(&recorded), None);
    }
}
