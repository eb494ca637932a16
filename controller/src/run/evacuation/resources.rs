//! Kind of the migrations that the reconciler of evacuations reads, and functions that remove unused fields before
//! objects are stored.

use kube::api::{ApiResource, DynamicObject};
use serde_json::{Value, json};

use crate::api_resource::api_resource;

pub(super) fn migration_resource() -> ApiResource {
    let kind = "VirtualMachineInstanceMigration";
    api_resource("kubevirt.io", "v1", kind, "virtualmachineinstancemigrations")
}

pub(super) fn trim_machine(object: &mut DynamicObject) {
    object.metadata.managed_fields = None;
    object.data = Value::Null;
}

pub(super) fn trim_migration(object: &mut DynamicObject) {
    object.metadata.managed_fields = None;
    object.metadata.annotations = None;
    let instance = object.data.pointer("/spec/vmiName").cloned().unwrap_or_default();
    object.data = json!({"spec": {"vmiName": instance}});
}
