//! What a pure crate may depend on is what its Cargo.toml lists.

use std::collections::BTreeSet;

use berth_tests::repository;

/// Crates that decide and touch nothing.
const PURE: [&str; 4] = ["extender", "kubelet-admission", "kubevirt-render", "placement"];
/// Dependencies that reach a cluster, a network, a runtime or files.
const REFUSED: [&str; 10] = [
    "kube",
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

/// Returns the names below `[dependencies]`.
fn dependencies(krate: &str) -> BTreeSet<String> {
    let text =
        std::fs::read_to_string(repository().join(format!("crates/{krate}/Cargo.toml"))).unwrap();
    let (_, rest) = text.split_once("[dependencies]\n").unwrap();
    let own = rest.split("\n[").next().unwrap();
    own.lines()
        .filter_map(|line| line.split(['.', ' ', '=']).next())
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

#[test]
fn pure_crates_reach_nothing() {
    for krate in PURE {
        let all = dependencies(krate);
        assert!(all.contains("berth-api"), "{krate}: {all:?}");
        for refused in REFUSED {
            assert!(!all.contains(refused), "crates/{krate} depends on {refused}");
        }
    }
    // Facts of a host are read without a cluster and without a runtime.
    if repository().join("crates/host-facts").exists() {
        let all = dependencies("host-facts");
        for refused in ["kube", "tokio", "hyper", "axum", "k8s-openapi", "berth-runtime"] {
            assert!(!all.contains(refused), "crates/host-facts depends on {refused}");
        }
    }
}

#[test]
fn documents_that_people_read_first_are_short() {
    for name in ["README.md", "ARCHITECTURE.md"] {
        let text = std::fs::read_to_string(repository().join(name)).unwrap();
        let lines = text.lines().count();
        assert!(lines <= 200, "{name} has {lines} lines: move details to docs/");
    }
}
