//! Machines with PCI devices of hosts (`gpus` and `hostDevices`), and the entries of `permittedHostDevices` that the controller
//! adds to the KubeVirt object.

use berth_api::names::PERMITTED_DEVICES_ANNOTATION;
use berth_api::names::condition::HOST_DEVICES_READY;
use berth_tests::cluster::condition;
use berth_tests::repository;
use serde_json::{Value, json};

use crate::host::VF_RESOURCE;
use crate::hosts::DEVICE_HOST;
use crate::hotplug_gates::{developer_configuration, write_configuration};
use crate::machines::{
    BANK_NAMESPACE, launcher_pod, machines, wait_until_machines_run, wait_until_reported,
};
use crate::predictions::launcher_pods_equal_their_predictions;
use crate::testbed::{Testbed, text};

const DEPLOYMENT: &str = "devices";
/// Feature gate that `hostDevices` of machines need; it is disabled by default.
const GATE: &str = "HostDevices";
/// Vendor and device of the PCI functions.
const ID: &str = "8086:154c";

/// Tests that virt-api and virt-controller refuse a machine with devices until the gate is enabled and the device is
/// permitted, and that its launcher pod then gets both devices, on the host and in the zone that have them.
pub(crate) fn machines_get_permitted_devices(bed: &Testbed) {
    let configured = developer_configuration(bed);
    let object = ["machinedeployment", DEPLOYMENT, "-n", BANK_NAMESPACE];
    set_host_devices(bed, &json!({"allowed": [{"resourceName": VF_RESOURCE, "ids": [ID]}]}));
    bed.plane.apply(&new_deployment().to_string()).unwrap();
    bed.wait_until("virt-api refuses the machine without the gate", &object, || {
        let deployment = bed.get("machinedeployment", BANK_NAMESPACE, DEPLOYMENT);
        let valid = condition(&deployment, "Valid");
        let message = text(&valid["message"]);
        (valid["status"] == "False" && message.contains("feature gate is not enabled"))
            .then_some(())
    });
    let mut with_gate = configured.clone();
    with_gate["featureGates"].as_array_mut().unwrap().push(GATE.into());
    write_configuration(bed, &with_gate);
    let name = bed.wait_until("virt-controller refuses the device", &object, || {
        let machine = machines(bed, BANK_NAMESPACE, DEPLOYMENT).pop()?;
        let name = text(&machine["metadata"]["name"]).to_owned();
        let instance = bed.get("vmi", BANK_NAMESPACE, &name);
        let message = text(&condition(&instance, "Synchronized")["message"]).to_owned();
        let is_refused = message.contains(&format!("GPU {VF_RESOURCE} is not permitted"));
        (is_refused && bed.pods_of(&instance).is_empty()).then_some(name)
    });

    let component = repository().join("deploy/components/manage-host-devices/rbac.yaml");
    bed.plane.apply_file(&component).unwrap();
    set_host_devices(bed, &json!({"manage": true}));
    wait_until_permitted(bed, &[entry()]);
    assert_eq!(developer_configuration(bed), with_gate, "another field was changed");
    let machine = wait_until_machines_run(bed, BANK_NAMESPACE, DEPLOYMENT, 1).remove(0);
    assert_eq!(machine["metadata"]["name"], *name);
    let pod = launcher_pod(bed, BANK_NAMESPACE, &machine);
    let (host, zone) = DEVICE_HOST;
    assert_eq!(pod["spec"]["nodeName"], host);
    assert_eq!(pod["spec"]["containers"][0]["resources"]["requests"][VF_RESOURCE], "2", "{pod:#}");
    assert_eq!(wait_until_reported(bed, &pod)["zones"], json!([zone]));
    launcher_pods_equal_their_predictions(bed);
    bed.assert_kubelets_admit();

    bed.patch("machinedeployment", BANK_NAMESPACE, DEPLOYMENT, &json!({"spec": {"replicas": 0}}));
    wait_until_machines_run(bed, BANK_NAMESPACE, DEPLOYMENT, 0);
    let delete = ["delete", "machinedeployment", DEPLOYMENT, "-n", BANK_NAMESPACE];
    bed.plane.kubectl(&delete).unwrap();

    // If another client has written the list, the controller changes no entry.
    let other = json!({"pciVendorSelector": "10de:1eb8", "resourceName": "nvidia.com/T4"});
    let list = json!({"pciHostDevices": [entry(), other]});
    let fields = json!({"spec": {"configuration": {"permittedHostDevices": list}}});
    bed.patch("kubevirt", "kubevirt", "kubevirt", &fields);
    set_host_devices(bed, &json!({"allowed": []}));
    let config = ["infraconfig", "default"];
    bed.wait_until("the controller reports the other field manager", &config, || {
        let config = bed.get("infraconfig", "default", "default");
        (condition(&config, HOST_DEVICES_READY)["reason"] == "FieldsOwnedByOthers").then_some(())
    });
    assert_eq!(permitted(bed), json!([entry(), other]));
    let unset = json!({"spec": {"configuration": {"permittedHostDevices": null}}});
    bed.patch("kubevirt", "kubevirt", "kubevirt", &unset);
    set_host_devices(bed, &Value::Null);
    write_configuration(bed, &configured);
}

fn new_deployment() -> Value {
    let device = json!({"resourceName": VF_RESOURCE});
    let template = json!({
        "primaryDisk": {"size": "20Gi"}, "gpus": [device],
        "hostDevices": [{"name": "scratch", "resourceName": VF_RESOURCE}],
    });
    let machine = json!({"flavor": {"name": "performance-2"}, "template": template});
    let value = json!({
        "cloudProvider": "kubevirt", "operatingSystem": "ubuntu", "operatingSystemSpec": {},
        "cloudProviderSpec": {"virtualMachine": machine},
    });
    json!({
        "apiVersion": "cluster.k8s.io/v1alpha1", "kind": "MachineDeployment",
        "metadata": {"name": DEPLOYMENT, "namespace": BANK_NAMESPACE},
        "spec": {
            "replicas": 1, "selector": {"matchLabels": {"name": DEPLOYMENT}},
            "template": {
                "metadata": {"labels": {"name": DEPLOYMENT}},
                "spec": {"providerSpec": {"value": value}, "versions": {"kubelet": "1.33.4"}},
            },
        },
    })
}

/// Returns the entry of the KubeVirt object that permits the devices.
fn entry() -> Value {
    json!({"pciVendorSelector": ID, "resourceName": VF_RESOURCE})
}

/// Merges fields into `spec.hostDevices` of the InfraConfig.
fn set_host_devices(bed: &Testbed, fields: &Value) {
    bed.patch("infraconfig", "default", "default", &json!({"spec": {"hostDevices": fields}}));
}

fn permitted(bed: &Testbed) -> Value {
    let kubevirt = bed.get("kubevirt", "kubevirt", "kubevirt");
    kubevirt["spec"]["configuration"]["permittedHostDevices"]["pciHostDevices"].clone()
}

/// Waits until the KubeVirt object has exactly these entries, all of them recorded as entries of the controller.
fn wait_until_permitted(bed: &Testbed, entries: &[Value]) {
    bed.wait_until("the KubeVirt object permits the devices", &["infraconfig", "default"], || {
        let config = bed.get("infraconfig", "default", "default");
        let is_ready = condition(&config, HOST_DEVICES_READY)["reason"] == "DevicesPermitted";
        (is_ready && permitted(bed) == json!(entries)).then_some(())
    });
    let kubevirt = bed.get("kubevirt", "kubevirt", "kubevirt");
    let recorded = &kubevirt["metadata"]["annotations"][PERMITTED_DEVICES_ANNOTATION];
    assert_eq!(*recorded, format!("{ID}={VF_RESOURCE}"));
}
