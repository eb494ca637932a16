//! Compares reports of the machine that runs the tests with the output of other programs. The agent runs as root
//! and as an unprivileged user, with and without `/dev/kvm`.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests run programs, and fail by panicking"
)]

mod common;
#[path = "../../tests/src/skip.rs"]
mod skip;

use std::collections::BTreeSet;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output};

use common::{run_agent, stderr, stdout};
use serde_json::Value;
use skip::skip;

const UNPRIVILEGED_USER_ID: u32 = 65_534;

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

fn parse_json(output: &Output) -> Value {
    assert!(output.status.code().is_some_and(|code| code < 2), "{}", stderr(output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Copies the program to a folder in which any user can run it, because the build folder may be accessible only to
/// root.
fn copy_program_for_all_users(folder: &tempfile::TempDir) -> std::path::PathBuf {
    use std::os::unix::fs::PermissionsExt as _;
    let program = folder.path().join("berth-agent");
    common::copy_program(&program);
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    program
}

fn kvm_status(node: &Value) -> &Value {
    &node["status"]["capabilities"]["kvm"]
}

fn unknown_reason(node: &Value, path: &str) -> Option<String> {
    let facts = node["status"]["unknown"].as_array()?;
    let fact = facts.iter().find(|fact| fact["path"] == path)?;
    Some(fact["reason"].as_str()?.to_owned())
}

#[test]
fn two_reports_are_identical() {
    // Some hypervisors add memory to a guest gradually, so the MemTotal of a zone increases. Two reports are
    // compared only if MemTotal is the same before and after them.
    let kernel = || {
        let zone =
            std::fs::read_to_string("/sys/devices/system/node/node0/meminfo").unwrap_or_default();
        zone.lines().next().unwrap_or_default().to_owned()
    };
    let report = || stdout(&run_agent(&["report", "--output", "json"]));
    let idle = (0..50).find_map(|_| {
        let before = kernel();
        let reports = (report(), report());
        (kernel() == before).then_some(reports)
    });
    let (first, second) = idle.unwrap();
    assert_eq!(first, second);
    let table = stdout(&run_agent(&["report"]));
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    assert!(!table.contains('\u{1b}'), "the output to a pipe should have no colours");
}

#[test]
fn kernel_release_and_memory_match_this_machine() {
    let node = parse_json(&run_agent(&["report", "-o", "json"]));
    let capabilities = &node["status"]["capabilities"];
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    assert_eq!(capabilities["machine"]["kernel"], release.trim());
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
    let total: u64 = meminfo.split_whitespace().nth(1).unwrap().parse().unwrap();
    let reported: berth_api::Bytes =
        serde_json::from_value(capabilities["memory"]["total"].clone()).unwrap();
    assert_eq!(reported.0, total * 1024);
}

#[test]
fn cpu_counts_match_lscpu() {
    let Ok(output) = Command::new("lscpu").args(["-p=CPU,CORE,SOCKET"]).output() else {
        return skip("cpu_counts_match_lscpu", "lscpu is not installed");
    };
    let text = stdout(&output);
    let rows: Vec<Vec<&str>> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split(',').collect())
        .collect();
    let distinct =
        |column: usize| rows.iter().map(|row| row[column]).collect::<BTreeSet<_>>().len();
    let node = parse_json(&run_agent(&["report", "-o", "json"]));
    let cpu = &node["status"]["capabilities"]["cpu"];
    assert_eq!(cpu["threads"], rows.len());
    assert_eq!(cpu["cores"], distinct(1));
    assert_eq!(cpu["sockets"], distinct(2));
}

#[test]
fn links_match_sysfs() {
    let node = parse_json(&run_agent(&["report", "-o", "json"]));
    let uplinks = node["status"]["capabilities"]["uplinks"].as_array().cloned().unwrap_or_default();
    for link in &uplinks {
        let name = link["name"].as_str().unwrap();
        let file = |attribute: &str| {
            std::fs::read_to_string(format!("/sys/class/net/{name}/{attribute}"))
                .unwrap()
                .trim()
                .to_owned()
        };
        assert_eq!(link["mtu"].to_string(), file("mtu"), "{name}");
        assert_eq!(link["mac"], file("address"), "{name}");
    }
    let devices = std::fs::read_dir("/sys/class/net").unwrap().map(|entry| entry.unwrap().path());
    assert_eq!(uplinks.len(), devices.filter(|path| path.join("device").exists()).count());
}

/// Compares the findings that both `virt-host-validate` (libvirt) and Berth report.
#[test]
fn findings_match_virt_host_validate() {
    let Ok(output) = Command::new("virt-host-validate").arg("qemu").output() else {
        return skip("findings_match_virt_host_validate", "virt-host-validate is not installed");
    };
    let theirs = stdout(&output) + &stderr(&output);
    let findings = parse_json(&run_agent(&["check", "-o", "json"]));
    let ours = |id: &str| {
        let all = findings["checks"].as_array().unwrap();
        all.iter().find(|check| check["id"] == id).unwrap()["status"].as_str().unwrap().to_owned()
    };
    let mut compared = 0;
    for (words, id) in [
        ("Checking for hardware virtualization", "kvm.hardware"),
        ("Checking if device /dev/kvm exists", "kvm.device"),
        ("Checking if device /dev/kvm is accessible", "kvm.access"),
        ("Checking if device /dev/vhost-net exists", "kvm.vhost-net"),
        ("Checking if device /dev/net/tun exists", "kvm.tun"),
        ("Checking if IOMMU is enabled by kernel", "iommu.enabled"),
    ] {
        let Some(line) = theirs.lines().find(|line| line.contains(words)) else { continue };
        compared += 1;
        let fine = line.contains("PASS");
        assert_eq!(ours(id) == "PASS", fine, "{id} is {}, virt-host-validate: {line}", ours(id));
    }
    assert!(compared > 0, "no known line in the output of virt-host-validate:\n{theirs}");
}

#[test]
fn an_ordinary_user_gets_all_facts_that_do_not_need_root() {
    if !is_root() {
        return skip("an_ordinary_user_gets_all_facts_that_do_not_need_root", "needs root");
    }
    let folder = tempfile::tempdir().unwrap();
    let program = copy_program_for_all_users(&folder);
    let run = |arguments: &[&str]| {
        Command::new(&program)
            .args(arguments)
            .uid(UNPRIVILEGED_USER_ID)
            .gid(UNPRIVILEGED_USER_ID)
            .output()
            .unwrap()
    };
    let theirs = parse_json(&run(&["report", "-o", "json"]));
    let ours = parse_json(&run_agent(&["report", "-o", "json"]));
    for part in ["cpu", "memory", "machine", "iommu", "cgroup"] {
        let part = |node: &Value| node["status"]["capabilities"][part].clone();
        assert_eq!(part(&theirs), part(&ours));
    }
    let needs_root = std::fs::metadata("/dev/kvm").is_ok_and(|metadata| {
        use std::os::unix::fs::PermissionsExt as _;
        metadata.permissions().mode() & 0o006 == 0
    });
    if needs_root && kvm_status(&ours)["state"] == "Ready" {
        assert_eq!(kvm_status(&theirs)["state"], "NoPermission");
        assert_eq!(
            unknown_reason(&theirs, "capabilities.kvm.apiVersion").as_deref(),
            Some("NoPermission")
        );
    }
    assert!(run(&["check"]).status.code().is_some_and(|code| code < 2));
}

/// The agent runs in a private mount namespace with an empty `/dev`, like a container without devices.
#[test]
fn without_the_device_node_kvm_of_the_host_is_unknown() {
    if !is_root() {
        return skip("without_the_device_node_kvm_of_the_host_is_unknown", "needs root");
    }
    if !Path::new("/sys/devices/virtual/misc/kvm").exists() {
        return skip(
            "without_the_device_node_kvm_of_the_host_is_unknown",
            "this kernel has no KVM",
        );
    }
    let script = "mount -t tmpfs none /dev && exec \"$0\" report -o json";
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_berth-agent")])
        .output()
        .unwrap();
    let node = parse_json(&output);
    assert!(kvm_status(&node).get("state").is_none(), "{}", kvm_status(&node));
    assert_eq!(unknown_reason(&node, "capabilities.kvm.state").as_deref(), Some("NotFound"));
    assert!(kvm_status(&node).get("tun").is_none_or(|tun| tun == false));
}
