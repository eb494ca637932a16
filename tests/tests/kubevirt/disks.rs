//! VMs with disks that only one host can reach, and the objects of these VMs.

use std::sync::atomic::Ordering;

use berth_tests::cluster::condition;
use serde_json::{Value, json};

use crate::hosts::{DISK_TAINT, PURPOSE_LABEL};
use crate::testbed::{Testbed, text};

/// Namespace of the VMs.
pub(crate) const NAMESPACE: &str = "disks";
/// StorageClass of local volumes, with the binding mode `WaitForFirstConsumer`.
pub(crate) const STORAGE_CLASS: &str = "local";
/// StorageClass like [`STORAGE_CLASS`], whose volumes are folders of a host.
pub(crate) const HOST_PATH_CLASS: &str = "hostpath";
/// Annotation by which virt-controller recognizes a first-consumer pod.
pub(crate) const FIRST_CONSUMER_ANNOTATION: &str = "kubevirt.io/ephemeral-provisioning";
const SELECTED_NODE_ANNOTATION: &str = "volume.kubernetes.io/selected-node";
const KEPT_RESERVATIONS: &str = "berth_assignment_pods{stage=\"kept\"}";

/// Method with which CDI imports the image of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Import {
    /// CDI imports into the claim of the DataVolume.
    WithoutPopulator,
    /// CDI imports into a second claim, and then moves the volume to the claim of the DataVolume.
    WithPopulator,
}

pub(crate) fn create_namespace_and_class(bed: &Testbed) {
    bed.plane.kubectl(&["create", "namespace", NAMESPACE]).unwrap();
    for (name, provisioner) in [
        (STORAGE_CLASS, "rancher.io/local-path"),
        (HOST_PATH_CLASS, "kubevirt.io.hostpath-provisioner"),
    ] {
        let class = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name},
            "provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer",
        });
        bed.plane.apply(&class.to_string()).unwrap();
    }
}

/// Sets which steps of imports CDI performs from now on.
pub(crate) fn set_import_steps(bed: &Testbed, starts: bool, completes: bool) {
    bed.simulation.completes_imports.store(completes, Ordering::SeqCst);
    bed.simulation.starts_imports.store(starts, Ordering::SeqCst);
}

/// Creates a VM without a disk. One such VM fits into each zone of the first of
/// [`DISK_HOSTS`](crate::hosts::DISK_HOSTS).
pub(crate) fn create_vm(bed: &Testbed, name: &str) {
    bed.plane.apply(&vm(name).to_string()).unwrap();
}

/// Creates a VM like [`create_vm`], with a disk of [`STORAGE_CLASS`].
pub(crate) fn create_vm_with_disk(bed: &Testbed, name: &str, import: Import) {
    create_vm_with_disk_of(bed, name, STORAGE_CLASS, import);
}

/// Creates a VM like [`create_vm`], with a disk of this StorageClass.
pub(crate) fn create_vm_with_disk_of(bed: &Testbed, name: &str, class: &str, import: Import) {
    let mut vm = vm(name);
    let uses_populator = (import == Import::WithPopulator).to_string();
    vm["spec"]["dataVolumeTemplates"] = json!([{
        "metadata": {"name": name, "annotations": {"cdi.kubevirt.io/storage.usePopulator": uses_populator}},
        "spec": {
            "source": {"http": {"url": "http://images.example/disk.img"}},
            "storage": {"storageClassName": class, "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}}},
        },
    }]);
    let spec = &mut vm["spec"]["template"]["spec"];
    spec["volumes"] = json!([{"name": "disk", "dataVolume": {"name": name}}]);
    spec["domain"]["devices"]["disks"] = json!([{"name": "disk", "disk": {"bus": "virtio"}}]);
    bed.plane.apply(&vm.to_string()).unwrap();
}

fn vm(name: &str) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"runStrategy": "Always", "instancetype": {"name": "performance-2"}, "template": {"spec": {
            "nodeSelector": {PURPOSE_LABEL: "disks"},
            "tolerations": [{"key": DISK_TAINT, "operator": "Exists"}],
            "domain": {"devices": {}},
        }}},
    })
}

/// Deletes VMs, and waits until their instances are deleted.
pub(crate) fn delete_vms(bed: &Testbed, names: &[&str]) {
    let delete = ["delete", "vm", "-n", NAMESPACE, "--wait=false"];
    bed.plane.kubectl(&[&delete[..], names].concat()).unwrap();
    for name in names {
        bed.wait_until(&format!("{name} is deleted"), &["vmi", "-n", NAMESPACE], || {
            bed.get("vmi", NAMESPACE, name).is_null().then_some(())
        });
    }
}

/// Creates a VM without a disk, and waits until the scheduler has found no host for it.
pub(crate) fn assert_no_room_for(bed: &Testbed, name: &str) {
    create_vm(bed, name);
    bed.wait_until(
        &format!("no host has free resources for {name}"),
        &["pods", "-n", NAMESPACE],
        || {
            let pod = pods_of_vm(bed, name).pop()?;
            assert!(
                pod["spec"]["nodeName"].is_null(),
                "{name} got the reserved resources: {pod:#}"
            );
            (condition(&pod, "PodScheduled")["reason"] == "Unschedulable").then_some(())
        },
    );
}

/// Waits until a VM runs on this host, in its only pod, and returns the pod.
pub(crate) fn assert_runs_on(bed: &Testbed, name: &str, host: &str) -> Value {
    let instance = bed.wait_until_running(NAMESPACE, name, "");
    assert_eq!(instance["status"]["nodeName"], host, "{name}");
    let mut pods = pods_of_vm(bed, name);
    assert_eq!(pods.len(), 1, "{pods:#?}");
    let pod = pods.remove(0);
    assert!(pod["metadata"]["annotations"][FIRST_CONSUMER_ANNOTATION].is_null(), "{pod:#}");
    assert_eq!(pod["spec"]["nodeName"], host, "{name}");
    pod
}

/// Asserts that the disk of a VM has a volume that only this host can reach.
pub(crate) fn assert_disk_is_on(bed: &Testbed, name: &str, host: &str) {
    let claim = bed.get("persistentvolumeclaim", NAMESPACE, name);
    assert_eq!(claim["status"]["phase"], "Bound", "{claim:#}");
    assert_eq!(claim["metadata"]["annotations"][SELECTED_NODE_ANNOTATION], host, "{claim:#}");
    let volume = bed.get("persistentvolume", NAMESPACE, text(&claim["spec"]["volumeName"]));
    let terms = &volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"];
    assert_eq!(terms[0]["matchExpressions"][0]["values"], json!([host]), "{volume:#}");
}

/// Asserts that the scheduler has selected this host for the disk of a VM, and that the disk has no volume yet.
pub(crate) fn assert_disk_waits_on(bed: &Testbed, name: &str, host: &str) {
    let claim = bed.get("persistentvolumeclaim", NAMESPACE, name);
    assert_eq!(claim["metadata"]["annotations"][SELECTED_NODE_ANNOTATION], host, "{claim:#}");
    assert!(claim["spec"]["volumeName"].is_null(), "{claim:#}");
}

/// Waits until the report of a host does not list a pod.
pub(crate) fn wait_until_report_omits(bed: &Testbed, host: &str, pod: &Value) {
    bed.wait_until("the kubelet has released the pod", &["infranode", host], || {
        let host = bed.get("infranode", "default", host);
        let mut allocations = host["status"]["allocations"].as_array().into_iter().flatten();
        (!allocations.any(|one| one["podUID"] == pod["metadata"]["uid"])).then_some(())
    });
}

/// Waits until the extender has this number of reservations for VMs whose first-consumer pod has ended.
pub(crate) fn wait_until_kept(bed: &Testbed, count: f64) {
    let description = format!("{count} reservations are kept");
    bed.wait_until(&description, &["pods", "-n", NAMESPACE], || {
        let kept = bed.controller.metric(KEPT_RESERVATIONS);
        ((kept - count).abs() < 0.5).then_some(())
    });
}

/// Returns the phase of the DataVolume of a VM.
pub(crate) fn phase_of_disk(bed: &Testbed, name: &str) -> Value {
    bed.get("datavolume", NAMESPACE, name)["status"]["phase"].take()
}

/// Returns all pods of a VM's instance, also those that have ended.
pub(crate) fn pods_of_vm(bed: &Testbed, name: &str) -> Vec<Value> {
    let instance = bed.get("vmi", NAMESPACE, name);
    let label = format!("kubevirt.io/created-by={}", text(&instance["metadata"]["uid"]));
    bed.list("pods", &["-n", NAMESPACE, "-l", &label])
}

/// Returns the host of a VM's pod, or null if the VM has no pod or the pod has no host.
pub(crate) fn host_of_vm(bed: &Testbed, name: &str) -> Value {
    pods_of_vm(bed, name).pop().unwrap_or_default()["spec"]["nodeName"].take()
}
