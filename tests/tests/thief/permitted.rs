//! Attempts that must succeed: the regular work of the agent and of other clients.

use berth_tests::cluster::Version;
use serde_json::{Value, json};

use crate::OWN;
use crate::attempts::Expect::Works;
use crate::attempts::{Attempt, attempt};
use crate::objects::{
    EVENTS, INFRA_NODES, LEASES, TIME, event, host_tuned, infra_node, infra_node_status, lease,
    node, node_path, node_status, resources, series,
};
use crate::request::{apply, force, merge, post};
use crate::world::World;

pub(crate) fn agent_requests(world: &World<'_>) -> Vec<Attempt> {
    let mut all = own_node_requests();
    all.extend(object_requests(world));
    all.push(attempt(
        Works,
        "reviews its permissions",
        post(
            "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
            json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": {"namespace": "default"}}),
        ),
    ));
    if world.supports("reviews its identity", Version(1, 28)) {
        all.push(attempt(
            Works,
            "reviews its identity",
            post(
                "/apis/authentication.k8s.io/v1/selfsubjectreviews",
                json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}),
            ),
        ));
    }
    all
}

const LABEL: &str = "/metadata/labels/host.berth.dev~1kvm";
const PINNABLE: &str = "/status/capacity/berth.dev~1pinnable-cpus";

fn own_node_requests() -> Vec<Attempt> {
    let apply_status = |what: &str, labels: Value, resources: Value, conditions: Value| {
        let object = node(OWN, labels, resources, conditions);
        // The fields of other managers stay.
        attempt(Works, what, apply(&node_status(OWN), object))
            .expect_value("/metadata/labels/zone", "z1")
            .expect_value("/status/capacity/cpu", "96")
            .expect_value("/status/allocatable/devices.kubevirt.io~1kvm", "1k")
            .expect_value("/status/conditions/0/type", "Ready")
    };
    let complete_status = |what: &str| {
        let kvm = json!({"host.berth.dev/kvm": "true"});
        apply_status(what, kvm, resources(), json!([host_tuned()]))
            .expect_value(LABEL, "true")
            .expect_value(PINNABLE, "4")
            .expect_value("/status/allocatable/bridge.network.kubevirt.io~1br-tenant", "1k")
    };
    let no_kvm = json!({"host.berth.dev/kvm": "false"});
    vec![
        complete_status("labels, condition and resources of its Node"),
        apply_status("resources withdrawn", no_kvm, json!({}), json!([host_tuned()]))
            .expect_value(LABEL, "false")
            .expect_value(PINNABLE, Value::Null),
        apply_status("labels withdrawn too", json!({}), json!({}), json!([host_tuned()]))
            .expect_value(LABEL, Value::Null),
        complete_status("labels, condition and resources again"),
    ]
}

fn object_requests(world: &World<'_>) -> Vec<Attempt> {
    let infra_nodes = format!("{INFRA_NODES}?fieldManager=berth-agent");
    let status = json!({
        "observedGeneration": 1,
        "conditions": [
            {"type": "Ready", "status": "True", "reason": "Applied", "message": "the host matches the spec", "lastTransitionTime": TIME},
        ],
    });
    let about = ["berth.dev/v1alpha1", "InfraNode", OWN];
    let events = format!("{EVENTS}?fieldManager=berth-agent");
    vec![
        attempt(Works, "creates its InfraNode", post(&infra_nodes, infra_node(world, OWN))),
        attempt(
            Works,
            "the administrator owns a field of its InfraNode",
            merge(
                &format!("{INFRA_NODES}/{OWN}?fieldManager=kubectl-edit"),
                json!({"metadata": {"labels": {"held": "1"}}}),
            ),
        )
        .with_credential(&world.admin)
        .expect_value("/metadata/labels/held", "1"),
        attempt(
            Works,
            "status of its InfraNode",
            apply(&format!("{INFRA_NODES}/{OWN}/status"), infra_node_status(OWN, status)),
        )
        .expect_value("/status/conditions/0/type", "Ready"),
        attempt(
            Works,
            "creates its Lease",
            force(&format!("{LEASES}/{OWN}"), lease(world, OWN, "berth-system", 0)),
        ),
        attempt(
            Works,
            "renews its Lease",
            force(&format!("{LEASES}/{OWN}"), lease(world, OWN, "berth-system", 1)),
        )
        .expect_value("/spec/renewTime", "2026-01-01T00:01:00.000000Z"),
        attempt(
            Works,
            "Event of its InfraNode",
            post(&events, event(world, json!({"name": "own"}), about)),
        ),
        attempt(
            Works,
            "Event of its Node, named by the server",
            post(&events, event(world, json!({"generateName": "own-"}), ["v1", "Node", OWN])),
        ),
        attempt(
            Works,
            "updates the series of its Event",
            merge(&format!("{EVENTS}/own?fieldManager=berth-agent"), series()),
        )
        .expect_value("/series/count", 2),
    ]
}

/// Returns writes of other clients. The server evaluates the policy for every write in the cluster, and the policy
/// must not deny writes of other clients.
pub(crate) fn other_clients(world: &World<'_>) -> Vec<Attempt> {
    let infra_node = format!("{INFRA_NODES}/{OWN}");
    let mut all = vec![
        attempt(
            Works,
            "the administrator relabels and cordons",
            merge(
                &node_path(OWN),
                json!({"metadata": {"labels": {"zone": "z2"}}, "spec": {"unschedulable": true}}),
            ),
        )
        .expect_value("/spec/unschedulable", true)
        .expect_value("/metadata/labels/zone", "z2"),
        attempt(
            Works,
            "the administrator reverts this change",
            merge(
                &node_path(OWN),
                json!({"metadata": {"labels": {"zone": "z1"}}, "spec": {"unschedulable": null}}),
            ),
        )
        .expect_value("/spec/unschedulable", Value::Null),
        attempt(
            Works,
            "the administrator sets a field of a spec",
            merge(&infra_node, json!({"spec": {"ksm": {"mode": "Off"}}})),
        )
        .expect_value("/spec/ksm/mode", "Off"),
        attempt(
            Works,
            "the administrator removes the field of the spec",
            merge(&infra_node, json!({"spec": {"ksm": null}})),
        )
        .expect_value("/spec", json!({})),
    ];
    for attempt in &mut all {
        attempt.credential = Some(world.admin.clone());
    }
    all
}
