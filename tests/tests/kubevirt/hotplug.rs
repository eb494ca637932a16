//! Hotpluggable disks of running machines: virt-api accepts the changes of the VirtualMachines, virt-controller attaches and
//! detaches the volumes with attachment pods, and the guests are not restarted.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use berth_api::names::{DETACHED_DISKS_ANNOTATION, HOTPLUG_DISK_LABEL};
use berth_tests::cluster::condition;
use serde_json::{Value, json};

use crate::deletion::wait_until_absent;
use crate::machines::{SHOP_NAMESPACE, launcher_pod, machines, scale, wait_until_machines_run};
use crate::testbed::{Testbed, text};

/// MachineDeployment whose machines get the disk.
pub(crate) const DEPLOYMENT: &str = "web";
/// Name of the disk in the template, and of its volume in the VirtualMachine.
const DISK: &str = "data";
const VOLUME: &str = "disk-data";
/// StorageClass of the disk (`create_example_storage_class`).
const STORAGE_CLASS: &str = "longhorn";
/// Label of attachment pods (`hotplugDisk` in pkg/virt-controller/services/template.go).
const ATTACHMENT_POD_LABEL: &str = "kubevirt.io=hotplug-disk";

/// Tests that a disk that is added to the template is attached to the running machines, on their hosts, and that a disk of a
/// machine that is created later is attached too.
pub(crate) fn disks_are_attached_to_running_machines(bed: &Testbed) {
    let before = identities(bed);
    set_disks(bed, &json!([disk("1Gi")]));
    wait_until_disks_are_ready(bed);
    for machine in machines(bed, SHOP_NAMESPACE, DEPLOYMENT) {
        let instance = wait_until_attached(bed, text(&machine["metadata"]["name"]));
        assert_attachment_pod(bed, &machine, &instance);
        let restart = condition(&machine, "RestartRequired");
        assert!(restart.is_null(), "KubeVirt requires a restart: {restart:#}");
    }
    assert_eq!(identities(bed), before, "a machine was replaced or restarted");

    // The launcher pod of a new machine does not contain the volume, and the guest starts after the volume is attached.
    let count = before.len() as u64;
    scale(bed, SHOP_NAMESPACE, DEPLOYMENT, u32::try_from(count).unwrap() + 1);
    let all = wait_until_machines_run(bed, SHOP_NAMESPACE, DEPLOYMENT, count + 1);
    for machine in all.iter().filter(|one| !before.contains_key(text(&one["metadata"]["name"]))) {
        let instance = wait_until_attached(bed, text(&machine["metadata"]["name"]));
        assert_attachment_pod(bed, machine, &instance);
        let launcher = launcher_pod(bed, SHOP_NAMESPACE, machine);
        let volumes = launcher["spec"]["volumes"].as_array().unwrap();
        assert!(volumes.iter().all(|volume| volume["name"] != VOLUME), "{volumes:#?}");
    }
    scale(bed, SHOP_NAMESPACE, DEPLOYMENT, u32::try_from(count).unwrap());
    wait_until_machines_run(bed, SHOP_NAMESPACE, DEPLOYMENT, count);
    bed.assert_kubelets_admit();
}

/// Tests that a larger size reaches the instances: the controller raises the request of the claims, and virt-controller
/// reports the new capacity to virt-handler, which expands the disk in the guest. The test takes the place of the driver.
pub(crate) fn disks_are_expanded_online(bed: &Testbed) {
    let before = identities(bed);
    set_disks(bed, &json!([disk("2Gi")]));
    bed.wait_until("the machines report the StorageClass", &deployment(), || {
        let deployment = bed.get("machinedeployment", SHOP_NAMESPACE, DEPLOYMENT);
        let disks = condition(&deployment, "DisksReady");
        let message = text(&disks["message"]);
        (disks["reason"] == "DiskChangesRefused" && message.contains("allowVolumeExpansion"))
            .then_some(())
    });
    bed.patch("storageclass", "default", STORAGE_CLASS, &json!({"allowVolumeExpansion": true}));
    // The controller compares disks again after five minutes, or when the MachineDeployment changes.
    set_disks(bed, &json!([disk("3Gi")]));
    for name in before.keys() {
        let claim = claim_name(name);
        let object = ["persistentvolumeclaim", claim.as_str(), "-n", SHOP_NAMESPACE];
        let claim = bed.wait_until("the claim requests the new size", &object, || {
            let claim = bed.get("persistentvolumeclaim", SHOP_NAMESPACE, &claim);
            (claim["spec"]["resources"]["requests"]["storage"] == "3Gi").then_some(claim)
        });
        expand_volume(bed, &claim, "3Gi");
        bed.wait_until(
            "the instance reports the new capacity",
            &["vmi", name, "-n", SHOP_NAMESPACE],
            || {
                let instance = bed.get("vmi", SHOP_NAMESPACE, name);
                let info = &volume_status(&instance)?["persistentVolumeClaimInfo"];
                let sizes = [&info["capacity"]["storage"], &info["requests"]["storage"]];
                sizes.iter().all(|size| **size == "3Gi").then_some(())
            },
        );
    }
    wait_until_disks_are_ready(bed);
    assert_eq!(identities(bed), before, "a machine was replaced or restarted");
}

/// Tests that the DataVolume of a removed disk is deleted only after the guest has released the disk.
pub(crate) fn removed_disks_are_deleted_after_their_release(bed: &Testbed) {
    let before = identities(bed);
    bed.simulation.releases_disks.store(false, Ordering::SeqCst);
    set_disks(bed, &json!([]));
    for name in before.keys() {
        bed.wait_until(
            "KubeVirt detaches the volume",
            &["vmi", name, "-n", SHOP_NAMESPACE],
            || {
                let instance = bed.get("vmi", SHOP_NAMESPACE, name);
                (!has_volume(&instance)).then_some(())
            },
        );
    }
    // The controller has examined the instances of all machines.
    bed.wait_until("the machines report the detachment", &deployment(), || {
        let deployment = bed.get("machinedeployment", SHOP_NAMESPACE, DEPLOYMENT);
        let disks = condition(&deployment, "DisksReady");
        let message = text(&disks["message"]);
        let are_named = before
            .keys()
            .all(|name| message.contains(&format!("{} is being detached", claim_name(name))));
        (disks["reason"] == "DisksChanging" && are_named).then_some(())
    });
    for name in before.keys() {
        let instance = bed.get("vmi", SHOP_NAMESPACE, name);
        assert_eq!(volume_status(&instance).unwrap()["phase"], "Ready", "{instance:#}");
        for kind in ["datavolume", "persistentvolumeclaim"] {
            let volume = bed.get(kind, SHOP_NAMESPACE, &claim_name(name));
            assert!(
                volume["metadata"]["uid"].is_string()
                    && volume["metadata"]["deletionTimestamp"].is_null(),
                "a disk in use is deleted: {volume:#}"
            );
        }
    }
    bed.simulation.releases_disks.store(true, Ordering::SeqCst);
    let pods = ["pods", "-n", SHOP_NAMESPACE, "-l", ATTACHMENT_POD_LABEL];
    let volumes = ["datavolumes", "-n", SHOP_NAMESPACE, "-l", HOTPLUG_DISK_LABEL];
    wait_until_absent(bed, &[&pods, &volumes]);
    for name in before.keys() {
        let claim = claim_name(name);
        bed.wait_until(
            "the claim is deleted",
            &["persistentvolumeclaims", "-n", SHOP_NAMESPACE],
            || bed.get("persistentvolumeclaim", SHOP_NAMESPACE, &claim).is_null().then_some(()),
        );
    }
    wait_until_disks_are_ready(bed);
    for machine in machines(bed, SHOP_NAMESPACE, DEPLOYMENT) {
        let annotation = &machine["metadata"]["annotations"][DETACHED_DISKS_ANNOTATION];
        assert!(annotation.is_null(), "{machine:#}");
    }
    assert_eq!(identities(bed), before, "a machine was replaced or restarted");
    bed.assert_kubelets_admit();
}

/// Returns a hotpluggable disk of this size, as in `secondaryDisks`.
pub(crate) fn disk(size: &str) -> Value {
    json!({"name": DISK, "hotpluggable": true, "size": size, "storageClassName": STORAGE_CLASS})
}

/// Sets the secondary disks of the template.
pub(crate) fn set_disks(bed: &Testbed, disks: &Value) {
    let machine = json!({"virtualMachine": {"template": {"secondaryDisks": disks}}});
    let value = json!({"cloudProviderSpec": machine});
    let template = json!({"spec": {"providerSpec": {"value": value}}});
    let fields = json!({"spec": {"template": template}});
    bed.patch("machinedeployment", SHOP_NAMESPACE, DEPLOYMENT, &fields);
}

pub(crate) fn deployment() -> [&'static str; 4] {
    ["machinedeployment", DEPLOYMENT, "-n", SHOP_NAMESPACE]
}

/// Waits until all machines have the disks of the template.
pub(crate) fn wait_until_disks_are_ready(bed: &Testbed) {
    bed.wait_until("the machines have the disks of the template", &deployment(), || {
        let deployment = bed.get("machinedeployment", SHOP_NAMESPACE, DEPLOYMENT);
        let is_observed =
            deployment["status"]["observedGeneration"] == deployment["metadata"]["generation"];
        (is_observed && condition(&deployment, "DisksReady").is_null()).then_some(())
    });
}

/// Waits until the guest of a machine has the disk, and returns the instance.
fn wait_until_attached(bed: &Testbed, name: &str) -> Value {
    bed.wait_until(
        &format!("the guest {name} has the disk"),
        &["vmi", name, "-n", SHOP_NAMESPACE],
        || {
            let instance = bed.get("vmi", SHOP_NAMESPACE, name);
            let is_ready = volume_status(&instance)?["phase"] == "Ready" && has_volume(&instance);
            is_ready.then_some(instance)
        },
    )
}

/// Checks the attachment pod of a machine. The default scheduler places it on the Node of the launcher pod, to which a node
/// affinity restricts it, and it requests what KubeVirt requests by default (`hotplugContainerRequests`).
fn assert_attachment_pod(bed: &Testbed, machine: &Value, instance: &Value) {
    let launcher = launcher_pod(bed, SHOP_NAMESPACE, machine);
    let pod = text(&volume_status(instance).unwrap()["hotplugVolume"]["attachPodName"]).to_owned();
    let pod = bed.get("pod", SHOP_NAMESPACE, &pod);
    assert_eq!(
        pod["metadata"]["ownerReferences"][0]["uid"], launcher["metadata"]["uid"],
        "{pod:#}"
    );
    assert_eq!(pod["spec"]["schedulerName"], "default-scheduler");
    assert_eq!(pod["spec"]["nodeName"], launcher["spec"]["nodeName"]);
    let requests = &pod["spec"]["containers"][0]["resources"]["requests"];
    assert_eq!(*requests, json!({"cpu": "10m", "memory": "2M"}), "{pod:#}");
    let claim = claim_name(text(&machine["metadata"]["name"]));
    let mut volumes = pod["spec"]["volumes"].as_array().unwrap().iter();
    assert!(volumes.any(|volume| volume["persistentVolumeClaim"]["claimName"] == claim), "{pod:#}");
}

/// Enlarges the volume of a claim, as a driver does.
fn expand_volume(bed: &Testbed, claim: &Value, size: &str) {
    let volume = text(&claim["spec"]["volumeName"]);
    bed.patch(
        "persistentvolume",
        "default",
        volume,
        &json!({"spec": {"capacity": {"storage": size}}}),
    );
    let status = json!({"status": {"capacity": {"storage": size}}}).to_string();
    let name = text(&claim["metadata"]["name"]);
    let patch =
        ["patch", "persistentvolumeclaim", name, "-n", SHOP_NAMESPACE, "--subresource=status"];
    bed.plane.kubectl(&[&patch[..], &["--type=merge", "-p", &status]].concat()).unwrap();
}

/// Returns the uids of the instance and of the launcher pod of each machine, by the name of the machine.
pub(crate) fn identities(bed: &Testbed) -> BTreeMap<String, [String; 2]> {
    let machines = machines(bed, SHOP_NAMESPACE, DEPLOYMENT);
    let identity = |machine: &Value| {
        let name = text(&machine["metadata"]["name"]);
        let instance = bed.get("vmi", SHOP_NAMESPACE, name);
        let pod = launcher_pod(bed, SHOP_NAMESPACE, machine);
        let uids = [&instance, &pod].map(|object| text(&object["metadata"]["uid"]).to_owned());
        (name.to_owned(), uids)
    };
    machines.iter().map(identity).collect()
}

fn claim_name(machine: &str) -> String {
    format!("{machine}-disk-{DISK}")
}

/// Returns the status of the disk's volume, if the instance reports it.
fn volume_status(instance: &Value) -> Option<&Value> {
    let statuses = instance["status"]["volumeStatus"].as_array()?;
    statuses.iter().find(|status| status["name"] == VOLUME)
}

/// Returns true if the spec of an instance has the disk's volume.
pub(crate) fn has_volume(instance: &Value) -> bool {
    let mut volumes = instance["spec"]["volumes"].as_array().into_iter().flatten();
    volumes.any(|volume| volume["name"] == VOLUME)
}
