//! Attempts on InfraNodes: the author of a spec controls the configuration of the host.

use serde_json::{Value, json};

use crate::attempts::Expect::{Dropped, NoRight, NotOwn};
use crate::attempts::{Attempt, attempt};
use crate::objects::{INFRA_NODES, TIME, infra_node, infra_node_status, owner};
use crate::request::{apply, delete, merge, post};
use crate::world::World;
use crate::{OTHER, OWN};

/// Returns attempts that need a missing InfraNode of node-a.
pub(crate) fn creation_attempts(world: &World<'_>) -> Vec<Attempt> {
    let create_with = |what: &str, pointer: &str, value: Value| {
        let mut object = infra_node(world, OWN);
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        object.pointer_mut(parent).unwrap()[key] = value;
        // The field manager is the agent's, so that only the content is the reason of the denial.
        attempt(NotOwn, what, post(&format!("{INFRA_NODES}?fieldManager=berth-agent"), object))
    };
    let mut unnamed = infra_node(world, OWN);
    unnamed["metadata"]["generateName"] = OWN.into();
    unnamed["metadata"].as_object_mut().unwrap().remove("name");
    vec![
        create_with("create its own with a spec", "/spec/ksm", json!({"mode": "On"})),
        create_with("create its own with a finalizer", "/metadata/finalizers", json!(["x.y/z"])),
        create_with("create its own with a label", "/metadata/labels", json!({"a": "b"})),
        create_with("create its own with an annotation", "/metadata/annotations/a", "b".into()),
        create_with(
            "create its own with another Node as the owner",
            "/metadata/ownerReferences",
            json!([owner(world, OTHER)]),
        ),
        create_with(
            "create its own with a field of another manager",
            "/metadata/managedFields",
            json!([{
                "manager": "kubectl-edit", "operation": "Update", "apiVersion": "berth.dev/v1alpha1", "time": TIME,
                "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:ksm": {".": {}, "f:mode": {}}}},
            }]),
        ),
        create_with("create the InfraNode of another Node", "/metadata/name", "node-c".into()),
        attempt(NotOwn, "create one with a generated name", post(INFRA_NODES, unnamed)),
    ]
}

/// Returns attempts that need the InfraNodes of both Nodes.
pub(crate) fn update_attempts() -> Vec<Attempt> {
    let own = format!("{INFRA_NODES}/{OWN}");
    let spec = json!({"ksm": {"mode": "On"}});
    let behind_status = json!({
        "spec": spec, "metadata": {"labels": {"a": "b"}, "finalizers": ["x.y/z"]},
        "status": {"observedGeneration": 2},
    });
    vec![
        attempt(NoRight, "change the spec of its own", merge(&own, json!({"spec": spec}))),
        attempt(
            NoRight,
            "annotate its own",
            merge(&own, json!({"metadata": {"annotations": {"a": "b"}}})),
        ),
        attempt(
            Dropped,
            "change spec, label and finalizer of its own through infranodes/status",
            merge(&format!("{own}/status"), behind_status),
        ),
        attempt(
            Dropped,
            "remove the managers of its fields through infranodes/status",
            merge(&format!("{own}/status"), json!({"metadata": {"managedFields": [{}]}})),
        ),
        attempt(NoRight, "delete its own", delete(&own)),
        attempt(NoRight, "delete all", delete(INFRA_NODES)),
        attempt(
            NotOwn,
            "change the status of another InfraNode",
            apply(
                &format!("{INFRA_NODES}/{OTHER}/status"),
                infra_node_status(OTHER, json!({"observedGeneration": 1})),
            ),
        ),
    ]
}
