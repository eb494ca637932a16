//! Lists of a VirtualMachine that describe its disks, as JSON pointers.

use serde_json::Value;

pub(super) const TEMPLATES: &str = "/spec/dataVolumeTemplates";
pub(super) const VOLUMES: &str = "/spec/template/spec/volumes";
pub(super) const DISKS: &str = "/spec/template/spec/domain/devices/disks";

/// Returns the elements of a list; none if the list is absent or has another type.
pub(super) fn elements<'v>(
    object: &'v Value,
    list: &str,
) -> impl Iterator<Item = &'v Value> + use<'v> {
    object.pointer(list).and_then(Value::as_array).into_iter().flatten()
}
