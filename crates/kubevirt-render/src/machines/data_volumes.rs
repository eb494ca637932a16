//! DataVolumes of a machine.

use berth_api::names::{CLONED_FROM_LABEL, HOTPLUG_DISK_LABEL, REMOVAL_POLICY_ANNOTATION};
use serde_json::{Map, Value, json};

use super::disk_checks::check_disk;
use super::disk_clone::{DiskClone, plan_clone};
use super::disks::RemovalPolicy;
use super::image::DiskImage;
use super::machine_disk::{MachineDisk, sets_volume_modes};
use super::renderer::MachineRenderer;
use crate::images::{GoldenImage, GoldenImageUse};

/// DataVolumes of a machine.
#[derive(Default)]
pub(super) struct DataVolumes {
    /// `spec.dataVolumeTemplates`.
    pub(super) templates: Vec<Value>,
    /// Golden images of which the DataVolumes are clones.
    pub(super) golden_images: Vec<GoldenImageUse>,
    /// DataVolumes that are clones of golden images, with the strategy, as far as it is known.
    pub(super) clones: Vec<DiskClone>,
}

/// Renders the DataVolumes of a machine. `annotations` are those of the first disk.
pub(super) fn render_data_volumes(
    machine: &MachineRenderer<'_>,
    annotations: Map<String, Value>,
) -> DataVolumes {
    let image = DiskImage::of_machine(machine);
    let source = image.source.to_data_volume_source();
    let mut volumes = DataVolumes::default();
    for disk in MachineDisk::all(machine, image.is_golden) {
        let golden = image.golden_image(machine, &disk);
        check_disk(machine, &disk, &image, golden.as_ref());
        volumes
            .clones
            .extend(golden.as_ref().and_then(|golden| plan_clone(machine, &disk, golden)));
        volumes.templates.push(render_disk(machine, &disk, &source, golden.as_ref()));
        // A size that is not a quantity is an error, so the machine is not created.
        if let (Some(golden), Ok(size)) = (golden, disk.size.parse_quantity()) {
            GoldenImageUse::add(&mut volumes.golden_images, golden, size);
        }
    }
    if let Some(first) = volumes.templates.first_mut().filter(|_| !annotations.is_empty()) {
        first["metadata"]["annotations"] = annotations.into();
    }
    volumes
}

fn render_disk(
    machine: &MachineRenderer<'_>,
    disk: &MachineDisk<'_>,
    image: &Value,
    golden: Option<&GoldenImage>,
) -> Value {
    let mut claim = json!({
        "accessModes": [&*disk.access_mode], "resources": {"requests": {"storage": &**disk.size}},
    });
    if !disk.storage_class.is_empty() {
        claim["storageClassName"] = (**disk.storage_class).into();
    }
    if let Some(mode) = disk.volume_mode.filter(|_| sets_volume_modes(machine)) {
        claim["volumeMode"] = mode.as_str().into();
    }
    let field = if disk.is_pvc { "pvc" } else { "storage" };
    let mut spec = json!({field: claim});
    let mut metadata = json!({"name": disk.name});
    if let Some(golden) = golden {
        metadata["labels"] = json!({CLONED_FROM_LABEL: golden.name()});
    }
    // A hotpluggable disk is empty, so it is no clone.
    if let Some(hotplug) = disk.hotplug {
        metadata["labels"] = json!({HOTPLUG_DISK_LABEL: hotplug.name});
        if hotplug.removal_policy == RemovalPolicy::Delete {
            let policy = hotplug.removal_policy.name();
            metadata["annotations"] = json!({REMOVAL_POLICY_ANNOTATION: policy});
        }
    }
    match golden {
        Some(golden) => spec["sourceRef"] = golden.source_ref(),
        None if disk.is_blank => spec["source"] = json!({"blank": {}}),
        None => spec["source"] = image.clone(),
    }
    if disk.is_preallocated {
        spec["preallocation"] = true.into();
    }
    json!({"metadata": metadata, "spec": spec})
}
