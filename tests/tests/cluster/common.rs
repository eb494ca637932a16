//! What tests of an agent in a cluster share: its objects, and a person who asks for something.

use std::path::{Path, PathBuf};

use berth_tests::cluster::ControlPlane;
use serde_json::{Value, json};

use crate::tree::Tree;

pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// What `kubectl apply -k deploy/` makes that needs no kubelet.
pub(crate) fn set_up(plane: &ControlPlane) {
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
pub(crate) fn make_node(plane: &ControlPlane, name: &str) {
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

pub(crate) fn infra_node(plane: &ControlPlane, name: &str) -> Value {
    plane.get(&["infranode", name]).unwrap_or_default()
}

/// A condition of an object; null if it has none of that type.
pub(crate) fn condition<'a>(object: &'a Value, name: &str) -> &'a Value {
    let conditions = object["status"]["conditions"].as_array();
    conditions.and_then(|all| all.iter().find(|one| one["type"] == name)).unwrap_or(&Value::Null)
}

/// Changes the spec as a person would.
pub(crate) fn ask(plane: &ControlPlane, name: &str, spec: &Value) {
    let patch = json!({"spec": spec}).to_string();
    plane.kubectl(&["patch", "infranode", name, "--type=merge", "-p", &patch]).unwrap();
}

/// A file of the made-up host.
pub(crate) fn file(tree: &Tree, path: &str) -> String {
    std::fs::read_to_string(tree.path().join(path)).unwrap().trim().to_owned()
}
