//! Attempts on other objects that agents write: Leases, Events, NodeResourceTopologies.

use serde_json::json;

use crate::attempts::ExpectedResult::{DeniedByPolicy, DeniedByRbac, Succeeds};
use crate::attempts::{Attempt, new_attempt};
use crate::objects::{EVENTS, LEASES, TOPOLOGIES, event, event_series, lease, topology};
use crate::request::{apply, delete, force_apply, merge_patch, post};
use crate::test_cluster::TestCluster;
use crate::{OTHER_NODE, OWN_NODE};

pub(crate) fn lease_attempts(test_cluster: &TestCluster<'_>) -> Vec<Attempt> {
    let kubelets =
        format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{OWN_NODE}");
    let controller = lease(test_cluster, "berth-controller", "berth-system", 0);
    vec![
        new_attempt(
            DeniedByPolicy,
            "the Lease of another Node",
            force_apply(
                &format!("{LEASES}/{OTHER_NODE}"),
                lease(test_cluster, OTHER_NODE, "berth-system", 0),
            ),
        ),
        new_attempt(DeniedByPolicy, "create a Lease berth-controller", post(LEASES, controller)),
        new_attempt(
            DeniedByRbac,
            "the Lease of its kubelet",
            force_apply(&kubelets, lease(test_cluster, OWN_NODE, "kube-node-lease", 0)),
        ),
        new_attempt(DeniedByRbac, "delete its own", delete(&format!("{LEASES}/{OWN_NODE}"))),
    ]
}

pub(crate) fn event_attempts(test_cluster: &TestCluster<'_>) -> Vec<Attempt> {
    let event_about = |name: &str, regarding| event(test_cluster, json!({"name": name}), regarding);
    let in_system = event(test_cluster, json!({"name": "e3"}), ["v1", "Node", OWN_NODE]);
    let core = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e4"},
        "involvedObject": {"kind": "Node", "name": OWN_NODE}, "reason": "x", "message": "m", "type": "Normal",
    });
    vec![
        new_attempt(
            DeniedByPolicy,
            "an Event of another InfraNode",
            post(EVENTS, event_about("e1", ["berth.dev/v1alpha1", "InfraNode", OTHER_NODE])),
        ),
        new_attempt(
            DeniedByPolicy,
            "an Event of a pod with the name of its Node",
            post(EVENTS, event_about("e2", ["v1", "Pod", OWN_NODE])),
        ),
        new_attempt(
            DeniedByPolicy,
            "update the series of another agent's Event",
            merge_patch(&format!("{EVENTS}/foreign"), event_series()),
        ),
        new_attempt(
            DeniedByRbac,
            "an Event of its Node in kube-system",
            post("/apis/events.k8s.io/v1/namespaces/kube-system/events", in_system),
        ),
        new_attempt(
            DeniedByRbac,
            "an Event of its Node in the core group",
            post("/api/v1/namespaces/default/events", core),
        ),
    ]
}

/// Returns attempts that use the permission of the component `node-resource-topology`.
pub(crate) fn topology_attempts() -> Vec<Attempt> {
    let own = format!("{TOPOLOGIES}/{OWN_NODE}");
    vec![
        new_attempt(Succeeds, "creates its own", apply(&own, topology(OWN_NODE))),
        new_attempt(Succeeds, "applies its own again", apply(&own, topology(OWN_NODE))),
        new_attempt(
            DeniedByPolicy,
            "the object of another Node",
            apply(&format!("{TOPOLOGIES}/{OTHER_NODE}"), topology(OTHER_NODE)),
        ),
        new_attempt(DeniedByRbac, "delete its own", delete(&own)),
    ]
}
