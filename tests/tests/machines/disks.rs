//! Tests of disks that are attached to running machines and removed from them. The test creates the DataVolumes, as KubeVirt
//! does; no storage exists.

use std::collections::BTreeSet;

use berth_tests::cluster::{ControlPlane, condition};
use berth_tests::kubevirt::define_cdi_kinds;
use serde_json::{Value, json};

use super::{
    NAMESPACE, SHORT_TIMEOUT, apply, deployment, deployment_status, machine_names, machines,
    wait_until_complete, wait_until_condition,
};

const NAME: &str = "disks";
/// Label of the VirtualMachine whose changes a webhook refuses.
const BROKEN_LABEL: &str = "test.example/broken";

/// Tests which disks keep their data, and that the failed request for one machine does not prevent the update of the other.
/// Deletes the MachineDeployment that it creates.
pub(super) fn disks_are_added_and_removed(plane: &ControlPlane) {
    define_cdi_kinds(plane).unwrap();
    plane.define_kind("kubevirt.io", "v1", "KubeVirt", "kubevirts").unwrap();
    apply(
        plane,
        &json!({
            "apiVersion": "kubevirt.io/v1", "kind": "KubeVirt",
            "metadata": {"name": "kubevirt", "namespace": "default"}, "spec": {},
            "status": {"observedKubeVirtVersion": "v1.9.0"},
        }),
    );
    set_disks(plane, &[]);
    wait_until_complete(plane, NAME, 2);
    let before = machine_names(plane, NAME);
    failed_requests_concern_one_machine(plane);
    data_of_removed_disks_is_kept_or_deleted(plane);
    retained_disk_is_attached_again(plane);
    assert_eq!(machine_names(plane, NAME), before, "no machine was replaced");
    plane
        .kubectl(&["delete", "machinedeployment", NAME, "-n", NAMESPACE, "--timeout=40s"])
        .unwrap();
}

fn set_disks(plane: &ControlPlane, disks: &[Value]) {
    let mut object = deployment(NAME, 2, "2Gi");
    let template =
        "/spec/template/spec/providerSpec/value/cloudProviderSpec/virtualMachine/template";
    object.pointer_mut(template).unwrap()["secondaryDisks"] = disks.into();
    apply(plane, &object);
}

fn disk(name: &str, policy: &str) -> Value {
    json!({"name": name, "size": "1Gi", "hotpluggable": true, "removalPolicy": policy})
}

/// Returns the names of the disks of a VirtualMachine, from the names of its DataVolumes.
fn disks_of(vm: &Value) -> BTreeSet<String> {
    let templates = vm["spec"]["dataVolumeTemplates"].as_array().unwrap().iter();
    let names = templates.filter_map(|one| one["metadata"]["name"].as_str());
    names.filter_map(|name| Some(name.split_once("-disk-")?.1.to_owned())).collect()
}

fn wait_until_disks(plane: &ControlPlane, what: &str, is_reached: impl Fn(&[Value]) -> bool) {
    plane
        .wait_until(what, SHORT_TIMEOUT, |plane| is_reached(&machines(plane, NAME)).then_some(()))
        .unwrap_or_else(|error| panic!("{error}: {:#}", deployment_status(plane, NAME)["status"]));
}

/// Tests a webhook that cannot be called for changes of one machine: the API server answers with the status 500.
fn failed_requests_concern_one_machine(plane: &ControlPlane) {
    let all = machine_names(plane, NAME);
    let broken = all.first().unwrap();
    let label = format!("{BROKEN_LABEL}=true");
    plane.kubectl(&["label", "virtualmachine", broken, "-n", NAMESPACE, &label]).unwrap();
    let rule = json!({
        "apiGroups": ["kubevirt.io"], "apiVersions": ["v1"], "operations": ["UPDATE"],
        "resources": ["virtualmachines"],
    });
    let webhook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "broken"},
        "webhooks": [{
            "name": "broken.test.example", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "failurePolicy": "Fail", "timeoutSeconds": 1, "rules": [rule],
            "objectSelector": {"matchLabels": {BROKEN_LABEL: "true"}},
            "clientConfig": {"url": "https://127.0.0.1:1/"},
        }],
    });
    apply(plane, &webhook);
    // The API server reads configurations of webhooks with a delay.
    let refused = ["annotate", "virtualmachine", broken, "-n", NAMESPACE, "test=1", "--overwrite"];
    plane
        .wait_until("the webhook is called", SHORT_TIMEOUT, |plane| {
            plane.kubectl(&refused).is_err().then_some(())
        })
        .unwrap();
    set_disks(plane, &[disk("keep", "Retain"), disk("drop", "Delete")]);
    wait_until_disks(plane, "the other machine has the disks", |vms| {
        vms.iter().filter(|vm| disks_of(vm).len() == 2).count() == 1
    });
    wait_until_condition(plane, NAME, "DisksReady", "DiskRequestsFailed");
    wait_until_condition(plane, NAME, "DisksReady", broken);
    plane.kubectl(&["delete", "validatingwebhookconfiguration", "broken"]).unwrap();
    wait_until_disks(plane, "all machines have the disks", |vms| {
        vms.iter().all(|vm| disks_of(vm).len() == 2)
    });
}

fn data_of_removed_disks_is_kept_or_deleted(plane: &ControlPlane) {
    for vm in machines(plane, NAME) {
        create_data_volumes(plane, &vm);
    }
    set_disks(plane, &[]);
    wait_until_condition(plane, NAME, "DisksReady", "DisksRetained");
    wait_until_disks(plane, "the removed disks are recorded", |vms| {
        vms.iter().all(|vm| {
            let retained = &vm["metadata"]["annotations"]["berth.dev/retained-disks"];
            let name = vm["metadata"]["name"].as_str().unwrap();
            disks_of(vm).is_empty() && *retained == format!("{name}-disk-keep")
        })
    });
    plane
        .wait_until("the other DataVolumes are deleted", SHORT_TIMEOUT, |plane| {
            let volumes = data_volumes(plane, "drop");
            volumes.iter().all(is_deleted).then_some(())
        })
        .unwrap();
    let kept = data_volumes(plane, "keep");
    assert!(kept.len() == 2 && !kept.iter().any(is_deleted), "{kept:?}");
}

fn retained_disk_is_attached_again(plane: &ControlPlane) {
    set_disks(plane, &[disk("keep", "Retain")]);
    wait_until_disks(plane, "the disks are attached", |vms| {
        vms.iter().all(|vm| {
            let annotations = &vm["metadata"]["annotations"];
            disks_of(vm) == ["keep".to_owned()].into()
                && annotations["berth.dev/retained-disks"].is_null()
        })
    });
    plane
        .wait_until("the condition is removed", SHORT_TIMEOUT, |plane| {
            let object = deployment_status(plane, NAME);
            condition(&object, "DisksReady").is_null().then_some(())
        })
        .unwrap();
    let kept = data_volumes(plane, "keep");
    assert!(kept.len() == 2 && !kept.iter().any(is_deleted), "{kept:?}");
}

/// Creates the DataVolumes of the hotpluggable disks of a VirtualMachine, as KubeVirt does.
fn create_data_volumes(plane: &ControlPlane, vm: &Value) {
    let (name, uid) = (&vm["metadata"]["name"], &vm["metadata"]["uid"]);
    let owner = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": name, "uid": uid, "controller": true,
    });
    let templates = vm["spec"]["dataVolumeTemplates"].as_array().unwrap();
    for template in templates.iter().filter(|one| one["metadata"]["labels"].is_object()) {
        let mut metadata = template["metadata"].clone();
        metadata["namespace"] = NAMESPACE.into();
        metadata["ownerReferences"] = json!([owner]);
        apply(
            plane,
            &json!({
                "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume",
                "metadata": metadata, "spec": template["spec"],
            }),
        );
    }
}

fn data_volumes(plane: &ControlPlane, disk: &str) -> Vec<Value> {
    let label = format!("berth.dev/hotplug-disk={disk}");
    let list = plane.get_json(&["datavolumes", "-n", NAMESPACE, "-l", &label]).unwrap();
    list["items"].as_array().unwrap().clone()
}

fn is_deleted(volume: &Value) -> bool {
    !volume["metadata"]["deletionTimestamp"].is_null()
}
