//! DataVolumes of a machine.

use serde_json::{Map, Value, json};

use super::image::image_source;
use super::machine_disk::MachineDisk;
use super::renderer::MachineRenderer;

/// Returns `spec.dataVolumeTemplates`. `annotations` are those of the first disk.
pub(super) fn render_data_volumes(
    machine: &MachineRenderer<'_>,
    annotations: Map<String, Value>,
) -> Vec<Value> {
    let source = image_source(machine).to_data_volume_source();
    let disks = MachineDisk::all(machine);
    let mut volumes: Vec<Value> = disks.iter().map(|disk| render_disk(disk, &source)).collect();
    if let Some(first) = volumes.first_mut().filter(|_| !annotations.is_empty()) {
        first["metadata"]["annotations"] = annotations.into();
    }
    volumes
}

fn render_disk(disk: &MachineDisk<'_>, image: &Value) -> Value {
    let mut claim = json!({
        "accessModes": [disk.access_mode], "resources": {"requests": {"storage": &**disk.size}},
    });
    if !disk.storage_class.is_empty() {
        claim["storageClassName"] = (**disk.storage_class).into();
    }
    let field = if disk.is_pvc { "pvc" } else { "storage" };
    let source = if disk.is_blank { json!({"blank": {}}) } else { image.clone() };
    json!({"metadata": {"name": disk.name}, "spec": {field: claim, "source": source}})
}
