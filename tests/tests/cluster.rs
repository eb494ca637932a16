//! Tests of the agent in a cluster: a real control plane, and an agent on the files of a simulated host.
//!
//! The agent has exactly the permissions that `deploy/` grants.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests fail by panicking, run programs and read files"
)]

#[path = "../../agent/tests/common/host.rs"]
mod host;
#[path = "../../agent/tests/common/tree.rs"]
mod tree;

#[path = "cluster/agent.rs"]
mod agent;
#[path = "cluster/apply_spec.rs"]
mod apply_spec;
#[path = "cluster/lifecycle.rs"]
mod lifecycle;
#[path = "cluster/reports.rs"]
mod reports;
#[path = "cluster/topology.rs"]
mod topology;

use agent::read_file;
use berth_tests::cluster::{ControlPlane, ControlPlaneOptions, condition};
use berth_tests::repository;
use serde_json::Value;
use tree::Tree;

/// All tests share one control plane, because starting it is the slowest step.
#[test]
fn agent_works_in_a_cluster() {
    let mut plane = ControlPlane::start(ControlPlaneOptions {
        has_controllers: true,
        has_audit_log: true,
        ..ControlPlaneOptions::default()
    })
    .unwrap();
    plane.deploy(&[]).unwrap();
    plane.create_node("rack1-a").unwrap();
    let tree = host::rack1_a();
    let kubeconfig = plane
        .write_kubeconfig("berth-agent", &plane.create_token("berth-agent").unwrap(), false)
        .unwrap();
    let (port, log) = (agent::free_port(), plane.folder().join("agent.log"));
    let mut agent = agent::Agent::start(&tree, "rack1-a", &kubeconfig, port, log);
    reports::host_is_reported(&plane);
    reports::idle_host_causes_no_writes(&plane);
    apply_spec::spec_is_applied_and_drift_corrected(&plane, &tree);
    apply_spec::invalid_spec_is_reported(&plane, &tree);
    apply_spec::missing_rollback_ledger_is_reported(&plane, &tree);
    reports::removed_fields_are_restored(&plane);
    reports::fields_zeroed_by_a_kubelet_are_restored(&plane);
    reports::fields_of_other_managers_are_kept(&plane);
    // The test runs again, now that another manager also owns a field of the Node.
    reports::fields_zeroed_by_a_kubelet_are_restored(&plane);
    topology::topology_is_written_if_enabled(&plane, &tree, &mut agent);
    lifecycle::expired_credential_is_replaced(&plane, &tree, &mut agent, (&kubeconfig, port));
    lifecycle::agent_continues_without_the_server(&mut plane, &tree, &mut agent);
    lifecycle::deleted_objects_are_recreated(&plane, &tree);
    topology::missing_object_is_recreated(&plane);
    lifecycle::uninstall_restores_the_node(&plane, agent);
}

fn read_infra_node(plane: &ControlPlane) -> Value {
    plane.infra_node("rack1-a")
}

fn set_spec(plane: &ControlPlane, spec: &Value) {
    plane.set_infra_node_spec("rack1-a", spec).unwrap();
}

fn read_node(plane: &ControlPlane) -> Value {
    plane.get_json(&["node", "rack1-a"]).unwrap_or_default()
}
