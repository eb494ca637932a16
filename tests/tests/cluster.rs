//! The agent in a cluster: a real control plane, and an agent on a made-up host's files.
//!
//! The agent has the rights that `deploy/` gives it, and no others.

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

use std::path::{Path, PathBuf};

use berth_tests::cluster::{ControlPlane, Parts};
use serde_json::{Value, json};
use tree::Tree;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// One control plane for all of it, as it takes longest.
#[test]
fn an_agent_lives_in_the_cluster() {
    let mut plane = ControlPlane::start(Parts { controllers: true, audit: true }).unwrap();
    set_up(&plane);
    make_node(&plane, "rack1-a");
    let tree = host::rack1_a();
    let mut agent = agent::Agent::start(&plane, &tree, "rack1-a");
    says::what_the_host_is(&plane);
    says::nothing_while_nothing_changes(&plane);
    shapes::as_asked(&plane, &tree);
    shapes::what_is_wrong_is_named(&plane, &tree);
    says::again_what_was_dropped(&plane);
    says::but_leaves_what_others_hold(&plane);
    topology::is_written_if_so_told(&plane, &tree, &mut agent);
    life::server_goes_away(&mut plane, &tree, &mut agent);
    life::objects_are_made_anew(&plane, &tree);
    topology::is_made_anew(&plane);
    life::uninstall_leaves_nodes_as_they_were(&plane, agent);
}

/// What `kubectl apply -k deploy/` makes that needs no kubelet.
fn set_up(plane: &ControlPlane) {
    let deploy = repository().join("deploy");
    for file in [
        "crds/infranodes.berth.dev.yaml",
        "base/namespace.yaml",
        "base/service-account.yaml",
        "base/rbac.yaml",
    ] {
        let file = deploy.join(file);
        // kubectl before 1.25 does not know of rules in CRDs.
        plane.kubectl(&["apply", "--validate=false", "-f", file.to_str().unwrap()]).unwrap();
    }
    plane
        .kubectl(&[
            "wait",
            "--for=condition=Established",
            "crd/infranodes.berth.dev",
            "--timeout=30s",
        ])
        .unwrap();
}

/// A Node as a kubelet would register it.
fn make_node(plane: &ControlPlane, name: &str) {
    let amounts = json!({"cpu": "96", "memory": "512Gi", "pods": "110"});
    let node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"kubernetes.io/os": "linux"}},
        "status": {
            "capacity": amounts, "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    });
    plane.kubectl_with(&plane.kubeconfig(), &["create", "-f", "-"], &node.to_string()).unwrap();
    // Whoever creates a Node may give it a status; its kubelet then writes it again and again.
    let path = format!("/api/v1/nodes/{name}/status");
    let mut there = plane.get(&["node", name]).unwrap();
    there["status"] = node["status"].clone();
    // The controllers write it too.
    there["metadata"]["resourceVersion"].take();
    plane
        .kubectl_with(
            &plane.kubeconfig(),
            &["replace", "--raw", &path, "-f", "-"],
            &there.to_string(),
        )
        .unwrap();
}

fn infra_node(plane: &ControlPlane) -> Value {
    plane.get(&["infranode", "rack1-a"]).unwrap_or_default()
}

fn node(plane: &ControlPlane) -> Value {
    plane.get(&["node", "rack1-a"]).unwrap_or_default()
}

/// A condition of an object; null if it has none of that type.
fn condition<'a>(object: &'a Value, name: &str) -> &'a Value {
    let conditions = object["status"]["conditions"].as_array();
    conditions.and_then(|all| all.iter().find(|one| one["type"] == name)).unwrap_or(&Value::Null)
}

/// Changes the spec as a person would.
fn ask(plane: &ControlPlane, spec: &Value) {
    let patch = json!({"spec": spec}).to_string();
    plane.kubectl(&["patch", "infranode", "rack1-a", "--type=merge", "-p", &patch]).unwrap();
}

/// A file of the made-up host.
fn file(tree: &Tree, path: &str) -> String {
    std::fs::read_to_string(tree.path().join(path)).unwrap().trim().to_owned()
}
