//! Helpers for the tests of the command line.

#![allow(dead_code, reason = "each test file uses its part")]
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests run the program, read files, and fail by panicking"
)]

pub(crate) mod host;
pub(crate) mod kubelet;
pub(crate) mod tree;

use std::process::{Command, Output};

pub(crate) use tree::Tree;

/// Parses a manifest of the test host, and panics if the manifest has faults.
pub(crate) fn manifest(spec: &str) -> berth_agent::manifest::Manifest {
    let head =
        "apiVersion: berth.dev/v1alpha1\nkind: InfraNode\nmetadata: {name: rack1-a}\nspec:\n";
    let manifest = berth_agent::manifest::Manifest::parse(&format!("{head}{spec}")).unwrap();
    assert_eq!(manifest.faults, []);
    manifest
}

/// Runs the program.
pub(crate) fn run_agent(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_berth-agent")).args(arguments).output().unwrap()
}

/// Runs the program on a captured tree.
pub(crate) fn run_agent_on(tree: &Tree, arguments: &[&str]) -> Output {
    let root = tree.path().to_str().unwrap();
    run_agent(&[arguments, &["--root", root]].concat())
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Returns the report of a tree as JSON, and panics if the program fails.
pub(crate) fn report(tree: &Tree) -> serde_json::Value {
    let output = run_agent_on(tree, &["report", "--output", "json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Returns the findings of `berth-agent check` for a tree, by the id of the check. Any exit code is accepted.
pub(crate) fn findings_by_id(tree: &Tree) -> std::collections::BTreeMap<String, serde_json::Value> {
    let output = run_agent_on(tree, &["check", "--output", "json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = json["checks"].as_array().unwrap().clone();
    checks.into_iter().map(|c| (c["id"].as_str().unwrap().to_owned(), c)).collect()
}

/// Copies the program to a folder in which any user can run it.
///
/// A separate process writes the copy. If this process wrote it, a child process that another thread starts at that
/// moment would inherit the file descriptor, and the kernel would refuse to run the copy (`ETXTBSY`).
pub(crate) fn copy_program(to: &std::path::Path) {
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_berth-agent")).arg(to).status();
    assert!(copied.unwrap().success());
}
