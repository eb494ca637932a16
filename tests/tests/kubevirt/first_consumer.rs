//! VMs whose disks only one host can reach: CDI imports the image of a disk after the scheduler has chosen a host.
//!
//! The first of [`DISK_HOSTS`] has resources for the VM [`NEIGHBOUR`] and one more VM. On the second host, the
//! resources of the Node are sufficient for kube-scheduler, but the resources of each zone are not sufficient.

use serde_json::Value;

use crate::deletion::wait_until_absent;
use crate::disks::{
    FIRST_CONSUMER_ANNOTATION, HOST_PATH_CLASS, Import, NAMESPACE, STORAGE_CLASS,
    assert_disk_is_on, assert_disk_waits_on, assert_no_room_for, assert_runs_on,
    create_namespace_and_class, create_vm, create_vm_with_disk, create_vm_with_disk_of, delete_vms,
    host_of_vm, phase_of_disk, pods_of_vm, set_import_steps, wait_until_kept,
    wait_until_report_omits,
};
use crate::hosts::DISK_HOSTS;
use crate::testbed::Testbed;

/// VM without a disk that uses a zone of the first host.
const NEIGHBOUR: &str = "neighbour-1";
/// VMs without a disk that need the resources of a VM with a disk.
const COMPETITORS: [&str; 2] = ["competitor-1", "competitor-2"];
/// Kinds of VMs, and of the objects that KubeVirt and CDI create for VMs.
const KINDS: &str = "vm,vmi,pods,datavolumes,persistentvolumeclaims";

/// Tests a VM whose DataVolume is in phase `WaitForFirstConsumer`: its first-consumer pod gets the host with enough
/// free resources. The resources stay reserved during the import, although the VM has no pod then, and the launcher pod
/// gets the same host.
pub(crate) fn room_is_reserved_during_the_import(bed: &Testbed) {
    let (vm, host) = ("imported-1", DISK_HOSTS[0]);
    create_namespace_and_class(bed);
    create_vm(bed, NEIGHBOUR);
    assert_runs_on(bed, NEIGHBOUR, host);
    // CDI is slow, so virt-controller does not delete the first-consumer pod after its end.
    set_import_steps(bed, false, false);
    create_vm_with_disk(bed, vm, Import::WithoutPopulator);
    let pods = ["pods", "-n", NAMESPACE];
    let first_consumer = bed.wait_until("the first-consumer pod has ended", &pods, || {
        let pod = pods_of_vm(bed, vm).pop()?;
        (pod["status"]["phase"] == "Succeeded").then_some(pod)
    });
    assert_eq!(phase_of_disk(bed, vm), "WaitForFirstConsumer");
    assert_eq!(first_consumer["metadata"]["annotations"][FIRST_CONSUMER_ANNOTATION], "true");
    assert_eq!(first_consumer["spec"]["schedulerName"], "berth-scheduler");
    assert_eq!(first_consumer["spec"]["nodeName"], host);
    assert_eq!(first_consumer["status"]["qosClass"], "Guaranteed");
    assert_disk_is_on(bed, vm, host);
    // The kubelet has released the resources of the pod, so only the reservation prevents that the competitors get this
    // host.
    wait_until_report_omits(bed, host, &first_consumer);
    wait_until_kept(bed, 1.0);
    assert_no_room_for(bed, COMPETITORS[0]);

    set_import_steps(bed, true, false);
    wait_until_vm_has_no_pod(bed, vm);
    assert_no_room_for(bed, COMPETITORS[1]);
    assert_eq!(bed.get("vmi", NAMESPACE, vm)["status"]["phase"], "Pending");
    wait_until_kept(bed, 1.0);

    set_import_steps(bed, true, true);
    assert_runs_on(bed, vm, host);
    wait_until_kept(bed, 0.0);
    assert_competitors_wait(bed, &COMPETITORS);
    bed.assert_kubelets_admit();
    delete_vms(bed, &[vm]);
    bed.wait_until("a competitor gets the released resources", &pods, || {
        let hosts = COMPETITORS.map(|competitor| host_of_vm(bed, competitor));
        hosts.iter().any(|found| *found == host).then_some(())
    });
    delete_vms(bed, &COMPETITORS);
}

/// Tests the reservation with a fast CDI: the import has already started when the first-consumer pod runs, so
/// virt-controller deletes the pod at once, without a grace period.
pub(crate) fn room_is_reserved_if_the_pod_is_deleted_at_once(bed: &Testbed) {
    let (vm, competitor, host) = ("imported-2", "competitor-3", DISK_HOSTS[0]);
    set_import_steps(bed, true, false);
    create_vm_with_disk(bed, vm, Import::WithoutPopulator);
    wait_until_vm_has_no_pod(bed, vm);
    wait_until_kept(bed, 1.0);
    assert_disk_is_on(bed, vm, host);
    assert_no_room_for(bed, competitor);
    set_import_steps(bed, true, true);
    assert_runs_on(bed, vm, host);
    assert_competitors_wait(bed, &[competitor]);
    bed.assert_kubelets_admit();
    delete_vms(bed, &[vm, competitor]);
}

/// Tests both methods of import while the scheduler and its extender are killed during the import, after the scheduler has
/// selected a host for the disk: the VM runs on this host, where its disk is, and no other VM gets its resources.
pub(crate) fn reservation_of_a_disk_survives_kills(bed: &mut Testbed) {
    let host = DISK_HOSTS[0];
    for (vm, competitor, class, import) in [
        ("killed-1", "competitor-5", HOST_PATH_CLASS, Import::WithoutPopulator),
        ("killed-2", "competitor-6", STORAGE_CLASS, Import::WithPopulator),
    ] {
        set_import_steps(bed, true, false);
        create_vm_with_disk_of(bed, vm, class, import);
        wait_until_importing(bed, vm, import);
        if import == Import::WithPopulator {
            assert_disk_waits_on(bed, vm, host);
        }
        bed.kill_scheduler_and_controller();
        assert_no_room_for(bed, competitor);
        set_import_steps(bed, true, true);
        assert_runs_on(bed, vm, host);
        assert_disk_is_on(bed, vm, host);
        assert_competitors_wait(bed, &[competitor]);
        bed.assert_kubelets_admit();
        delete_vms(bed, &[vm, competitor]);
    }
}

/// Tests a VM whose DataVolume is in phase `PendingPopulation`: its launcher pod is the first consumer and waits in the
/// scheduler during the import. No other VM is placed there during the import.
pub(crate) fn launcher_pod_waits_for_the_import(bed: &Testbed) {
    let (vm, competitor, host) = ("populated-1", "competitor-4", DISK_HOSTS[0]);
    set_import_steps(bed, true, false);
    create_vm_with_disk(bed, vm, Import::WithPopulator);
    let volume = ["datavolume", vm, "-n", NAMESPACE];
    let launcher = bed.wait_until("CDI imports the image", &volume, || {
        let is_importing = phase_of_disk(bed, vm) == "ImportInProgress";
        pods_of_vm(bed, vm).pop().filter(|_| is_importing)
    });
    assert!(launcher["metadata"]["annotations"][FIRST_CONSUMER_ANNOTATION].is_null());
    assert!(
        launcher["spec"]["nodeName"].is_null(),
        "the launcher pod was bound before the import: {launcher:#}"
    );
    assert_disk_waits_on(bed, vm, host);
    assert_no_room_for(bed, competitor);

    set_import_steps(bed, true, true);
    let running = assert_runs_on(bed, vm, host);
    assert_eq!(running["metadata"]["uid"], launcher["metadata"]["uid"]);
    assert_disk_is_on(bed, vm, host);
    assert_competitors_wait(bed, &[competitor]);
    bed.assert_kubelets_admit();
}

/// Tests that no object and no allocation of the VMs remains after their deletion.
pub(crate) fn deleted_vms_leave_no_volumes(bed: &Testbed) {
    bed.plane.kubectl(&["delete", "vm", "--all", "-n", NAMESPACE, "--wait=false"]).unwrap();
    wait_until_absent(bed, &[&[KINDS, "-n", NAMESPACE]]);
    bed.wait_until("no volumes remain", &["persistentvolumes"], || {
        let volumes = bed.list("persistentvolumes", &[]);
        let is_local = |volume: &Value| {
            [STORAGE_CLASS, HOST_PATH_CLASS]
                .iter()
                .any(|class| volume["spec"]["storageClassName"] == *class)
        };
        (!volumes.iter().any(is_local)).then_some(())
    });
    bed.wait_until("no host reports an allocation", &["infranodes"], || {
        let hosts = DISK_HOSTS.map(|host| bed.get("infranode", "default", host));
        let allocations = hosts.iter().map(|host| host["status"]["allocations"].as_array());
        allocations.flatten().all(Vec::is_empty).then_some(())
    });
    wait_until_kept(bed, 0.0);
    bed.assert_kubelets_admit();
}

/// Waits until CDI imports the disk of a VM; without a populator, the VM has no pod then.
fn wait_until_importing(bed: &Testbed, name: &str, import: Import) {
    if import == Import::WithoutPopulator {
        return wait_until_vm_has_no_pod(bed, name);
    }
    bed.wait_until("CDI imports the image", &["datavolume", name, "-n", NAMESPACE], || {
        (phase_of_disk(bed, name) == "ImportInProgress").then_some(())
    });
}

/// Waits until CDI imports the disk of a VM and virt-controller has deleted the first-consumer pod.
fn wait_until_vm_has_no_pod(bed: &Testbed, name: &str) {
    let volume = ["datavolume", name, "-n", NAMESPACE];
    bed.wait_until(&format!("{name} has no pod during its import"), &volume, || {
        let is_importing = phase_of_disk(bed, name) == "ImportInProgress";
        (is_importing && pods_of_vm(bed, name).is_empty()).then_some(())
    });
}

fn assert_competitors_wait(bed: &Testbed, competitors: &[&str]) {
    for competitor in competitors {
        assert!(host_of_vm(bed, competitor).is_null(), "{competitor} has a host");
    }
}
