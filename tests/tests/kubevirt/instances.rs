//! VMs of `examples/machines.yaml`, which have the run strategy `Always`: restarts and stops.

use berth_tests::repository;
use serde_json::json;

use crate::testbed::{Testbed, text};

/// Namespace of the VMs, which belongs to no tenant.
pub(crate) const NAMESPACE: &str = "cluster-xyz";
/// VM with shared CPUs.
const SHARED_VM: &str = "shop-1";
/// VM with exclusive CPUs and huge pages.
const DEDICATED_VM: &str = "cache-2";

/// Tests that, after the deletion of an instance, KubeVirt creates a new instance with a new pod, and the scheduler
/// places this pod.
pub(crate) fn deleted_instance_is_placed_again(bed: &Testbed) {
    bed.plane.kubectl(&["create", "namespace", NAMESPACE]).unwrap();
    bed.plane.apply_file(&repository().join("examples/machines.yaml")).unwrap();
    bed.wait_until_running(NAMESPACE, SHARED_VM, "");
    let old = bed.wait_until_running(NAMESPACE, DEDICATED_VM, "");
    let old_pods = bed.pods_of(&old);
    assert_eq!(old_pods.len(), 1, "{old_pods:#?}");
    bed.plane.kubectl(&["delete", "vmi", DEDICATED_VM, "-n", NAMESPACE, "--wait=false"]).unwrap();
    let new = bed.wait_until_running(NAMESPACE, DEDICATED_VM, text(&old["metadata"]["uid"]));
    let new_pods = bed.pods_of(&new);
    assert_eq!(new_pods.len(), 1, "{new_pods:#?}");
    let name = text(&old_pods[0]["metadata"]["name"]);
    assert!(bed.get("pod", NAMESPACE, name).is_null(), "the old pod still exists");
    bed.assert_kubelets_admit();
}

/// Tests that a stopped VM has no pod, and gets a pod when it is started.
pub(crate) fn halted_vm_has_no_pod(bed: &Testbed) {
    let old = bed.get("vmi", NAMESPACE, SHARED_VM);
    let set_strategy = |strategy: &str| {
        bed.patch("vm", NAMESPACE, SHARED_VM, &json!({"spec": {"runStrategy": strategy}}));
    };
    set_strategy("Halted");
    wait_until_stopped(bed, SHARED_VM);
    set_strategy("Always");
    let new = bed.wait_until_running(NAMESPACE, SHARED_VM, text(&old["metadata"]["uid"]));
    assert_eq!(bed.pods_of(&new).len(), 1);
    bed.assert_kubelets_admit();
}

/// Waits until a VM is stopped, and has neither an instance nor a pod.
#[track_caller]
pub(crate) fn wait_until_stopped(bed: &Testbed, name: &str) {
    bed.wait_until(&format!("{name} is stopped"), &["vm", name, "-n", NAMESPACE], || {
        let vm = bed.get("vm", NAMESPACE, name);
        let label = format!("vm.kubevirt.io/name={name}");
        let pods = bed.list("pods", &["-n", NAMESPACE, "-l", &label]);
        let has_instance = !bed.get("vmi", NAMESPACE, name).is_null();
        let is_stopped = vm["status"]["printableStatus"] == "Stopped";
        (is_stopped && pods.is_empty() && !has_instance).then_some(())
    });
}
