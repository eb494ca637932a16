//! Attempts that must succeed: the regular work of the agent and of other clients.

use berth_tests::cluster::Version;
use serde_json::{Value, json};

use crate::OWN_NODE;
use crate::attempts::ExpectedResult::Succeeds;
use crate::attempts::{Attempt, new_attempt};
use crate::objects::{
    EVENTS, INFRA_NODES, LEASES, TIMESTAMP, event, event_series, extended_resources,
    host_tuned_condition, infra_node, infra_node_status, lease, node_object, node_path,
    node_status_path,
};
use crate::request::{apply, force_apply, merge_patch, post};
use crate::test_cluster::TestCluster;

pub(crate) fn agent_requests(test_cluster: &TestCluster<'_>) -> Vec<Attempt> {
    let mut all = own_node_requests();
    all.extend(object_requests(test_cluster));
    all.push(new_attempt(
        Succeeds,
        "reviews its permissions",
        post(
            "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
            json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": {"namespace": "default"}}),
        ),
    ));
    if test_cluster.supports("reviews its identity", Version(1, 28)) {
        all.push(new_attempt(
            Succeeds,
            "reviews its identity",
            post(
                "/apis/authentication.k8s.io/v1/selfsubjectreviews",
                json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}),
            ),
        ));
    }
    all
}

const KVM_LABEL: &str = "/metadata/labels/host.berth.dev~1kvm";
const PINNABLE_CPUS: &str = "/status/capacity/berth.dev~1pinnable-cpus";

fn own_node_requests() -> Vec<Attempt> {
    let apply_status = |what: &str, labels: Value, resources: Value, conditions: Value| {
        let object = node_object(OWN_NODE, labels, resources, conditions);
        // The fields of other managers stay.
        new_attempt(Succeeds, what, apply(&node_status_path(OWN_NODE), object))
            .expect_value("/metadata/labels/zone", "z1")
            .expect_value("/status/capacity/cpu", "96")
            .expect_value("/status/allocatable/devices.kubevirt.io~1kvm", "1k")
            .expect_value("/status/conditions/0/type", "Ready")
    };
    let complete_status = |what: &str| {
        let kvm = json!({"host.berth.dev/kvm": "true"});
        apply_status(what, kvm, extended_resources(), json!([host_tuned_condition()]))
            .expect_value(KVM_LABEL, "true")
            .expect_value(PINNABLE_CPUS, "4")
            .expect_value("/status/allocatable/bridge.network.kubevirt.io~1br-tenant", "1k")
    };
    let no_kvm = json!({"host.berth.dev/kvm": "false"});
    vec![
        complete_status("labels, condition and resources of its Node"),
        apply_status("resources removed", no_kvm, json!({}), json!([host_tuned_condition()]))
            .expect_value(KVM_LABEL, "false")
            .expect_value(PINNABLE_CPUS, Value::Null),
        apply_status("labels removed too", json!({}), json!({}), json!([host_tuned_condition()]))
            .expect_value(KVM_LABEL, Value::Null),
        complete_status("labels, condition and resources again"),
    ]
}

fn object_requests(test_cluster: &TestCluster<'_>) -> Vec<Attempt> {
    let infra_nodes = format!("{INFRA_NODES}?fieldManager=berth-agent");
    let status = json!({
        "observedGeneration": 1,
        "conditions": [
            {"type": "Ready", "status": "True", "reason": "Applied", "message": "the host matches the spec", "lastTransitionTime": TIMESTAMP},
        ],
    });
    let regarding = ["berth.dev/v1alpha1", "InfraNode", OWN_NODE];
    let events = format!("{EVENTS}?fieldManager=berth-agent");
    vec![
        new_attempt(
            Succeeds,
            "creates its InfraNode",
            post(&infra_nodes, infra_node(test_cluster, OWN_NODE)),
        ),
        new_attempt(
            Succeeds,
            "the administrator owns a field of its InfraNode",
            merge_patch(
                &format!("{INFRA_NODES}/{OWN_NODE}?fieldManager=kubectl-edit"),
                json!({"metadata": {"labels": {"held": "1"}}}),
            ),
        )
        .with_credential(&test_cluster.admin_credential)
        .expect_value("/metadata/labels/held", "1"),
        new_attempt(
            Succeeds,
            "status of its InfraNode",
            apply(&format!("{INFRA_NODES}/{OWN_NODE}/status"), infra_node_status(OWN_NODE, status)),
        )
        .expect_value("/status/conditions/0/type", "Ready"),
        new_attempt(
            Succeeds,
            "creates its Lease",
            force_apply(
                &format!("{LEASES}/{OWN_NODE}"),
                lease(test_cluster, OWN_NODE, "berth-system", 0),
            ),
        ),
        new_attempt(
            Succeeds,
            "renews its Lease",
            force_apply(
                &format!("{LEASES}/{OWN_NODE}"),
                lease(test_cluster, OWN_NODE, "berth-system", 1),
            ),
        )
        .expect_value("/spec/renewTime", "2026-01-01T00:01:00.000000Z"),
        new_attempt(
            Succeeds,
            "Event of its InfraNode",
            post(&events, event(test_cluster, json!({"name": "own"}), regarding)),
        ),
        new_attempt(
            Succeeds,
            "Event of its Node, named by the server",
            post(
                &events,
                event(test_cluster, json!({"generateName": "own-"}), ["v1", "Node", OWN_NODE]),
            ),
        ),
        new_attempt(
            Succeeds,
            "updates the series of its Event",
            merge_patch(&format!("{EVENTS}/own?fieldManager=berth-agent"), event_series()),
        )
        .expect_value("/series/count", 2),
    ]
}

/// Returns writes of other clients. The server evaluates the policy for every write in the cluster, and the policy
/// must not deny writes of other clients.
pub(crate) fn other_client_requests(test_cluster: &TestCluster<'_>) -> Vec<Attempt> {
    let infra_node = format!("{INFRA_NODES}/{OWN_NODE}");
    let mut all = vec![
        new_attempt(
            Succeeds,
            "the administrator relabels and cordons",
            merge_patch(
                &node_path(OWN_NODE),
                json!({"metadata": {"labels": {"zone": "z2"}}, "spec": {"unschedulable": true}}),
            ),
        )
        .expect_value("/spec/unschedulable", true)
        .expect_value("/metadata/labels/zone", "z2"),
        new_attempt(
            Succeeds,
            "the administrator reverts this change",
            merge_patch(
                &node_path(OWN_NODE),
                json!({"metadata": {"labels": {"zone": "z1"}}, "spec": {"unschedulable": null}}),
            ),
        )
        .expect_value("/spec/unschedulable", Value::Null),
        new_attempt(
            Succeeds,
            "the administrator sets a field of a spec",
            merge_patch(&infra_node, json!({"spec": {"ksm": {"mode": "Off"}}})),
        )
        .expect_value("/spec/ksm/mode", "Off"),
        new_attempt(
            Succeeds,
            "the administrator removes the field of the spec",
            merge_patch(&infra_node, json!({"spec": {"ksm": null}})),
        )
        .expect_value("/spec", json!({})),
    ];
    for attempt in &mut all {
        attempt.credential = Some(test_cluster.admin_credential.clone());
    }
    all
}
