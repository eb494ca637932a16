//! Feature gates without which KubeVirt changes no disks of running machines: the controller and the preflight report each
//! of them, and virt-controller indeed attaches no volume.

use berth_tests::check::CheckOutput;
use berth_tests::cluster::condition;
use serde_json::{Value, json};

use crate::hotplug::{
    DEPLOYMENT, deployment, disk, has_volume, identities, set_disks, wait_until_disks_are_ready,
};
use crate::machines::{SHOP_NAMESPACE, machines};
use crate::testbed::{Testbed, text};

/// Feature gate that a later release replaces. It has precedence, and disables [`DECLARATIVE_GATE`].
const IMPERATIVE_GATE: &str = "HotplugVolumes";
const DECLARATIVE_GATE: &str = "DeclarativeHotplugVolumes";

/// Tests both gates: that which is missing, and that which disables the other.
pub(crate) fn gates_are_reported_as_kubevirt_applies_them(bed: &Testbed) {
    let configured = developer_configuration(bed);
    let before = identities(bed);
    for gate in [IMPERATIVE_GATE, DECLARATIVE_GATE] {
        write_configuration(bed, &without_hotplug(&configured, gate));
        set_disks(bed, &json!([disk("1Gi")]));
        bed.wait_until(&format!("the machines report {gate}"), &deployment(), || {
            let deployment = bed.get("machinedeployment", SHOP_NAMESPACE, DEPLOYMENT);
            let disks = condition(&deployment, "DisksReady");
            let is_named = text(&disks["message"]).contains(gate);
            (disks["reason"] == "HotplugUnsupported" && is_named).then_some(())
        });
        let output = CheckOutput::run(&bed.plane.kubeconfig(), &["kubevirt.hotplug"]).unwrap();
        output.require(&[("kubevirt.hotplug", "FAIL")]).unwrap();
        assert!(output.stdout.contains(gate), "{}", output.stdout);
        assert_kubevirt_attaches_nothing(bed);
        set_disks(bed, &json!([]));
        wait_until_disks_are_ready(bed);
        write_configuration(bed, &configured);
    }
    assert_eq!(identities(bed), before, "a machine was replaced or restarted");
    let output = CheckOutput::run(&bed.plane.kubeconfig(), &["kubevirt.hotplug"]).unwrap();
    output.require(&[("kubevirt.hotplug", "SKIP")]).unwrap();
}

/// Adds the disk to the VirtualMachine of a machine, in place of the controller, and checks that virt-controller observes
/// the VirtualMachine and does not change its instance. Then removes the disk.
fn assert_kubevirt_attaches_nothing(bed: &Testbed) {
    let machine = machines(bed, SHOP_NAMESPACE, DEPLOYMENT).remove(0);
    let name = text(&machine["metadata"]["name"]);
    let spec = &machine["spec"]["template"]["spec"];
    let with = |list: &Value, new: Value| -> Value {
        list.as_array().unwrap().iter().cloned().chain([new]).collect()
    };
    let write = |disks: &Value, volumes: &Value| {
        let devices = json!({"domain": {"devices": {"disks": disks}}, "volumes": volumes});
        let fields = json!({"spec": {"template": {"spec": devices}}});
        bed.patch("virtualmachine", SHOP_NAMESPACE, name, &fields);
        bed.wait_until(
            "virt-controller has observed the change",
            &["vm", name, "-n", SHOP_NAMESPACE],
            || {
                let vm = bed.get("virtualmachine", SHOP_NAMESPACE, name);
                (vm["status"]["desiredGeneration"] == vm["metadata"]["generation"]).then_some(())
            },
        );
    };
    let disks = &spec["domain"]["devices"]["disks"];
    let device = json!({"name": "disk-data", "disk": {"bus": "scsi"}});
    let volume = json!({
        "name": "disk-data", "persistentVolumeClaim": {"claimName": "manual", "hotpluggable": true},
    });
    write(&with(disks, device), &with(&spec["volumes"], volume));
    let instance = bed.get("vmi", SHOP_NAMESPACE, name);
    assert!(!has_volume(&instance), "KubeVirt attaches the volume: {instance:#}");
    write(disks, &spec["volumes"]);
}

/// Returns `spec.configuration.developerConfiguration` of the KubeVirt object.
pub(crate) fn developer_configuration(bed: &Testbed) -> Value {
    let kubevirt = bed.get("kubevirt", "kubevirt", "kubevirt");
    kubevirt["spec"]["configuration"]["developerConfiguration"].clone()
}

/// Returns the configuration with which KubeVirt attaches no volumes because of this gate.
fn without_hotplug(configured: &Value, gate: &str) -> Value {
    let mut configuration = configured.clone();
    let gates = configuration["featureGates"].as_array_mut().unwrap();
    if gate == IMPERATIVE_GATE {
        gates.push(gate.into());
    } else {
        gates.retain(|one| *one != gate);
        // The gate is enabled by default since 1.9.
        configuration["disabledFeatureGates"] = json!([gate]);
    }
    configuration
}

/// Replaces the lists of feature gates of the KubeVirt object.
pub(crate) fn write_configuration(bed: &Testbed, configuration: &Value) {
    let mut developer = configuration.clone();
    // In a merge patch, null removes the field.
    developer["disabledFeatureGates"] = configuration["disabledFeatureGates"].clone();
    let fields = json!({"spec": {"configuration": {"developerConfiguration": developer}}});
    bed.patch("kubevirt", "kubevirt", "kubevirt", &fields);
}
