//! Tests of PCI functions for VMs on the test host of `common/host.rs`: which functions `plan` binds and releases, which
//! it refuses, and that a refused write restores the driver. The test in `tests/tests/shape.rs` uses a real kernel.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests read files, and fail by panicking"
)]

mod common;

use std::collections::BTreeSet;

use berth_agent::apply::{ApplyContext, converge, observe_for_plan};
use berth_api::infra_node::ChangeResult;
use berth_host_facts::ObserveOptions;
use berth_host_facts::ledger::Ledger;
use berth_host_facts::root::Root;
use berth_host_facts::setting::{Setting, SettingValue};
use common::{Tree, host, manifest, run_agent_on, stderr, stdout};
use serde_json::Value;

const BOOT_ID: &str = "0b1e9f4a-6d53-4a0e-9b0c-2f6a3d1c7e55";
/// The drive of the system, with partitions and mounts.
const SYSTEM_DRIVE: &str = "0000:80:00.0";
/// The unused drive, in IOMMU group 40.
const FREE_DRIVE: &str = "0000:81:00.0";
const FREE_FOLDER: &str = "sys/devices/pci0000:80/0000:81:00.0";

/// Returns the test host with the files that binding a drive needs, and with the driver vfio-pci.
fn host_tree() -> Tree {
    let tree = host::rack1_a();
    for (address, group) in [(SYSTEM_DRIVE, 39), (FREE_DRIVE, 40)] {
        let folder = format!("sys/devices/pci0000:80/{address}");
        tree.write_file(&format!("{folder}/vendor"), "0x144d\n")
            .write_file(&format!("{folder}/device"), "0xa80a\n")
            .write_file(&format!("{folder}/driver_override"), "(null)\n")
            .write_file(&format!("{folder}/enable"), "1\n")
            .create_link(
                &format!("{folder}/iommu_group"),
                &format!("../../../kernel/iommu_groups/{group}"),
            )
            .create_folder(&format!("sys/kernel/iommu_groups/{group}/devices/{address}"));
    }
    tree.write_file("sys/bus/pci/drivers/vfio-pci/unbind", "")
        .write_file("sys/bus/pci/drivers/nvme/unbind", "")
        .write_file("sys/bus/pci/drivers_probe", "")
        .create_folder("var/lib/berth");
    tree
}

/// Replaces the driver of the unused drive.
fn set_driver(tree: &Tree, driver: Option<&str>) {
    std::fs::remove_file(tree.path().join(format!("{FREE_FOLDER}/driver"))).unwrap();
    if let Some(driver) = driver {
        let target = format!("../../../bus/pci/drivers/{driver}");
        tree.create_link(&format!("{FREE_FOLDER}/driver"), &target);
    }
}

fn write_ledger(tree: &Tree, address: &str) {
    let entry = format!(r#""pci {address} driver":{{"found":"nvme","set":"vfio-pci"}}"#);
    tree.write_file(
        "var/lib/berth/found.json",
        format!(r#"{{"version":1,"bootID":"{BOOT_ID}","entries":{{{entry}}}}}"#),
    );
}

/// Returns the exit code of `plan`, each change with the reason if it is blocked, and standard error.
fn run_plan(tree: &Tree, vfio: &str) -> (i32, Vec<String>, String) {
    let text = format!(
        "apiVersion: berth.dev/v1alpha1\nkind: InfraNode\nmetadata: {{name: rack1-a}}\nspec:\n  profile: x\n  {vfio}\n"
    );
    tree.write_file("infranode.yaml", text);
    let file = tree.path().join("infranode.yaml");
    let output = run_agent_on(tree, &["plan", "-o", "json", "-f", file.to_str().unwrap()]);
    let json: Value = serde_json::from_str(&stdout(&output)).unwrap_or_default();
    let text = |change: &Value, name: &str| change[name].as_str().unwrap_or_default().to_owned();
    let line = |change: &Value| {
        let [what, was, will_be, blocked] =
            ["what", "was", "willBe", "blocked"].map(|name| text(change, name));
        let blocked = if blocked.is_empty() { blocked } else { format!(" BLOCKED {blocked}") };
        format!("{what}: {was} -> {will_be}{blocked}")
    };
    let changes = json["changes"].as_array().map(|all| all.iter().map(line).collect());
    (output.status.code().unwrap(), changes.unwrap_or_default(), stderr(&output))
}

fn select(address: &str) -> String {
    format!("devices: {{vfio: [{{pciAddress: '{address}'}}]}}")
}

/// Returns the reason why the unused drive is not bound.
fn refusal(tree: &Tree) -> String {
    let (code, changes, errors) = run_plan(tree, &select(FREE_DRIVE));
    assert_eq!((code, changes.len()), (1, 1), "{changes:#?} {errors}");
    let (_, reason) = changes[0].split_once(" BLOCKED ").unwrap();
    reason.to_owned()
}

#[test]
fn unused_drive_is_bound() {
    let tree = host_tree();
    let expected = format!("pci {FREE_DRIVE} driver: nvme -> vfio-pci");
    let (code, changes, _) = run_plan(&tree, &select(FREE_DRIVE));
    assert_eq!((code, changes), (0, vec![expected.clone()]));
    let by_id = "devices: {vfio: [{id: '144D:a80a', count: 1}]}";
    assert_eq!(run_plan(&tree, by_id).1, [expected], "an unused drive is preferred");
    let (code, changes, _) = run_plan(&tree, "devices: {vfio: [{id: '144d:a80a'}]}");
    assert_eq!((code, changes.len()), (1, 2), "{changes:#?}");
    set_driver(&tree, Some("vfio-pci"));
    tree.write_file(&format!("{FREE_FOLDER}/driver_override"), "vfio-pci\n");
    assert_eq!(run_plan(&tree, &select(FREE_DRIVE)).1, [""; 0], "the second plan is empty");
    assert_eq!(run_plan(&tree, by_id).1, [""; 0]);
}

#[test]
fn drive_in_use_is_refused() {
    let tree = host_tree();
    let (code, changes, _) = run_plan(&tree, &select(SYSTEM_DRIVE));
    assert_eq!(code, 1);
    for words in [
        "pci 0000:80:00.0 driver: nvme -> vfio-pci BLOCKED it is in use: partitions: 2",
        "nvme0n1p2 mounted on /",
        "remove it from spec.devices.vfio",
    ] {
        assert!(changes[0].contains(words), "{words}: {changes:#?}");
    }
    tree.write_file("run/udev/data/b259:4", "E:ID_FS_TYPE=LVM2_member\n");
    assert!(refusal(&tree).contains("nvme1n1 has signature LVM2_member"), "{}", refusal(&tree));
    let open = host_tree();
    open.write_file("proc/88/comm", "qemu-system-x86\n")
        .create_link("proc/88/fd/7", "/dev/nvme1n1");
    assert!(refusal(&open).contains("process 88 (qemu-system-x86) has nvme1n1 open"));
}

#[test]
fn function_that_vms_cannot_use_is_refused() {
    let tree = host_tree();
    std::fs::remove_dir_all(tree.path().join("sys/bus/pci/drivers/vfio-pci")).unwrap();
    assert!(refusal(&tree).contains("modprobe vfio-pci"));
    let without_iommu = host_tree();
    std::fs::remove_file(without_iommu.path().join(format!("{FREE_FOLDER}/iommu_group"))).unwrap();
    assert!(refusal(&without_iommu).contains("it has no IOMMU group"));
    let overridden = host_tree();
    overridden.write_file(&format!("{FREE_FOLDER}/driver_override"), "\u{1b}[31mpci-stub\n");
    let reason = refusal(&overridden);
    assert!(reason.contains("driver_override is `\u{fffd}[31mpci-stub`"), "{reason}");
    let unbound = host_tree();
    set_driver(&unbound, None);
    assert!(refusal(&unbound).contains("without a driver, its content cannot be read"));
    let (code, changes, _) = run_plan(&unbound, &select("0000:99:00.0"));
    assert_eq!(code, 1);
    assert!(changes[0].contains("this host has no PCI function with this address"), "{changes:#?}");
}

#[test]
fn group_with_a_device_of_the_host_is_refused() {
    let tree = host_tree();
    tree.create_folder("sys/kernel/iommu_groups/40/devices/0000:41:00.0");
    let reason = refusal(&tree);
    for words in [
        "IOMMU group 40 also contains 0000:41:00.0 with the driver mlx5_core",
        "(link ens1f0np0 with the default route)",
    ] {
        assert!(reason.contains(words), "{reason}");
    }
    let both = format!(
        "devices: {{vfio: [{{pciAddress: '{FREE_DRIVE}'}}, {{pciAddress: '0000:41:00.0'}}]}}"
    );
    let (code, changes, _) = run_plan(&tree, &both);
    assert_eq!((code, changes.len()), (1, 2));
    assert!(changes.iter().all(|change| change.contains(" BLOCKED ")), "{changes:#?}");
}

#[test]
fn faults_name_the_field() {
    let tree = host_tree();
    for (vfio, fault) in [
        ("[{}]", "spec.devices.vfio[0]: `pciAddress: , id: `: exactly one of pciAddress and id"),
        ("[{id: '144d:a80a', count: 3}]", "spec.devices.vfio[0].count: `3`: this host has 2"),
        ("[{id: '144d'}]", "spec.devices.vfio[0].id: `144d`: `144d` is not a PCI id"),
    ] {
        let (code, changes, errors) = run_plan(&tree, &format!("devices: {{vfio: {vfio}}}"));
        assert_eq!((code, changes), (2, vec![]), "{errors}");
        assert!(errors.contains(fault), "{fault}: {errors}");
    }
}

#[test]
fn function_is_released_only_while_its_group_is_unused() {
    let tree = host_tree();
    set_driver(&tree, Some("vfio-pci"));
    tree.write_file(&format!("{FREE_FOLDER}/driver_override"), "vfio-pci\n");
    write_ledger(&tree, FREE_DRIVE);
    let released = format!("pci {FREE_DRIVE} driver: vfio-pci -> nvme");
    let (code, changes, _) = run_plan(&tree, "");
    assert_eq!(code, 1);
    assert!(changes[0].starts_with(&format!("{released} BLOCKED IOMMU group 40")), "{changes:#?}");
    tree.write_file(&format!("{FREE_FOLDER}/enable"), "0\n");
    assert_eq!(run_plan(&tree, "").1, std::slice::from_ref(&released));
    tree.write_file("proc/88/comm", "qemu-system-x86\n")
        .create_link("proc/88/fd/7", "/dev/vfio/40");
    let (_, changes, _) = run_plan(&tree, "");
    assert!(changes[0].contains("process 88 (qemu-system-x86) has /dev/vfio/40 open"));

    // The function was removed: its entry of the ledger is stale.
    write_ledger(&tree, "0000:99:00.0");
    assert_eq!(run_plan(&tree, "").1, [""; 0]);
}

#[test]
fn interrupted_change_is_completed_or_restored() {
    let tree = host_tree();
    tree.write_file(&format!("{FREE_FOLDER}/driver_override"), "vfio-pci\n");
    write_ledger(&tree, FREE_DRIVE);
    for driver in [Some("nvme"), None] {
        set_driver(&tree, driver);
        let was = format!("{}, driver_override vfio-pci", driver.unwrap_or("none"));
        let line = |driver: &str| vec![format!("pci {FREE_DRIVE} driver: {was} -> {driver}")];
        assert_eq!(run_plan(&tree, &select(FREE_DRIVE)).1, line("vfio-pci"));
        assert_eq!(run_plan(&tree, "").1, line("nvme"));
    }
}

/// Tests a lower count: the function that a VM has open stays, although its address is higher.
#[test]
fn function_in_use_is_kept_when_the_count_is_lowered() {
    let tree = host_tree();
    set_driver(&tree, Some("vfio-pci"));
    tree.write_file(&format!("{FREE_FOLDER}/driver_override"), "vfio-pci\n");
    let system = "sys/devices/pci0000:80/0000:80:00.0";
    std::fs::remove_file(tree.path().join(format!("{system}/driver"))).unwrap();
    tree.create_link(&format!("{system}/driver"), "../../../bus/pci/drivers/vfio-pci")
        .write_file(&format!("{system}/driver_override"), "vfio-pci\n")
        .write_file(&format!("{system}/enable"), "0\n");
    write_ledger(&tree, SYSTEM_DRIVE);
    let released = format!("pci {SYSTEM_DRIVE} driver: vfio-pci -> nvme");
    assert_eq!(run_plan(&tree, "devices: {vfio: [{id: '144d:a80a', count: 1}]}").1, [released]);
}

/// Tests a drive that Berth has bound before, and that the host now uses: another drive is bound.
#[test]
fn refused_function_of_the_ledger_is_not_preferred() {
    let tree = host_tree();
    write_ledger(&tree, SYSTEM_DRIVE);
    let expected = format!("pci {FREE_DRIVE} driver: nvme -> vfio-pci");
    assert_eq!(run_plan(&tree, "devices: {vfio: [{id: '144d:a80a', count: 1}]}").1, [expected]);
}

/// Tests a kernel that does not bind the driver: the files of a tree have no effect.
#[test]
fn refused_driver_is_restored() {
    let tree = host_tree();
    let manifest = manifest(&format!("  {}", select(FREE_DRIVE)));
    let root = Root::open(tree.path()).unwrap();
    let options = ObserveOptions::for_spec(&manifest.spec);
    let converged = converge(
        &ApplyContext::new(&root, BOOT_ID, &|| {}),
        &manifest.spec,
        &manifest.unparsed,
        &BTreeSet::new(),
        &|| observe_for_plan(&root, &options),
        &mut |_| {},
    );
    let outcome = &converged.outcomes[0];
    assert_eq!((converged.outcomes.len(), outcome.result), (1, ChangeResult::Failed));
    let message = outcome.message.as_deref().unwrap();
    assert!(message.contains("the kernel has not bound vfio-pci: the driver is nvme"), "{message}");
    let read = |file: &str| std::fs::read_to_string(tree.path().join(file)).unwrap();
    assert_eq!(read("sys/bus/pci/drivers/nvme/unbind"), FREE_DRIVE);
    assert_eq!(read("sys/bus/pci/drivers_probe"), FREE_DRIVE);
    assert_eq!(read(&format!("{FREE_FOLDER}/driver_override")), "\n");
    let ledger = Ledger::read(&root, Some(BOOT_ID)).unwrap();
    let entry = &ledger.entries[&Setting::PciDriver(FREE_DRIVE.parse().unwrap())];
    assert_eq!(entry.original, SettingValue::Keyword("nvme".to_owned()));
    assert_eq!(entry.applied, None);
}
