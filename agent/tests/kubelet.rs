//! Tests of the configuration with which the running kubelet was started, and of changes that would prevent the
//! kubelet from starting again. They use the host of `common/host.rs`.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests read files, and fail by panicking"
)]

mod common;

use std::collections::BTreeSet;

use berth_agent::apply::{ApplyContext, ConvergeResult, converge, observe_for_plan};
use berth_agent::observe::observe;
use berth_agent::state_folder::save_ledger;
use berth_host_facts::host_settings::HostSettings;
use berth_host_facts::ledger::{Ledger, NetworkRecord};
use berth_host_facts::root::Root;
use berth_host_facts::{HostFacts, ObserveOptions, observe_links};
use common::kubelet::{set_modification_time, stop_kubelet};
use common::{Tree, host, manifest, report};
use serde_json::{Value, json};

const BOOT_ID: &str = "0b1e9f4a-6d53-4a0e-9b0c-2f6a3d1c7e55";
const CONFIG_FILE: &str = "var/lib/kubelet/config.yaml";
const DROP_IN_FOLDER: &str = "etc/kubernetes/kubelet.conf.d";
const DROP_IN: &str = "etc/kubernetes/kubelet.conf.d/99-berth.conf";
const STAGED_DROP_IN: &str = "etc/kubernetes/kubelet.conf.d/99-berth.conf.staged";
const CPU_STATE_FILE: &str = "var/lib/kubelet/cpu_manager_state";
const MEMORY_STATE_FILE: &str = "var/lib/kubelet/memory_manager_state";
const PAGE_COUNT_FILE: &str =
    "sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages";
const DRAINED_CPU_STATE: &str = r#"{"policyName":"static","defaultCpuSet":"0-95","entries":{}}"#;
/// Modification time after the start of the host's kubelet, which is 42 s after the boot.
const AFTER_KUBELET_START: u64 = host::BOOT_TIME + 100;

/// Returns the host with a kubelet that reads a drop-in folder.
fn host_with_drop_in_folder() -> Tree {
    let tree = host::rack1_a();
    tree.create_folder("var/lib/berth").create_folder(DROP_IN_FOLDER).write_file(
        "proc/1412/cmdline",
        format!("kubelet\0--config=/{CONFIG_FILE}\0--config-dir=/{DROP_IN_FOLDER}\0"),
    );
    tree
}

/// Writes a checkpoint of the Memory Manager that counts `pages` pages of 2 MiB in zone 0.
fn write_memory_checkpoint(tree: &Tree, pages: u64) {
    let table = |total: u64| {
        format!(
            r#"{{"total":{total},"systemReserved":0,"allocatable":{total},"reserved":0,"free":{total}}}"#
        )
    };
    let zone = |pages: u64| {
        format!(
            r#"{{"numberOfAssignments":0,"cells":[0],"memoryMap":{{"memory":{},"hugepages-2Mi":{},"hugepages-1Gi":{}}}}}"#,
            table(264_241_152 << 10),
            table(pages << 21),
            table(16 << 30)
        )
    };
    let state = format!(
        r#"{{"policyName":"Static","machineState":{{"0":{},"1":{}}},"entries":{{}}}}"#,
        zone(pages),
        zone(4096)
    );
    tree.write_file(MEMORY_STATE_FILE, state);
}

fn set_static_memory_manager(tree: &Tree) {
    let config = read_file(tree, CONFIG_FILE)
        .replace("memoryManagerPolicy: None", "memoryManagerPolicy: Static");
    tree.write_file(CONFIG_FILE, config);
}

/// Renames the staged drop-in to the name that the kubelet reads, while the kubelet runs.
fn rename_to_active(tree: &Tree) -> &Tree {
    let staged = tree.path().join(STAGED_DROP_IN);
    if staged.exists() {
        std::fs::rename(staged, tree.path().join(DROP_IN)).unwrap();
    }
    set_modification_time(tree, DROP_IN, AFTER_KUBELET_START);
    tree
}

fn read_file(tree: &Tree, path: &str) -> String {
    std::fs::read_to_string(tree.path().join(path)).unwrap().trim().to_owned()
}

fn exists(tree: &Tree, path: &str) -> bool {
    tree.path().join(path).exists()
}

fn apply_spec_with(
    tree: &Tree,
    spec: &str,
    observe_for_plan: &dyn Fn(&Root) -> (HostFacts, HostSettings),
) -> ConvergeResult {
    let manifest = manifest(spec);
    let root = Root::open(tree.path()).unwrap();
    let context = ApplyContext::new(&root, BOOT_ID, &|| {});
    let converged = converge(
        &context,
        &manifest.spec,
        &manifest.unparsed,
        &BTreeSet::new(),
        &|| observe_for_plan(&root),
        &mut |_| {},
    );
    assert_eq!(converged.blocked_reason, None);
    converged
}

fn apply_spec(tree: &Tree, spec: &str) -> ConvergeResult {
    apply_spec_with(tree, spec, &|root| observe_for_plan(root, &ObserveOptions::for_plan()))
}

/// Returns one line for each outcome, with its result and its message.
fn outcome_lines(converged: &ConvergeResult) -> String {
    let line = |outcome: &berth_agent::apply::Outcome| {
        let message = outcome.message.as_deref().unwrap_or_default();
        format!("{:?} {}: {message}", outcome.result, outcome.what)
    };
    converged.outcomes.iter().map(line).collect::<Vec<_>>().join("\n")
}

const PAGES_SPEC: &str = "  hugepages: [{size: 2Mi, zone: 0, count: 4200}]";
const STAGE_SPEC: &str = "  cpu: {reserved: {cpus: '0-1,24-25,48-49,72-73'}, kubelet: Stage}";

/// Checks that the number of pages is not changed while the kubelet runs: a running kubelet writes its checkpoint
/// again, with the numbers of pages at its start.
#[test]
fn counted_pages_of_a_running_memory_manager_are_not_changed() {
    let tree = host::rack1_a();
    tree.create_folder("var/lib/berth").write_file(CPU_STATE_FILE, DRAINED_CPU_STATE);
    set_static_memory_manager(&tree);
    write_memory_checkpoint(&tree, 4096);
    let runs = outcome_lines(&apply_spec(&tree, PAGES_SPEC));
    assert!(runs.contains("Blocked hugepages 2Mi zone 0: 4096 -> 4200"), "{runs}");
    assert!(runs.contains("systemctl stop kubelet"), "{runs}");
    assert!(
        exists(&tree, MEMORY_STATE_FILE) && read_file(&tree, PAGE_COUNT_FILE) == "4096",
        "{runs}"
    );
    // A missing checkpoint makes no difference, because the running kubelet has the numbers in its memory.
    std::fs::remove_file(tree.path().join(MEMORY_STATE_FILE)).unwrap();
    let without_checkpoint = outcome_lines(&apply_spec(&tree, PAGES_SPEC));
    assert!(
        without_checkpoint.contains("Blocked hugepages 2Mi zone 0: 4096 -> 4200"),
        "{without_checkpoint}"
    );
    write_memory_checkpoint(&tree, 4096);
    stop_kubelet(&tree);
    let stopped = outcome_lines(&apply_spec(&tree, PAGES_SPEC));
    assert!(stopped.contains("Done hugepages 2Mi zone 0: 4096 -> 4200"), "{stopped}");
    assert!(
        !exists(&tree, MEMORY_STATE_FILE) && read_file(&tree, PAGE_COUNT_FILE) == "4200",
        "{stopped}"
    );
}

/// Checks that for a stopped kubelet only the pods whose folders exist are regarded as running: all other entries
/// of its checkpoints are stale.
#[test]
fn stale_entries_of_a_stopped_kubelet_are_ignored() {
    let tree = host::rack1_a();
    let uid = "7d3c5f0e-1b2a-4c64-9f7e-3a1d2b4c5d6e";
    tree.create_folder("var/lib/berth").create_folder("var/lib/kubelet/pods/another-pod");
    set_static_memory_manager(&tree);
    write_memory_checkpoint(&tree, 4096);
    stop_kubelet(&tree);
    tree.create_folder(&format!("var/lib/kubelet/pods/{uid}"));
    let held = outcome_lines(&apply_spec(&tree, PAGES_SPEC));
    assert!(held.contains(uid) && read_file(&tree, PAGE_COUNT_FILE) == "4096", "{held}");
    // If the folder of pods cannot be read, the folder of their logs shows which pods exist.
    let pods = tree.path().join("var/lib/kubelet/pods");
    std::fs::remove_dir_all(&pods).unwrap();
    let logs = format!("var/log/pods/default_vm_{uid}");
    tree.create_folder(&logs);
    let held = outcome_lines(&apply_spec(&tree, PAGES_SPEC));
    assert!(held.contains(uid) && read_file(&tree, PAGE_COUNT_FILE) == "4096", "{held}");
    // The log folder of a deleted pod remains for up to a minute, and permanently if the kubelet is stopped before
    // it is removed.
    std::fs::create_dir(&pods).unwrap();
    let stale = outcome_lines(&apply_spec(&tree, PAGES_SPEC));
    assert!(stale.contains("Done hugepages 2Mi zone 0: 4096 -> 4200"), "{stale}");
}

#[test]
fn pages_are_restored_if_the_old_checkpoint_returns() {
    let tree = host::rack1_a();
    tree.create_folder("var/lib/berth").write_file(CPU_STATE_FILE, DRAINED_CPU_STATE);
    set_static_memory_manager(&tree);
    write_memory_checkpoint(&tree, 4096);
    tree.write_file(PAGE_COUNT_FILE, "4200\n");
    let restored = outcome_lines(&apply_spec(&tree, PAGES_SPEC));
    assert!(restored.contains("Done hugepages 2Mi zone 0: 4200 -> 4096"), "{restored}");
    assert_eq!(read_file(&tree, PAGE_COUNT_FILE), "4096");
    // The same applies to a stopped kubelet that cannot start because pods still have folders on its disk.
    let tree = host::rack1_a();
    tree.create_folder("var/lib/berth");
    set_static_memory_manager(&tree);
    write_memory_checkpoint(&tree, 4096);
    tree.write_file(PAGE_COUNT_FILE, "4200\n")
        .create_folder("var/lib/kubelet/pods/7d3c5f0e-1b2a-4c64-9f7e-3a1d2b4c5d6e");
    stop_kubelet(&tree);
    let restored = outcome_lines(&apply_spec(&tree, PAGES_SPEC));
    assert!(restored.contains("Done hugepages 2Mi zone 0: 4200 -> 4096"), "{restored}");
}

/// Tests a pod that has exclusive CPUs which the drop-in reserves for the system. The names of the policies are
/// equal, so they do not show this conflict.
#[test]
fn drop_in_with_the_same_policy_is_deactivated() {
    let tree = host_with_drop_in_folder();
    tree.write_file(CPU_STATE_FILE, DRAINED_CPU_STATE);
    apply_spec(&tree, STAGE_SPEC);
    assert!(exists(&tree, STAGED_DROP_IN) && !exists(&tree, DROP_IN), "the kubelet still runs");
    // An operator renames the drop-in to the name that the kubelet reads, and then pods are started.
    rename_to_active(&tree).write_file(
        CPU_STATE_FILE,
        r#"{"policyName":"static","defaultCpuSet":"0,2-48,50-95","entries":{"u":{"c":"1,49"}}}"#,
    );
    apply_spec(&tree, STAGE_SPEC);
    assert!(exists(&tree, STAGED_DROP_IN) && !exists(&tree, DROP_IN));
}

#[test]
fn drop_in_takes_effect_when_the_kubelet_starts() {
    let tree = host_with_drop_in_folder();
    tree.write_file(CPU_STATE_FILE, DRAINED_CPU_STATE);
    // The agent applies a spec, so that it records the configuration of the running kubelet.
    apply_spec(&tree, STAGE_SPEC);
    rename_to_active(&tree);
    let status = &report(&tree)["status"];
    let kubelet = &status["capabilities"]["kubelet"];
    assert_eq!(kubelet["reservedSystemCPUs"], "0,24,48,72", "{kubelet:#}");
    assert_eq!(
        kubelet["startedWith"]["pendingRestart"],
        json!(["reservedSystemCPUs", "memoryManagerPolicy", "reservedMemory"])
    );
    assert_eq!(status["zones"][0]["pinnableCPUs"], "1-23,49-71");
    // A new kubelet process is started, which reads the drop-in.
    tree.write_file("proc/1412/stat", host::kubelet_stat(20_000));
    let kubelet = &report(&tree)["status"]["capabilities"]["kubelet"];
    assert_eq!(kubelet["reservedSystemCPUs"], "0-1,24-25,48-49,72-73", "{kubelet:#}");
    assert_eq!(kubelet["startedWith"], json!({"current": true}));
}

#[test]
fn configuration_is_unknown_if_files_are_newer_than_the_kubelet() {
    let tree = host::rack1_a();
    set_modification_time(&tree, CONFIG_FILE, AFTER_KUBELET_START);
    let status = &report(&tree)["status"];
    assert_eq!(
        status["capabilities"]["kubelet"],
        Value::Null,
        "{:#}",
        status["capabilities"]["kubelet"]
    );
    let unknown = status["unknown"].as_array().unwrap();
    let reason = unknown.iter().find(|one| one["path"] == "capabilities.kubelet").unwrap();
    assert!(reason["message"].as_str().unwrap().contains(&format!("/{CONFIG_FILE}")), "{reason}");
    assert_eq!(status["zones"][0]["pinnableCPUs"], Value::Null);
}

fn reported_kubelet_config(tree: &Tree) -> Value {
    report(tree)["status"]["capabilities"]["kubelet"].clone()
}

/// Checks that the agent reads the configuration of only the host's kubelet if several processes are named
/// `kubelet`.
#[test]
fn kubelet_in_a_pod_is_not_the_host_kubelet() {
    let theirs = "var/lib/tenant/config.yaml";
    let impostor = |groups: &str, status: &str| {
        let tree = host::rack1_a();
        tree.write_file(theirs, "kind: KubeletConfiguration\ncpuManagerPolicy: none\n")
            .write_file("proc/77/comm", "kubelet\n")
            .write_file(
                "proc/77/cmdline",
                format!("kubelet\0--config=/{theirs}\0--root-dir=/var/lib/tenant\0"),
            )
            .write_file("proc/77/stat", host::kubelet_stat(100))
            .write_file("proc/77/cgroup", groups)
            .write_file("proc/77/status", status);
        tree
    };
    let ours = "Name:\tkubelet\nUid:\t0\t0\t0\t0\nNSpid:\t77\n";
    for (what, groups, status) in [
        (
            "a process in another PID namespace",
            "0::/system.slice/x.service\n",
            "Uid:\t0\t0\t0\t0\nNSpid:\t77\t1\n",
        ),
        (
            "a process without root",
            "0::/user.slice/user-1000.slice/session-1.scope\n",
            "Uid:\t1000\t1000\t1000\t1000\nNSpid:\t77\n",
        ),
        (
            "a pod with hostPID",
            "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1_2.slice/cri-containerd-a.scope\n",
            ours,
        ),
        ("cgroupfs", "0::/kubepods/burstable/pod1-2/abc\n", ours),
        ("a path seen from a control group namespace", "0::/../../pod1-2/abc\n", ours),
        (
            "version 1",
            "12:cpuset:/kubepods/pod1-2/abc\n1:name=systemd:/kubepods/pod1-2/abc\n",
            ours,
        ),
    ] {
        let tree = impostor(groups, status);
        assert_eq!(reported_kubelet_config(&tree)["cpuManagerPolicy"], "static", "{what}");
        std::fs::remove_dir_all(tree.path().join("proc/1412")).unwrap();
        assert_eq!(
            reported_kubelet_config(&tree)["cpuManagerPolicy"],
            "static",
            "the process should not count as the kubelet of the host: {what}"
        );
    }
    // The agent cannot determine which of both processes is the host's kubelet, so it reads neither.
    let tree = impostor("0::/\n", ours);
    tree.write_file("proc/1412/cgroup", "0::/\n");
    assert_eq!(reported_kubelet_config(&tree), Value::Null);
    // The systemd units of the two processes differ, which identifies the host's kubelet.
    let tree = impostor("0::/\n", ours);
    assert_eq!(reported_kubelet_config(&tree)["cpuManagerPolicy"], "static");
}

/// Checks that a cycle that observes only links, and no facts about the kubelet, does not remove the time of the
/// last change of huge pages from the ledger.
#[test]
fn link_cycle_keeps_the_time_of_page_changes() {
    let tree = host::rack1_a();
    let root = Root::open(tree.path()).unwrap();
    tree.create_folder("var/lib/berth");
    let mut ledger = Ledger::default();
    ledger.hugepages_changed_at = Some(9_000);
    ledger.files.insert(format!("/{DROP_IN}"));
    // Adds a network that no longer exists, so that the cycle has to save the ledger.
    ledger.networks.insert("trunk".to_owned(), NetworkRecord::default());
    save_ledger(&ledger, &root, BOOT_ID).unwrap();
    apply_spec_with(&tree, "  networks: []", &|root| {
        (observe_links(root, &[]), HostSettings::default())
    });
    assert_eq!(Ledger::read(&root, Some(BOOT_ID)).unwrap().hugepages_changed_at, Some(9_000));
}

/// Checks the advice for a checkpoint that the kubelet would refuse: the advice must not contain "restart".
#[test]
fn restart_is_not_advised_if_it_would_fail() {
    let tree = host_with_drop_in_folder();
    apply_spec(&tree, STAGE_SPEC);
    rename_to_active(&tree).write_file("proc/88/comm", "virt-launcher\n");
    let root = Root::open(tree.path()).unwrap();
    let facts = observe(&root, &ObserveOptions::for_plan());
    let advice = berth_agent::plan::kubelet::next_start_failure(&facts);
    let advice = advice.map(|refused| refused.to_string()).unwrap_or_default();
    assert!(advice.contains("drain") && advice.contains("systemctl stop kubelet"), "{advice}");
    assert!(!advice.contains("restart"), "{advice}");
}
