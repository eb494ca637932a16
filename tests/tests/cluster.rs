//! Tests of the agent in a cluster: a real control plane, and an agent on the files of a made-up host.
//!
//! The agent has the permissions that `deploy/` grants, and no others.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests fail by panicking, run programs and look at files"
)]

#[path = "../../agent/tests/common/host.rs"]
mod host;
#[path = "../../agent/tests/common/tree.rs"]
mod tree;

#[path = "cluster/agent.rs"]
mod agent;
#[path = "cluster/life.rs"]
mod life;
#[path = "cluster/says.rs"]
mod says;
#[path = "cluster/shapes.rs"]
mod shapes;
#[path = "cluster/topology.rs"]
mod topology;

use agent::file;
use berth_tests::cluster::{ControlPlane, Parts, condition};
use berth_tests::repository;
use serde_json::Value;
use tree::Tree;

/// All tests share one control plane, because its start takes longest.
#[test]
fn an_agent_lives_in_the_cluster() {
    let mut plane = ControlPlane::start(Parts { controllers: true, audit: true }).unwrap();
    plane.deploy(&[]).unwrap();
    plane.make_node("rack1-a").unwrap();
    let tree = host::rack1_a();
    let kubeconfig = plane
        .kubeconfig_for("berth-agent", &plane.token_of("berth-agent").unwrap(), false)
        .unwrap();
    let (port, log) = (agent::free_port(), plane.folder().join("agent.log"));
    let mut agent = agent::Agent::start(&tree, "rack1-a", &kubeconfig, port, log);
    says::what_the_host_is(&plane);
    says::nothing_while_nothing_changes(&plane);
    shapes::as_asked(&plane, &tree);
    shapes::what_is_wrong_is_named(&plane, &tree);
    shapes::what_cannot_be_changed_is_said(&plane, &tree);
    says::again_what_was_dropped(&plane);
    says::again_what_a_kubelet_set_to_zero(&plane);
    says::but_leaves_what_others_hold(&plane);
    // The test runs again beside a field that another manager owns too.
    says::again_what_a_kubelet_set_to_zero(&plane);
    topology::is_written_if_so_told(&plane, &tree, &mut agent);
    life::a_credential_is_renewed(&plane, &tree, &mut agent, (&kubeconfig, port));
    life::server_goes_away(&mut plane, &tree, &mut agent);
    life::objects_are_made_anew(&plane, &tree);
    topology::is_made_anew(&plane);
    life::uninstall_leaves_nodes_as_they_were(&plane, agent);
}

fn infra_node(plane: &ControlPlane) -> Value {
    plane.infra_node("rack1-a")
}

fn ask(plane: &ControlPlane, spec: &Value) {
    plane.set_infra_node_spec("rack1-a", spec).unwrap();
}

fn node(plane: &ControlPlane) -> Value {
    plane.get(&["node", "rack1-a"]).unwrap_or_default()
}
