//! Kinds of the objects that the reconciler of MachineDeployments reads, and functions that remove unused fields
//! before the objects are stored.

use kube::api::{ApiResource, DynamicObject};
use serde_json::{Value, json};

use crate::api_resource::api_resource;
use crate::run::packed_content::pack_content;
use berth_kubevirt_render::machines::MACHINE_DEPLOYMENT_GROUP;
use berth_kubevirt_render::machines::hotplug::copy_disks;

/// Returns the kind Machine of machine-controller.
pub(super) fn machine_controller_machine_resource() -> ApiResource {
    api_resource(MACHINE_DEPLOYMENT_GROUP, "v1alpha1", "Machine", "machines")
}

pub(super) fn instance_resource() -> ApiResource {
    api_resource("kubevirt.io", "v1", "VirtualMachineInstance", "virtualmachineinstances")
}

pub(super) fn data_volume_resource() -> ApiResource {
    api_resource("cdi.kubevirt.io", "v1beta1", "DataVolume", "datavolumes")
}

pub(super) fn remove_managed_fields(object: &mut DynamicObject) {
    object.metadata.managed_fields = None;
}

/// Removes the unused fields of a VirtualMachine, because the store may contain ten thousand VirtualMachines.
pub(super) fn trim_machine(object: &mut DynamicObject) {
    object.metadata.managed_fields = None;
    let strategy = object.data.pointer("/spec/runStrategy").cloned().unwrap_or_default();
    let mut trimmed = json!({"spec": {"runStrategy": strategy}});
    let interfaces = object.data.pointer("/spec/template/spec/domain/devices/interfaces");
    let interfaces = interfaces.and_then(Value::as_array).into_iter().flatten();
    // The Ethernet addresses of the interfaces are needed to render the user data of the machine.
    let with_mac: Vec<Value> = interfaces
        .filter(|one| one["macAddress"].is_string())
        .map(|one| json!({"name": one["name"], "macAddress": one["macAddress"]}))
        .collect();
    if !with_mac.is_empty() {
        let devices = json!({"interfaces": with_mac});
        trimmed["spec"]["template"] = json!({"spec": {"domain": {"devices": devices}}});
    }
    // Differences of disks that cannot be changed are found without a request.
    copy_disks(&object.data, &mut trimmed);
    object.data = trimmed;
    pack_content(object);
}

/// Packs the content of a Service, to save memory. The content is only compared with that of the desired Service.
pub(super) fn pack_service(object: &mut DynamicObject) {
    object.metadata.managed_fields = None;
    pack_content(object);
}

pub(super) fn keep_metadata_only(object: &mut DynamicObject) {
    object.metadata.managed_fields = None;
    object.data = Value::Null;
}

#[cfg(test)]
mod tests {
    use berth_kubevirt_render::machines::reconcile_steps::ExistingVm;

    use super::*;
    use crate::run::packed_content::unpack_content;

    #[test]
    fn a_stored_machine_has_all_fields_that_are_read() {
        let interfaces = json!([
            {"name": "default", "bridge": {}},
            {"name": "tenant", "bridge": {}, "macAddress": "02:00:00:00:00:01"},
        ]);
        for devices in [json!({"interfaces": interfaces}), json!({"interfaces": [7, {}]}), json!(1)]
        {
            let mut object: DynamicObject = serde_json::from_value(json!({
                "metadata": {"name": "web-1", "namespace": "cluster-a", "uid": "u", "labels": {"md": "web"}},
                "spec": {"runStrategy": "Once", "template": {"spec": {"domain": {"devices": devices, "cpu": {}}}}},
            }))
            .unwrap();
            let before = ExistingVm::from_objects(&serde_json::to_value(&object).unwrap(), None);
            trim_machine(&mut object);
            let stored = serde_json::to_value(unpack_content(&object)).unwrap();
            assert_eq!(ExistingVm::from_objects(&stored, None), before, "{devices}");
        }
    }
}
