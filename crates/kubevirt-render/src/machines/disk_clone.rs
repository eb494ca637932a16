//! Disks of a machine that are clones of golden images.

use std::fmt;

use berth_api::Quantity;

use super::machine_disk::MachineDisk;
use super::render_context::RenderContext;
use super::renderer::MachineRenderer;
use crate::images::{ClonePlan, CloneRequest, CloneVolume, GoldenImage};

/// A disk that is a clone of a golden image, and how CDI will create it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskClone {
    /// Name of the DataVolume of the disk.
    pub disk: String,
    /// Namespace of the golden image.
    pub image_namespace: String,
    /// Name of the golden image.
    pub image_name: String,
    /// Strategy with which CDI clones the disk.
    pub plan: ClonePlan,
}

impl fmt::Display for DiskClone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { disk, image_namespace, image_name, plan } = self;
        write!(f, "disk {disk} from DataSource {image_namespace}/{image_name}: {plan}")
    }
}

/// Returns how CDI clones a disk from a golden image; `None` if the storage class is unknown, or if the image has a
/// schedule.
pub(super) fn plan_clone(
    machine: &MachineRenderer<'_>,
    disk: &MachineDisk<'_>,
    golden: &GoldenImage,
) -> Option<DiskClone> {
    let plan = plan_image_clone(machine.context, golden, disk.size.parse_quantity().ok())?;
    let (image_namespace, image_name) = (golden.namespace.clone(), golden.name());
    Some(DiskClone { disk: disk.name.clone(), image_namespace, image_name, plan })
}

/// Returns how CDI clones a disk of this size from a golden image; `None` if the storage class is unknown, or if the image
/// has a schedule: CDI keeps such images as volumes or as snapshots. The disk has the volume mode of the golden image. No
/// pod uses a golden image after its import.
#[must_use]
pub fn plan_image_clone(
    context: &RenderContext,
    golden: &GoldenImage,
    disk_size: Option<Quantity>,
) -> Option<ClonePlan> {
    let class = context.storage_classes.get(&golden.storage_class)?;
    if class.provisioner.is_empty() || golden.schedule.is_some() {
        return None;
    }
    let key = (golden.namespace.clone(), golden.name());
    let existing = context.data_volumes.get(&key).and_then(|volume| volume.size);
    let volume = |size| CloneVolume {
        provisioner: &class.provisioner,
        profile: context.storage_profiles.get(&golden.storage_class),
        volume_mode: golden.volume_mode,
        size,
    };
    Some(ClonePlan::new(&CloneRequest {
        source: volume(existing.or(golden.size)),
        target: volume(disk_size),
        allows_expansion: class.allows_expansion,
        snapshot_classes: context.snapshot_classes.as_deref(),
        strategy_override: context.clone_strategy_override,
        has_csi_driver: context.has_csi_driver(&class.provisioner),
        is_source_in_use: false,
    }))
}
