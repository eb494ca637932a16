//! VMs with the run strategies `Manual` and `RerunOnFailure`: KubeVirt creates a launcher pod only if the strategy starts
//! the VM, and the scheduler places each of these pods.

use serde_json::{Value, json};

use crate::instances::{NAMESPACE, wait_until_stopped};
use crate::testbed::{Testbed, text};

/// VM that KubeVirt starts only on request.
const MANUAL_VM: &str = "manual-1";
/// VM that KubeVirt starts again if the VM fails, but not if its guest shuts down.
const RERUN_VM: &str = "rerun-1";

/// Tests the starts of both VMs, and that no other start occurs (`syncRunStrategy` in
/// pkg/virt-controller/watch/vm/vm.go).
pub(crate) fn vms_follow_their_run_strategies(bed: &Testbed) {
    create_vm(bed, MANUAL_VM, "Manual");
    create_vm(bed, RERUN_VM, "RerunOnFailure");
    wait_until_stopped(bed, MANUAL_VM);

    let first = wait_until_placed(bed, RERUN_VM, "");
    report_end(bed, NAMESPACE, RERUN_VM, "Failed");
    wait_until_placed(bed, RERUN_VM, &first);
    report_end(bed, NAMESPACE, RERUN_VM, "Succeeded");
    wait_until_stopped(bed, RERUN_VM);

    let mut uid = String::new();
    for end in ["Succeeded", "Failed"] {
        start(bed, MANUAL_VM);
        uid = wait_until_placed(bed, MANUAL_VM, &uid);
        report_end(bed, NAMESPACE, MANUAL_VM, end);
        bed.wait_until("the VM is stopped", &["vm", MANUAL_VM, "-n", NAMESPACE], || {
            let vm = bed.get("vm", NAMESPACE, MANUAL_VM);
            (vm["status"]["printableStatus"] == "Stopped").then_some(())
        });
        // KubeVirt keeps the instance that has ended until the next start.
        let ended = bed.get("vmi", NAMESPACE, MANUAL_VM);
        assert_eq!(ended["metadata"]["uid"], uid, "{ended:#}");
        assert_eq!(ended["status"]["phase"], end, "{ended:#}");
    }
    let stopped = bed.get("vmi", NAMESPACE, RERUN_VM);
    assert!(stopped.is_null(), "KubeVirt started a VM whose guest had shut down: {stopped:#}");
    bed.assert_kubelets_admit();
    delete_vms(bed, &[MANUAL_VM, RERUN_VM]);
}

/// Sets the phase of an instance whose guest has shut down (`Succeeded`) or crashed (`Failed`), as virt-handler does.
pub(crate) fn report_end(bed: &Testbed, namespace: &str, name: &str, phase: &str) {
    let ended = json!({"status": {"phase": phase}}).to_string();
    let patch = ["patch", "vmi", name, "-n", namespace, "--type=merge", "-p", &ended];
    bed.plane.kubectl_with(bed.kubevirt.kubeconfig(), &patch, "").unwrap();
}

/// Waits until an instance with a uid other than `except` runs in a single pod on a host, and returns its uid.
#[track_caller]
fn wait_until_placed(bed: &Testbed, name: &str, except: &str) -> String {
    let instance = bed.wait_until_running(NAMESPACE, name, except);
    let pods = bed.pods_of(&instance);
    assert_eq!(pods.len(), 1, "{pods:#?}");
    assert_eq!(pods[0]["spec"]["schedulerName"], "berth-scheduler");
    assert_eq!(pods[0]["spec"]["nodeName"], instance["status"]["nodeName"]);
    text(&instance["metadata"]["uid"]).to_owned()
}

/// Starts a VM through a subresource of virt-api, as `virtctl start` does.
fn start(bed: &Testbed, name: &str) {
    let path = format!(
        "/apis/subresources.kubevirt.io/v1/namespaces/{NAMESPACE}/virtualmachines/{name}/start"
    );
    let replace = ["replace", "--raw", &path, "-f", "-"];
    bed.plane.kubectl_with(&bed.plane.kubeconfig(), &replace, "{}").unwrap();
}

fn create_vm(bed: &Testbed, name: &str, strategy: &str) {
    let vm = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"runStrategy": strategy, "template": {"spec": {
            "schedulerName": "berth-scheduler",
            "domain": {"cpu": {"cores": 1}, "memory": {"guest": "1Gi"}, "devices": {}},
        }}},
    });
    bed.plane.apply(&vm.to_string()).unwrap();
}

fn delete_vms(bed: &Testbed, names: &[&str]) {
    let delete = ["delete", "vm", "-n", NAMESPACE, "--wait=false"];
    bed.plane.kubectl(&[&delete[..], names].concat()).unwrap();
    for name in names {
        bed.wait_until(&format!("{name} is deleted"), &["vm", "-n", NAMESPACE], || {
            let remaining: Vec<Value> =
                ["vm", "vmi"].map(|kind| bed.get(kind, NAMESPACE, name)).into();
            remaining.iter().all(Value::is_null).then_some(())
        });
    }
}
