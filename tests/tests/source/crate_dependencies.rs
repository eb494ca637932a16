//! Tests that crates have no forbidden dependencies, neither directly nor through other crates.

use std::collections::BTreeSet;
use std::process::Command;

use berth_tests::repository;
use berth_tests::sources::PURE_CRATES;

/// Dependencies that access a cluster, a network or files, or contain an asynchronous runtime.
const IO_DEPENDENCIES: [&str; 11] = [
    "kube-client",
    "kube-runtime",
    "tokio",
    "hyper",
    "axum",
    "tonic",
    "nix",
    "procfs",
    "netlink-sys",
    "rtnetlink",
    "berth-runtime",
];
/// Dependencies of a program that connects to a cluster: the API client and its types, and the libraries with which the
/// program serves HTTP and metrics.
const CLUSTER_DEPENDENCIES: [&str; 5] =
    ["kube", "kube-core", "k8s-openapi", "axum", "prometheus-client"];

/// Returns all dependencies of a crate, as cargo resolves them.
fn dependencies(krate: &str, options: &[&str]) -> BTreeSet<String> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .args(["tree", "--locked", "--offline", "--edges=normal", "--prefix=none", "-p", krate])
        .args(options)
        .current_dir(repository())
        .output()
        .unwrap();
    assert!(output.status.success(), "{krate}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

fn assert_no_dependency(krate: &str, options: &[&str], refused: &[&str]) {
    let all = dependencies(krate, options);
    assert!(all.contains("berth-api"), "{krate}: {all:?}");
    for refused in refused {
        assert!(!all.contains(*refused), "{krate} {options:?} depends on {refused}");
    }
}

#[test]
fn pure_crates_have_no_io_dependencies() {
    for krate in PURE_CRATES {
        assert_no_dependency(&format!("berth-{krate}"), &[], &IO_DEPENDENCIES);
    }
}

#[test]
fn host_facts_have_no_cluster_client() {
    let refused = [&CLUSTER_DEPENDENCIES[..], &["tokio", "hyper", "berth-runtime"]].concat();
    assert_no_dependency("berth-host-facts", &[], &refused);
    assert_no_dependency("berth-kubelet-admission", &[], &CLUSTER_DEPENDENCIES);
    assert_no_dependency("berth-dhcp-responder", &[], &CLUSTER_DEPENDENCIES);
    assert_no_dependency("berth-agent", &["--no-default-features"], &CLUSTER_DEPENDENCIES);
}

#[test]
fn introductory_documents_are_short() {
    for name in ["README.md", "ARCHITECTURE.md"] {
        let text = std::fs::read_to_string(repository().join(name)).unwrap();
        let lines = text.lines().count();
        assert!(lines <= 200, "{name} has {lines} lines: move details to docs/");
    }
}
