//! Live migration of a VM with shared CPUs.

use std::sync::atomic::Ordering;

use berth_tests::cluster::condition;
use serde_json::json;

use crate::hosts::{MIGRATION_HOSTS, MIGRATION_TAINT, PURPOSE_LABEL};
use crate::instances::NAMESPACE;
use crate::migration_target::is_target;
use crate::testbed::{Testbed, text};

const MIGRATING_VM: &str = "migrating-1";
/// VM that fits only on a host on which [`MIGRATING_VM`] does not run.
const WAITING_VM: &str = "waiting-1";

/// Tests that the target pod gets the second host, that both hosts are full during the migration, and that the source
/// host accepts a VM after the migration.
pub(crate) fn migration_reserves_both_hosts(bed: &Testbed) {
    create_vm(bed, MIGRATING_VM);
    let instance = bed.wait_until_running(NAMESPACE, MIGRATING_VM, "");
    let source = text(&instance["status"]["nodeName"]);
    assert!(MIGRATION_HOSTS.contains(&source), "{source}");
    bed.simulation.completes_migrations.store(false, Ordering::SeqCst);
    let migration = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration",
        "metadata": {"name": "move", "namespace": NAMESPACE}, "spec": {"vmiName": MIGRATING_VM},
    });
    bed.plane.apply(&migration.to_string()).unwrap();
    wait_until_phase(bed, "Running");
    let pods = bed.pods_of(&instance);
    assert_eq!(pods.len(), 2, "{pods:#?}");
    let target = text(&pods.iter().find(|pod| is_target(pod)).unwrap()["spec"]["nodeName"]);
    // From these fields the controller writes the lease of the target host, before the guest arrives.
    let moving = bed.get("vmi", NAMESPACE, MIGRATING_VM);
    assert_eq!(moving["status"]["migrationState"]["targetNode"], target, "{moving:#}");
    assert_eq!(moving["status"]["nodeName"], source, "{moving:#}");
    assert!(
        MIGRATION_HOSTS.contains(&target) && target != source,
        "the VM should migrate to the other host, not from {source} to {target}"
    );

    create_vm(bed, WAITING_VM);
    let waiting = ["vmi", WAITING_VM, "-n", NAMESPACE];
    bed.wait_until("no host has free resources for another VM", &waiting, || {
        let instance = bed.get("vmi", NAMESPACE, WAITING_VM);
        let pod = bed.pods_of(&instance).pop()?;
        (condition(&pod, "PodScheduled")["reason"] == "Unschedulable").then_some(())
    });
    bed.assert_kubelets_admit();

    bed.simulation.completes_migrations.store(true, Ordering::SeqCst);
    wait_until_phase(bed, "Succeeded");
    let moved = bed.get("vmi", NAMESPACE, MIGRATING_VM);
    assert_eq!(moved["metadata"]["uid"], instance["metadata"]["uid"]);
    assert_eq!(moved["status"]["nodeName"], target);
    let waiting = bed.wait_until_running(NAMESPACE, WAITING_VM, "");
    assert_eq!(waiting["status"]["nodeName"], source, "the source must be used again");
    let pods = bed.pods_of(&moved);
    assert_eq!(pods.len(), 1, "{pods:#?}");
    assert_eq!(pods[0]["spec"]["nodeName"], target);
    bed.assert_kubelets_admit();
}

fn wait_until_phase(bed: &Testbed, phase: &str) {
    let object = ["virtualmachineinstancemigration", "move", "-n", NAMESPACE];
    bed.wait_until(&format!("the migration is {phase}"), &object, || {
        let migration = bed.get(object[0], NAMESPACE, object[1]);
        let current = text(&migration["status"]["phase"]);
        assert_ne!(current, "Failed", "{migration:#}");
        (current == phase).then_some(())
    });
}

/// Creates a VM of which only one fits on each of [`MIGRATION_HOSTS`].
fn create_vm(bed: &Testbed, name: &str) {
    let vm = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"runStrategy": "Always", "template": {"spec": {
            "schedulerName": "berth-scheduler",
            "nodeSelector": {PURPOSE_LABEL: "migrations"},
            "tolerations": [{"key": MIGRATION_TAINT, "operator": "Exists"}],
            "domain": {"cpu": {"cores": 2}, "memory": {"guest": "40Gi"}, "devices": {}},
        }}},
    });
    bed.plane.apply(&vm.to_string()).unwrap();
}
