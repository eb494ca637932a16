//! Kinds of the objects that the reconciler of MachineDeployments reads, and functions that remove unused fields
//! before the objects are stored.

use kube::api::{ApiResource, DynamicObject};
use serde_json::{Value, json};

use crate::api_resource::api_resource;
use crate::run::packed_content::pack_content;
use berth_kubevirt_render::machines::{MACHINE_DEPLOYMENT_GROUP, MACHINE_DEPLOYMENT_KIND};

pub(super) fn deployment_resource() -> ApiResource {
    api_resource(
        MACHINE_DEPLOYMENT_GROUP,
        "v1alpha1",
        MACHINE_DEPLOYMENT_KIND,
        "machinedeployments",
    )
}

/// Returns the kind Machine of machine-controller.
pub(super) fn foreign_machine_resource() -> ApiResource {
    api_resource(MACHINE_DEPLOYMENT_GROUP, "v1alpha1", "Machine", "machines")
}

pub(super) fn machine_resource() -> ApiResource {
    api_resource("kubevirt.io", "v1", "VirtualMachine", "virtualmachines")
}

pub(super) fn instance_resource() -> ApiResource {
    api_resource("kubevirt.io", "v1", "VirtualMachineInstance", "virtualmachineinstances")
}

pub(super) fn remove_managed_fields(object: &mut DynamicObject) {
    object.metadata.managed_fields = None;
}

/// Removes the fields of a VirtualMachine that are not used, because the store contains ten thousand VirtualMachines.
pub(super) fn trim_machine(object: &mut DynamicObject) {
    object.metadata.managed_fields = None;
    let strategy = object.data.pointer("/spec/runStrategy").cloned().unwrap_or_default();
    object.data = json!({"spec": {"runStrategy": strategy}});
    pack_content(object);
}

/// Packs the content of a Service, which is only compared.
pub(super) fn pack_service(object: &mut DynamicObject) {
    object.metadata.managed_fields = None;
    pack_content(object);
}

pub(super) fn keep_metadata_only(object: &mut DynamicObject) {
    object.metadata.managed_fields = None;
    object.data = Value::Null;
}
