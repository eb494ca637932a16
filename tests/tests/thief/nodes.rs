//! Attempts on Nodes: the data of a host that schedulers and controllers use.

use serde_json::{Value, json};

use crate::attempts::Expect::{Dropped, NoRight, NotOwn};
use crate::attempts::{Attempt, attempt};
use crate::objects::{TIME, host_tuned, node, node_path, node_status, owner, resources};
use crate::request::{apply, delete, merge, post, strategic};
use crate::world::World;
use crate::{OTHER, OWN};

pub(crate) fn own_node(world: &World<'_>) -> Vec<Attempt> {
    let mut all = own_node_status(world);
    let here = node_path(OWN);
    let taint = json!({"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}});
    let spec =
        json!({"spec": {"unschedulable": true, "taints": [{"key": "a", "effect": "NoExecute"}]}});
    all.extend([
        attempt(Dropped, "cordon and taint through nodes/status", merge(&node_status(OWN), spec)),
        attempt(
            Dropped,
            "remove the managers of its fields through nodes/status",
            merge(&node_status(OWN), json!({"metadata": {"managedFields": [{}]}})),
        ),
        attempt(
            Dropped,
            "add a manager of its fields through nodes/status",
            merge(
                &node_status(OWN),
                json!({"metadata": {"managedFields": [{
                    "manager": "kubectl-edit", "operation": "Update", "apiVersion": "v1", "time": TIME,
                    "fieldsType": "FieldsV1", "fieldsV1": {"f:metadata": {"f:labels": {"f:host.berth.dev/kvm": {}}}},
                }]}}),
            ),
        ),
        attempt(NoRight, "cordon", merge(&here, json!({"spec": {"unschedulable": true}}))),
        attempt(NoRight, "taint", strategic(&here, taint)),
        attempt(
            NoRight,
            "add a label with the agent's prefix through nodes",
            merge(&here, json!({"metadata": {"labels": {"host.berth.dev/x": "1"}}})),
        ),
        attempt(NoRight, "delete it", delete(&here)),
        attempt(
            NoRight,
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
fn own_node_status(world: &World<'_>) -> Vec<Attempt> {
    let status = node_status(OWN);
    let control_plane =
        json!({"host.berth.dev/kvm": "true", "node-role.kubernetes.io/control-plane": ""});
    let ready = json!({"type": "Ready", "status": "False", "reason": "x", "message": "", "lastTransitionTime": TIME});
    let mut all = vec![
        attempt(
            NotOwn,
            "label node-role.kubernetes.io/control-plane and a label of the agent",
            apply(&status, node(OWN, control_plane, resources(), json!([host_tuned()]))),
        ),
        attempt(
            NotOwn,
            "condition Ready",
            strategic(&status, json!({"status": {"conditions": [ready]}})),
        ),
        attempt(
            NotOwn,
            "condition berth.devx/A",
            strategic(
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
            json!({"metadata": {"ownerReferences": [owner(world, OTHER)]}}),
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
    if world.policy {
        // Since 1.22, fields that a kubelet sets at registration have no owner, and the server deletes them with the
        // last field that an apply withdraws. Kubernetes 1.20 keeps such fields, so this attempt would cause no damage
        // there.
        all.push(attempt(
            NotOwn,
            "an empty apply, which makes servers delete conditions without an owner",
            apply(&status, node(OWN, json!({}), json!({}), json!([]))),
        ));
    }
    all.extend(patches.map(|(what, patch)| attempt(NotOwn, what, merge(&status, patch))));
    all
}

pub(crate) fn other_nodes() -> Vec<Attempt> {
    let status = node_status(OTHER);
    vec![
        attempt(
            NotOwn,
            "a label",
            apply(
                &status,
                node(OTHER, json!({"host.berth.dev/kvm": "true"}), json!({}), json!([])),
            ),
        ),
        attempt(
            NotOwn,
            "a condition",
            apply(&status, node(OTHER, json!({}), json!({}), json!([host_tuned()]))),
        ),
        attempt(
            NoRight,
            "cordon",
            merge(&node_path(OTHER), json!({"spec": {"unschedulable": true}})),
        ),
    ]
}
