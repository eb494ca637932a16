//! Tests of `converge` on a captured tree, where the test can see every write: the agent saves the original value
//! before it changes a setting, a failed change does not prevent other changes, and an empty spec restores
//! everything. The tests in `tests/tests/shape.rs` use a real kernel.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests read files, and fail by panicking"
)]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use berth_agent::apply::{ApplyBlocked, ApplyContext, ConvergeResult, converge, observe_for_plan};
use berth_api::infra_node::ChangeResult;
use berth_host_facts::ObserveOptions;
use berth_host_facts::ledger::Ledger;
use berth_host_facts::root::Root;
use common::{Tree, host, manifest};

const BOOT_ID: &str = "0b1e9f4a-6d53-4a0e-9b0c-2f6a3d1c7e55";
const FULL_SPEC: &str = "  ksm: {mode: 'On', pagesToScan: 200}\n  \
    hugepages: [{size: 2Mi, count: 9000}, {size: 1Gi, zone: 1, count: 4}]\n  \
    cpu: {reserved: {coresPerZone: 1}, housekeeping: true}";

fn host_tree() -> Tree {
    let tree = host::rack1_a();
    tree.create_folder("var/lib/berth");
    tree
}

fn apply_spec(tree: &Tree, spec: &str) -> Result<ConvergeResult, ApplyBlocked> {
    let manifest = manifest(spec);
    let root = Root::open(tree.path()).unwrap();
    let context = ApplyContext::new(&root, BOOT_ID, &|| {});
    let converged = converge(
        &context,
        &manifest.spec,
        &manifest.unparsed,
        &BTreeSet::new(),
        &|| observe_for_plan(&root, &ObserveOptions::for_plan()),
        &mut |_| {},
    );
    match converged.blocked_reason {
        Some(why) => Err(why),
        None => Ok(converged),
    }
}

fn results_by_change(converged: &ConvergeResult) -> BTreeMap<String, ChangeResult> {
    converged.outcomes.iter().map(|outcome| (outcome.what.clone(), outcome.result)).collect()
}

/// Returns every file below a folder with its text, without white space at both ends.
fn read_files(folder: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            found.extend(read_files(&path));
        } else {
            let text = String::from_utf8_lossy(&std::fs::read(&path).unwrap()).trim().to_owned();
            found.insert(path.display().to_string(), text);
        }
    }
    found
}

fn read_file(tree: &Tree, path: &str) -> String {
    std::fs::read_to_string(tree.path().join(path)).unwrap().trim().to_owned()
}

fn read_ledger(tree: &Tree) -> Ledger {
    Ledger::read(&Root::open(tree.path()).unwrap(), Some(BOOT_ID)).unwrap()
}

#[test]
fn all_changes_are_restored() {
    let tree = host_tree();
    let mut before = read_files(tree.path());
    let applied = apply_spec(&tree, FULL_SPEC).unwrap();
    let zone1 = "sys/devices/system/node/node1/hugepages";
    assert_eq!(read_file(&tree, &format!("{zone1}/hugepages-2048kB/nr_hugepages")), "4500");
    assert_eq!(read_file(&tree, &format!("{zone1}/hugepages-1048576kB/nr_hugepages")), "4");
    assert_eq!(read_file(&tree, "sys/kernel/mm/ksm/pages_to_scan"), "200");
    assert_eq!(read_file(&tree, "proc/irq/default_smp_affinity"), "100,00010000,01000001");
    assert_eq!(read_file(&tree, "proc/irq/40/smp_affinity_list"), "0,24,48,72");
    assert_eq!(
        read_file(&tree, "proc/irq/70/smp_affinity_list"),
        "0-95",
        "an interrupt that no driver has requested should not be moved"
    );
    let failed: Vec<String> = results_by_change(&applied)
        .into_iter()
        .filter(|(_, r)| *r != ChangeResult::Done)
        .map(|(what, _)| what)
        .collect();
    // Changes of AllowedCPUs fail, because no systemd runs for a captured tree.
    assert!(failed.iter().all(|what| what.contains("AllowedCPUs")), "{failed:?}");
    assert_eq!(
        applied.outcomes.len(),
        11,
        "{:#?}",
        applied.outcomes.iter().map(|o| &o.what).collect::<Vec<_>>()
    );

    let restored = apply_spec(&tree, "  profile: x").unwrap();
    assert!(restored.plan.is_empty(), "{:#?}", restored.outcomes);
    let mask = ["proc/irq/default_smp_affinity", "sys/devices/virtual/workqueue/cpumask"];
    for path in mask {
        assert_eq!(read_file(&tree, path), "ffffffff,ffffffff,ffffffff");
    }
    let mut after = read_files(tree.path());
    // AllowedCPUs was never set, because no systemd runs, so the ledger still contains its original value.
    for files in [&mut before, &mut after] {
        files.retain(|path, _| !path.contains("/var/lib/berth/"));
    }
    assert_eq!(before, after);
    assert!(read_ledger(&tree).entries.is_empty(), "{:?}", read_ledger(&tree));
}

#[test]
fn original_values_are_saved_before_the_first_write() {
    let tree = host_tree();
    std::fs::remove_dir(tree.path().join("var/lib/berth")).unwrap();
    tree.write_file("var/lib/berth", "not a folder");
    let before = read_files(tree.path());
    let error = apply_spec(&tree, FULL_SPEC).unwrap_err();
    assert!(matches!(error, ApplyBlocked::LedgerNotSaved(_)), "{error}");
    assert_eq!(before, read_files(tree.path()));
}

#[test]
fn invalid_ledger_prevents_all_changes() {
    let tree = host_tree();
    tree.write_file("var/lib/berth/found.json", "[]");
    let before = read_files(tree.path());
    let error = apply_spec(&tree, FULL_SPEC).unwrap_err().to_string();
    assert!(
        error.contains("/var/lib/berth/found.json: the file is not a rollback ledger"),
        "{error}"
    );
    assert_eq!(before, read_files(tree.path()));
}

#[test]
fn failed_change_does_not_stop_other_changes() {
    let tree = host_tree();
    std::fs::remove_file(tree.path().join("sys/kernel/mm/ksm/pages_to_scan")).unwrap();
    let converged = apply_spec(
        &tree,
        "  ksm: {mode: 'On', pagesToScan: 200}\n  hugepages: [{size: 2Mi, zone: 0, count: 4100}]",
    )
    .unwrap();
    let results = results_by_change(&converged);
    assert_eq!(results["ksm pages_to_scan: none -> 200"], ChangeResult::Blocked);
    assert_eq!(results["ksm run: 0 -> 1"], ChangeResult::Done);
    assert_eq!(results["hugepages 2Mi zone 0: 4096 -> 4100"], ChangeResult::Done);
}

#[test]
fn checkpoint_of_counted_pages_is_removed_on_a_drained_node() {
    let tree = host_tree();
    let table = r#"{"total":1,"systemReserved":0,"allocatable":1,"reserved":0,"free":1}"#;
    let state = "var/lib/kubelet/memory_manager_state";
    tree.write_file(state, format!(r#"{{"policyName":"Static","machineState":{{"0":{{"memoryMap":{{"memory":{table}}}}}}},"entries":{{}}}}"#));
    let spec = "  hugepages: [{size: 2Mi, zone: 0, count: 4100}]";
    tree.write_file("proc/uptime", "99.50 1\n");
    let blocked = apply_spec(&tree, spec).unwrap();
    assert_eq!(blocked.outcomes[0].result, ChangeResult::Blocked);
    assert!(tree.path().join(state).exists());
    tree.write_file(
        "var/lib/kubelet/cpu_manager_state",
        r#"{"policyName":"static","defaultCpuSet":"0-95"}"#,
    );
    let runs = apply_spec(&tree, spec).unwrap();
    assert_eq!(runs.outcomes[0].result, ChangeResult::Blocked);
    assert!(tree.path().join(state).exists());
    common::kubelet::stop_kubelet(&tree);
    let done = apply_spec(&tree, spec).unwrap();
    assert_eq!(done.outcomes[0].result, ChangeResult::Done);
    assert_eq!(
        done.outcomes[0].message, None,
        "there should be no message: a kubelet that starts counts the pages"
    );
    assert!(!tree.path().join(state).exists());
}

#[test]
fn drop_in_is_staged_activated_and_removed() {
    let tree = host_tree();
    let folder = "etc/kubernetes/kubelet.conf.d";
    tree.create_folder(folder).write_file(
        "proc/1412/cmdline",
        format!("kubelet\0--config=/var/lib/kubelet/config.yaml\0--config-dir=/{folder}\0"),
    );
    let spec = "  cpu: {reserved: {cpus: '0,48'}, kubelet: Stage}";
    let exists = |name: &str| tree.path().join(folder).join(name).exists();
    apply_spec(&tree, spec).unwrap();
    assert!(
        exists("99-berth.conf.staged") && !exists("99-berth.conf"),
        "before the drain, the file should only be staged"
    );
    assert!(tree.path().join("var/lib/kubelet/cpu_manager_state").exists());

    let drained = r#"{"policyName":"static","defaultCpuSet":"0-95"}"#;
    tree.write_file("var/lib/kubelet/cpu_manager_state", drained);
    apply_spec(&tree, spec).unwrap();
    assert!(exists("99-berth.conf.staged") && !exists("99-berth.conf"), "the kubelet still runs");
    common::kubelet::stop_kubelet(&tree);
    let active = apply_spec(&tree, spec).unwrap();
    assert!(exists("99-berth.conf") && !exists("99-berth.conf.staged"), "{:#?}", active.outcomes);
    assert!(!tree.path().join("var/lib/kubelet/cpu_manager_state").exists());
    assert!(apply_spec(&tree, spec).unwrap().outcomes.is_empty());
    common::kubelet::start_kubelet(&tree, 9000);
    // The kubelet has been started with the drop-in.
    tree.write_file("var/lib/kubelet/cpu_manager_state", drained).write_file(
        "var/lib/kubelet/memory_manager_state",
        r#"{"policyName":"Static","machineState":{},"entries":{}}"#,
    );
    assert!(apply_spec(&tree, spec).unwrap().outcomes.is_empty());

    // A pod has exclusive CPUs: the active drop-in stays until the next drain, even if it is removed from the spec.
    tree.write_file("var/lib/kubelet/cpu_manager_state", r#"{"policyName":"static","defaultCpuSet":"0,5-48,53-95","entries":{"u":{"c":"1-4,49-52"}}}"#);
    let kept = apply_spec(&tree, "  profile: x").unwrap();
    assert_eq!(kept.outcomes[0].result, ChangeResult::Blocked);
    assert!(exists("99-berth.conf"));
    tree.write_file("var/lib/kubelet/cpu_manager_state", drained);
    assert_eq!(
        apply_spec(&tree, "  profile: x").unwrap().outcomes[0].result,
        ChangeResult::Blocked
    );
    common::kubelet::stop_kubelet(&tree);
    apply_spec(&tree, "  profile: x").unwrap();
    assert!(!exists("99-berth.conf") && read_ledger(&tree) == Ledger::default());
}

/// Tests the first invariant (`docs/safety.md`): the kubelet can always restart. The kubelet was not restarted
/// after the drop-in was activated, has written its old checkpoint again, and would not start with the drop-in. So
/// the agent deactivates the drop-in.
#[test]
fn active_drop_in_is_deactivated_if_pods_return_before_the_restart() {
    let tree = host_tree();
    let folder = "etc/kubernetes/kubelet.conf.d";
    tree.create_folder(folder)
        .write_file(
            "proc/1412/cmdline",
            format!("kubelet\0--config=/var/lib/kubelet/config.yaml\0--config-dir=/{folder}\0"),
        )
        .write_file(
            "var/lib/kubelet/config.yaml",
            "kind: KubeletConfiguration\ncpuManagerPolicy: none\n",
        )
        .write_file(
            "var/lib/kubelet/cpu_manager_state",
            r#"{"policyName":"none","defaultCpuSet":""}"#,
        );
    let spec = "  cpu: {reserved: {cpus: '0,48'}, kubelet: Stage}";
    apply_spec(&tree, spec).unwrap();
    common::kubelet::stop_kubelet(&tree);
    apply_spec(&tree, spec).unwrap();
    let exists = |name: &str| tree.path().join(folder).join(name).exists();
    assert!(exists("99-berth.conf"));
    let ours = format!("/{folder}/99-berth.conf");
    assert_eq!(
        read_ledger(&tree).files,
        [ours].into(),
        "one apply staged and activated the drop-in"
    );
    // The kubelet has not been restarted since its first start.
    common::kubelet::start_kubelet(&tree, 4200);
    tree.write_file(
        "var/lib/kubelet/cpu_manager_state",
        r#"{"policyName":"none","defaultCpuSet":""}"#,
    )
    .write_file("proc/88/comm", "virt-launcher\n");
    apply_spec(&tree, spec).unwrap();
    assert!(exists("99-berth.conf.staged") && !exists("99-berth.conf"));
}
