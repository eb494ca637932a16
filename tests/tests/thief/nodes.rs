//! Attempts on Nodes: the data of a host that schedulers and controllers use.

use serde_json::{Value, json};

use crate::attempts::ExpectedResult::{ChangesStatusOnly, DeniedByPolicy, DeniedByRbac};
use crate::attempts::{Attempt, new_attempt};
use crate::objects::{
    TIMESTAMP, extended_resources, host_tuned_condition, node_object, node_path, node_status_path,
    owner_reference,
};
use crate::request::{apply, delete, merge_patch, post, strategic_patch};
use crate::test_cluster::TestCluster;
use crate::{OTHER_NODE, OWN_NODE};

pub(crate) fn own_node_attempts(test_cluster: &TestCluster<'_>) -> Vec<Attempt> {
    let mut all = own_node_status_attempts(test_cluster);
    let here = node_path(OWN_NODE);
    let taint = json!({"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}});
    let spec =
        json!({"spec": {"unschedulable": true, "taints": [{"key": "a", "effect": "NoExecute"}]}});
    all.extend([
        new_attempt(ChangesStatusOnly, "cordon and taint through nodes/status", merge_patch(&node_status_path(OWN_NODE), spec)),
        new_attempt(
            ChangesStatusOnly,
            "remove the managers of its fields through nodes/status",
            merge_patch(&node_status_path(OWN_NODE), json!({"metadata": {"managedFields": [{}]}})),
        ),
        new_attempt(
            ChangesStatusOnly,
            "add a manager of its fields through nodes/status",
            merge_patch(
                &node_status_path(OWN_NODE),
                json!({"metadata": {"managedFields": [{
                    "manager": "kubectl-edit", "operation": "Update", "apiVersion": "v1", "time": TIMESTAMP,
                    "fieldsType": "FieldsV1", "fieldsV1": {"f:metadata": {"f:labels": {"f:host.berth.dev/kvm": {}}}},
                }]}}),
            ),
        ),
        new_attempt(DeniedByRbac, "cordon", merge_patch(&here, json!({"spec": {"unschedulable": true}}))),
        new_attempt(DeniedByRbac, "taint", strategic_patch(&here, taint)),
        new_attempt(
            DeniedByRbac,
            "add a label with the agent's prefix through nodes",
            merge_patch(&here, json!({"metadata": {"labels": {"host.berth.dev/x": "1"}}})),
        ),
        new_attempt(DeniedByRbac, "delete it", delete(&here)),
        new_attempt(
            DeniedByRbac,
            "create a Node",
            post(
                "/api/v1/nodes",
                json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-x"}}),
            ),
        ),
    ]);
    all
}

/// Returns attempts through the status subresource, which accepts labels, annotations and the whole status.
fn own_node_status_attempts(test_cluster: &TestCluster<'_>) -> Vec<Attempt> {
    let status = node_status_path(OWN_NODE);
    let control_plane =
        json!({"host.berth.dev/kvm": "true", "node-role.kubernetes.io/control-plane": ""});
    let ready = json!({"type": "Ready", "status": "False", "reason": "x", "message": "", "lastTransitionTime": TIMESTAMP});
    let mut all = vec![
        new_attempt(
            DeniedByPolicy,
            "label node-role.kubernetes.io/control-plane and a label of the agent",
            apply(
                &status,
                node_object(
                    OWN_NODE,
                    control_plane,
                    extended_resources(),
                    json!([host_tuned_condition()]),
                ),
            ),
        ),
        new_attempt(
            DeniedByPolicy,
            "condition Ready",
            strategic_patch(&status, json!({"status": {"conditions": [ready]}})),
        ),
        new_attempt(
            DeniedByPolicy,
            "condition berth.devx/A",
            strategic_patch(
                &status,
                json!({"status": {"conditions": [{"type": "berth.devx/A", "status": "False"}]}}),
            ),
        ),
    ];
    let patches: [(&str, Value); 19] = [
        (
            "a label that contains the agent's prefix",
            json!({"metadata": {"labels": {"x.host.berth.dev/kvm": "true"}}}),
        ),
        (
            "label berth.dev/class",
            json!({"metadata": {"labels": {"berth.dev/class": "Performance"}}}),
        ),
        ("label berth.dev/ignore", json!({"metadata": {"labels": {"berth.dev/ignore": "true"}}})),
        ("change a label", json!({"metadata": {"labels": {"zone": "z2"}}})),
        ("remove a label", json!({"metadata": {"labels": {"zone": null}}})),
        ("an annotation", json!({"metadata": {"annotations": {"berth.dev/x": "1"}}})),
        ("remove all annotations", json!({"metadata": {"annotations": null}})),
        ("a finalizer", json!({"metadata": {"finalizers": ["x.y/z"]}})),
        (
            "another Node as its owner",
            json!({"metadata": {"ownerReferences": [owner_reference(test_cluster, OTHER_NODE)]}}),
        ),
        ("remove all conditions", json!({"status": {"conditions": []}})),
        ("capacity: cpu", json!({"status": {"capacity": {"cpu": "800"}}})),
        (
            "allocatable: no devices.kubevirt.io/kvm",
            json!({"status": {"allocatable": {"devices.kubevirt.io/kvm": null}}}),
        ),
        (
            "a resource example.com/gpu",
            json!({"status": {"capacity": {"example.com/gpu": "8"}, "allocatable": {"example.com/gpu": "8"}}}),
        ),
        (
            "addresses",
            json!({"status": {"addresses": [{"type": "InternalIP", "address": "10.6.6.6"}]}}),
        ),
        ("nodeInfo", json!({"status": {"nodeInfo": {"kernelVersion": "0"}}})),
        ("images", json!({"status": {"images": []}})),
        (
            "daemonEndpoints",
            json!({"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}}}),
        ),
        (
            "volumesAttached",
            json!({"status": {"volumesAttached": [{"name": "a", "devicePath": "b"}]}}),
        ),
        ("remove the status", json!({"status": null})),
    ];
    if test_cluster.has_policy {
        // Since 1.22, fields that a kubelet sets at registration have no owner. When an apply omits all fields of a map
        // that its manager owned, the server deletes the map with the fields that have no owner. Kubernetes 1.20 does
        // not delete such fields, so this attempt would cause no damage there.
        all.push(new_attempt(
            DeniedByPolicy,
            "an empty apply, which makes servers delete conditions without an owner",
            apply(&status, node_object(OWN_NODE, json!({}), json!({}), json!([]))),
        ));
    }
    all.extend(
        patches.map(|(what, patch)| new_attempt(DeniedByPolicy, what, merge_patch(&status, patch))),
    );
    all
}

pub(crate) fn other_node_attempts() -> Vec<Attempt> {
    let status = node_status_path(OTHER_NODE);
    vec![
        new_attempt(
            DeniedByPolicy,
            "a label",
            apply(
                &status,
                node_object(
                    OTHER_NODE,
                    json!({"host.berth.dev/kvm": "true"}),
                    json!({}),
                    json!([]),
                ),
            ),
        ),
        new_attempt(
            DeniedByPolicy,
            "a condition",
            apply(
                &status,
                node_object(OTHER_NODE, json!({}), json!({}), json!([host_tuned_condition()])),
            ),
        ),
        new_attempt(
            DeniedByRbac,
            "cordon",
            merge_patch(&node_path(OTHER_NODE), json!({"spec": {"unschedulable": true}})),
        ),
    ]
}
