//! Attempts on InfraNodes: the author of a spec controls the configuration of the host.

use serde_json::{Value, json};

use crate::attempts::ExpectedResult::{ChangesStatusOnly, DeniedByPolicy, DeniedByRbac};
use crate::attempts::{Attempt, new_attempt};
use crate::objects::{INFRA_NODES, TIMESTAMP, infra_node, infra_node_status, owner_reference};
use crate::request::{apply, delete, merge_patch, post};
use crate::test_cluster::TestCluster;
use crate::{OTHER_NODE, OWN_NODE};

/// Returns attempts that need a missing InfraNode of node-a.
pub(crate) fn creation_attempts(test_cluster: &TestCluster<'_>) -> Vec<Attempt> {
    let create_with = |what: &str, pointer: &str, value: Value| {
        let mut object = infra_node(test_cluster, OWN_NODE);
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        object.pointer_mut(parent).unwrap()[key] = value;
        // The request uses the agent's field manager, so that only the content can be the reason for the denial.
        new_attempt(
            DeniedByPolicy,
            what,
            post(&format!("{INFRA_NODES}?fieldManager=berth-agent"), object),
        )
    };
    let mut unnamed = infra_node(test_cluster, OWN_NODE);
    unnamed["metadata"]["generateName"] = OWN_NODE.into();
    unnamed["metadata"].as_object_mut().unwrap().remove("name");
    vec![
        create_with("create its own with a spec", "/spec/ksm", json!({"mode": "On"})),
        create_with("create its own with a finalizer", "/metadata/finalizers", json!(["x.y/z"])),
        create_with("create its own with a label", "/metadata/labels", json!({"a": "b"})),
        create_with("create its own with an annotation", "/metadata/annotations/a", "b".into()),
        create_with(
            "create its own with another Node as the owner",
            "/metadata/ownerReferences",
            json!([owner_reference(test_cluster, OTHER_NODE)]),
        ),
        create_with(
            "create its own with a field of another manager",
            "/metadata/managedFields",
            json!([{
                "manager": "kubectl-edit", "operation": "Update", "apiVersion": "berth.dev/v1alpha1", "time": TIMESTAMP,
                "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:ksm": {".": {}, "f:mode": {}}}},
            }]),
        ),
        create_with("create the InfraNode of another Node", "/metadata/name", "node-c".into()),
        new_attempt(DeniedByPolicy, "create one with a generated name", post(INFRA_NODES, unnamed)),
    ]
}

/// Returns attempts that need the InfraNodes of both Nodes.
pub(crate) fn update_attempts() -> Vec<Attempt> {
    let own = format!("{INFRA_NODES}/{OWN_NODE}");
    let spec = json!({"ksm": {"mode": "On"}});
    let behind_status = json!({
        "spec": spec, "metadata": {"labels": {"a": "b"}, "finalizers": ["x.y/z"]},
        "status": {"observedGeneration": 2},
    });
    vec![
        new_attempt(
            DeniedByRbac,
            "change the spec of its own",
            merge_patch(&own, json!({"spec": spec})),
        ),
        new_attempt(
            DeniedByRbac,
            "annotate its own",
            merge_patch(&own, json!({"metadata": {"annotations": {"a": "b"}}})),
        ),
        new_attempt(
            ChangesStatusOnly,
            "change spec, label and finalizer of its own through infranodes/status",
            merge_patch(&format!("{own}/status"), behind_status),
        ),
        new_attempt(
            ChangesStatusOnly,
            "remove the managers of its fields through infranodes/status",
            merge_patch(&format!("{own}/status"), json!({"metadata": {"managedFields": [{}]}})),
        ),
        new_attempt(DeniedByRbac, "delete its own", delete(&own)),
        new_attempt(DeniedByRbac, "delete all", delete(INFRA_NODES)),
        new_attempt(
            DeniedByPolicy,
            "change the status of another InfraNode",
            apply(
                &format!("{INFRA_NODES}/{OTHER_NODE}/status"),
                infra_node_status(OTHER_NODE, json!({"observedGeneration": 1})),
            ),
        ),
    ]
}
