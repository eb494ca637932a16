//! The command line: completion, exit codes and messages.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests run programs, and fail by panicking"
)]

mod common;

use std::process::{Command, Stdio};

use common::{Tree, run_agent, run_agent_on, stderr, stdout};

/// Returns the completions that the Bash script prints for the last of these words, which may be empty.
fn completions(words: &[&str]) -> String {
    let script = stdout(&run_agent(&["completion", "bash"]));
    let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    let (last, before) = (words[words.len() - 1], words[words.len() - 2]);
    let test = format!(
        "{script}\nCOMP_WORDS=({}); COMP_CWORD={}; _berth__agent berth-agent '{last}' '{before}'; \
         printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        quoted.join(" "),
        words.len() - 1
    );
    stdout(&Command::new("bash").args(["-c", &test]).output().unwrap())
}

#[test]
fn bash_completes_commands_options_and_checks() {
    for (words, offered) in [
        (vec!["berth-agent", ""], "report"),
        (vec!["berth-agent", "check", "--"], "--list"),
        (vec!["berth-agent", "check", "kvm.n"], "kvm.nested"),
        (vec!["berth-agent", "report", "-o", ""], "yaml"),
    ] {
        let all = completions(&words);
        assert!(all.contains(offered), "completions of {words:?}: {all:?}");
    }
}

#[test]
fn a_root_that_is_one_folder_too_high_causes_a_warning() {
    let tree = Tree::new();
    tree.create_folder("captured/sys");
    let output = run_agent_on(&tree, &["report"]);
    assert_eq!(output.status.code(), Some(0));
    let path = tree.path().display();
    assert!(stderr(&output).contains(&format!(
        "warning: --root {path}: it contains neither proc/ nor sys/; did you mean {path}/captured?"
    )));
}

#[test]
fn a_full_disk_is_not_reported_as_invalid_usage() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_berth-agent"))
        .args(["check", "--list"])
        .stdout(Stdio::from(full))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert!(
        stderr(&output).starts_with(
            "berth-agent: failed to write to standard output: No space left on device"
        )
    );
}

#[test]
fn a_missing_direct_io_path_causes_a_warning() {
    let output = run_agent(&["report", "--direct-io-path", "relative"]);
    assert_eq!(output.status.code(), Some(2));
    let output = run_agent(&["report", "--direct-io-path", "/no/such"]);
    assert!(
        stderr(&output)
            .contains("warning: /no/such: the folder does not exist, so O_DIRECT cannot be tested")
    );
}

#[test]
fn the_list_of_checks_is_available_as_json() {
    let list = stdout(&run_agent(&["check", "--list", "-o", "json"]));
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    assert!(list[0]["explanation"].as_str().unwrap().ends_with('.'));
}

/// Checks that `tests/capture.sh` captures all files that the agent reads: the reports of the machine and of its
/// capture must be equal.
#[test]
fn capture_and_live_machine_have_equal_reports() {
    let script = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/capture.sh");
    let tree = Tree::new();
    let archive = tree.path().join("capture.tgz");
    let captured = Command::new("bash").arg(script).arg(&archive).output().unwrap();
    assert!(captured.status.success(), "{}", stderr(&captured));
    let unpacked =
        Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(tree.path()).status().unwrap();
    assert!(unpacked.success());
    let live: serde_json::Value =
        serde_json::from_slice(&run_agent(&["report", "-o", "json"]).stdout).unwrap();
    let capture = common::report(&tree);
    assert_eq!(capture["metadata"], live["metadata"]);
    assert_eq!(capture["status"]["agent"], live["status"]["agent"]);
    for part in ["cpu", "iommu", "cgroup", "nvme"] {
        let part = |node: &serde_json::Value| node["status"]["capabilities"][part].clone();
        assert_eq!(part(&capture), part(&live));
    }
    for field in ["kernel", "os", "vendor", "product"] {
        let field =
            |node: &serde_json::Value| node["status"]["capabilities"]["machine"][field].clone();
        assert_eq!(field(&capture), field(&live));
    }
    // KSM is not compared, because its counters change between the reports. The state of KVM is not compared,
    // because it depends on device files, which a capture lacks.
    for (part, field) in [
        ("memory", "total"),
        ("memory", "swap"),
        ("memory", "zram"),
        ("memory", "zswap"),
        ("memory", "transparentHugepages"),
        ("memory", "defaultHugepageSize"),
        ("kvm", "nested"),
    ] {
        let value = |node: &serde_json::Value| node["status"]["capabilities"][part][field].clone();
        assert_eq!(value(&capture), value(&live), "{part}.{field}");
    }
    let zones = |node: &serde_json::Value| {
        let zones = node["status"]["zones"].as_array().unwrap().clone();
        zones
            .iter()
            .map(|zone| (zone["id"].clone(), zone["cpus"].clone(), zone["distances"].clone()))
            .collect::<Vec<_>>()
    };
    assert_eq!(zones(&capture), zones(&live));
    let links = |node: &serde_json::Value| {
        let uplinks =
            node["status"]["capabilities"]["uplinks"].as_array().cloned().unwrap_or_default();
        uplinks
            .iter()
            .map(|link| (link["name"].clone(), link["mac"].clone(), link["defaultRoute"].clone()))
            .collect::<Vec<_>>()
    };
    assert_eq!(links(&capture), links(&live));
}
