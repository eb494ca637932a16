//! Attempts on other objects that agents write: Leases, Events, NodeResourceTopologies.

use serde_json::json;

use crate::attempts::Expect::{NoRight, NotOwn, Works};
use crate::attempts::{Attempt, attempt};
use crate::objects::{EVENTS, LEASES, TOPOLOGIES, event, lease, series, topology};
use crate::request::{apply, delete, force, merge, post};
use crate::world::World;
use crate::{OTHER, OWN};

pub(crate) fn leases(world: &World<'_>) -> Vec<Attempt> {
    let kubelets = format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{OWN}");
    let controller = lease(world, "berth-controller", "berth-system", 0);
    vec![
        attempt(
            NotOwn,
            "the Lease of another Node",
            force(&format!("{LEASES}/{OTHER}"), lease(world, OTHER, "berth-system", 0)),
        ),
        attempt(NotOwn, "create a Lease berth-controller", post(LEASES, controller)),
        attempt(
            NoRight,
            "the Lease of its kubelet",
            force(&kubelets, lease(world, OWN, "kube-node-lease", 0)),
        ),
        attempt(NoRight, "delete its own", delete(&format!("{LEASES}/{OWN}"))),
    ]
}

pub(crate) fn events(world: &World<'_>) -> Vec<Attempt> {
    let about = |name: &str, about| event(world, json!({"name": name}), about);
    let in_system = event(world, json!({"name": "e3"}), ["v1", "Node", OWN]);
    let core = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e4"},
        "involvedObject": {"kind": "Node", "name": OWN}, "reason": "x", "message": "m", "type": "Normal",
    });
    vec![
        attempt(
            NotOwn,
            "an Event of another InfraNode",
            post(EVENTS, about("e1", ["berth.dev/v1alpha1", "InfraNode", OTHER])),
        ),
        attempt(
            NotOwn,
            "an Event of a pod with the name of its Node",
            post(EVENTS, about("e2", ["v1", "Pod", OWN])),
        ),
        attempt(NotOwn, "update the series of another agent's Event", merge(&format!("{EVENTS}/foreign"), series())),
        attempt(
            NoRight,
            "an Event of its Node in kube-system",
            post("/apis/events.k8s.io/v1/namespaces/kube-system/events", in_system),
        ),
        attempt(
            NoRight,
            "an Event of its Node in the core group",
            post("/api/v1/namespaces/default/events", core),
        ),
    ]
}

/// Returns attempts that use the permission of the component `node-resource-topology`.
pub(crate) fn topologies() -> Vec<Attempt> {
    let own = format!("{TOPOLOGIES}/{OWN}");
    vec![
        attempt(Works, "creates its own", apply(&own, topology(OWN))),
        attempt(Works, "applies its own again", apply(&own, topology(OWN))),
        attempt(NotOwn, "the object of another Node", apply(&format!("{TOPOLOGIES}/{OTHER}"), topology(OTHER))),
        attempt(NoRight, "delete its own", delete(&own)),
    ]
}
