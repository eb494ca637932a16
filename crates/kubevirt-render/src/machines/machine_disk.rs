//! Disks of a machine that have a DataVolume: the first disk and the secondary disks.

use berth_api::{Images, Preallocation};

use super::config_var::ConfigVar;
use super::disks::{HotplugFields, PrimaryDisk, SecondaryDisk};
use super::renderer::MachineRenderer;
use super::scheduling::find_instancetype;
use super::storage::secondary_disk_names;
use crate::images::{READ_WRITE_ONCE, StorageProfile, VolumeMode};

/// Path of the configuration of the provider in a MachineDeployment.
const CLOUD_PROVIDER_PATH: &str = "spec.template.spec.providerSpec.value.cloudProviderSpec";
/// Path of the first disk in a MachineDeployment.
pub(super) const PRIMARY_DISK_PATH: &str =
    "spec.template.spec.providerSpec.value.cloudProviderSpec.virtualMachine.template.primaryDisk";

/// Field of a disk in the providerSpec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DiskField {
    Size,
    StorageClass,
    AccessMode,
}

/// A disk of a machine.
pub(super) struct MachineDisk<'a> {
    /// Position in `secondaryDisks`; `None` for the first disk.
    index: Option<usize>,
    /// True if the providerSpec has the older flat form (fields directly in `cloudProviderSpec`).
    is_flat: bool,
    /// Name of the DataVolume and of its PersistentVolumeClaim.
    pub(super) name: String,
    pub(super) size: &'a ConfigVar,
    pub(super) storage_class: &'a ConfigVar,
    pub(super) access_mode: ConfigVar,
    /// Volume mode of the claim; `None` if it is unknown.
    pub(super) volume_mode: Option<VolumeMode>,
    /// True if the disk is fully allocated when it is created.
    pub(super) is_preallocated: bool,
    /// True if the DataVolume describes its PersistentVolumeClaim in `spec.pvc`, false if in `spec.storage`.
    pub(super) is_pvc: bool,
    /// True if the disk is created empty, false if it has the image of the machine.
    pub(super) is_blank: bool,
    /// Set if the disk is attached to running machines and detached from them.
    pub(super) hotplug: Option<&'a HotplugFields>,
}

impl<'a> MachineDisk<'a> {
    /// Returns the disks of a machine, beginning with the first disk. `is_golden` is true if the disks with the image of
    /// the machine are clones of a golden image.
    pub(super) fn all(machine: &MachineRenderer<'a>, is_golden: bool) -> Vec<Self> {
        let PrimaryDisk { size, storage_class, is_pvc, .. } = &machine.provider.primary_disk;
        if is_golden && *is_pvc && !machine.provider.is_flat {
            let message = "is ignored: CDI adds the overhead of a file system to a golden image, which a claim in spec.pvc \
                would not have";
            let path = format!("{PRIMARY_DISK_PATH}.storageTarget");
            machine.reporter.report_warning(&path, "pvc", message);
        }
        let is_flat = machine.provider.is_flat;
        let first = Self {
            index: None,
            is_flat,
            name: machine.name.clone(),
            size,
            storage_class,
            access_mode: first_access_mode(machine),
            volume_mode: None,
            is_preallocated: false,
            is_pvc: *is_pvc && !is_golden,
            is_blank: false,
            hotplug: None,
        };
        let mut disks = vec![first];
        let secondary = &machine.provider.secondary_disks;
        let names = secondary_disk_names(&machine.name, secondary);
        for (index, (disk, names)) in secondary.iter().zip(names).enumerate() {
            let SecondaryDisk { size, storage_class, access_mode, is_blank, hotplug } = disk;
            // As in machine-controller, a disk that is cloned from the image has the access mode of the first disk. A blank
            // disk, which only Berth supports, has its own access mode.
            let access_mode = if *is_blank {
                access_mode_or_default(machine, access_mode, storage_class)
            } else {
                first_access_mode(machine)
            };
            disks.push(Self {
                index: Some(index),
                is_flat,
                name: names.claim,
                size,
                storage_class,
                access_mode,
                volume_mode: None,
                is_preallocated: false,
                is_pvc: *is_blank || !is_golden,
                is_blank: *is_blank,
                hotplug: hotplug.as_ref(),
            });
        }
        let has_performance = has_performance_disks(machine);
        for disk in &mut disks {
            disk.volume_mode = disk.find_volume_mode(machine);
            let is_file = disk.volume_mode == Some(VolumeMode::Filesystem);
            disk.is_preallocated = has_performance && is_file;
        }
        disks
    }

    /// Returns the path of a field in the MachineDeployment. The flat form has no field for the access mode, which results
    /// from the storage class.
    pub(super) fn path(&self, field: DiskField) -> String {
        let name = match field {
            DiskField::Size => "size",
            DiskField::StorageClass => "storageClassName",
            DiskField::AccessMode => "storageAccessType",
        };
        match (self.index, field) {
            (Some(index), _) => {
                format!(
                    "{CLOUD_PROVIDER_PATH}.virtualMachine.template.secondaryDisks[{index}].{name}"
                )
            }
            (None, DiskField::Size) if self.is_flat => format!("{CLOUD_PROVIDER_PATH}.pvcSize"),
            (None, _) if self.is_flat => format!("{CLOUD_PROVIDER_PATH}.storageClassName"),
            (None, _) => format!("{PRIMARY_DISK_PATH}.{name}"),
        }
    }

    /// Returns the volume mode of the claim. CDI chooses the volume mode of a claim in `spec.storage` from the
    /// StorageProfile. A claim in `spec.pvc` has a file system unless Berth sets its volume mode.
    fn find_volume_mode(&self, machine: &MachineRenderer<'_>) -> Option<VolumeMode> {
        let profile = machine.context.storage_profiles.get(&**self.storage_class);
        let of_profile = profile.and_then(|profile| profile.volume_mode(&self.access_mode));
        let default = self.is_pvc.then_some(VolumeMode::Filesystem);
        if self.is_pvc && !sets_volume_modes(machine) { default } else { of_profile.or(default) }
    }
}

/// Returns true if the claims of disks have an explicit volume mode. Without golden images, DataVolumes are those of
/// machine-controller.
pub(super) fn sets_volume_modes(machine: &MachineRenderer<'_>) -> bool {
    machine.context.config.images.as_ref().is_some_and(Images::has_golden_images)
}

/// Returns true if the disks of the machine are fully allocated if they are files.
fn has_performance_disks(machine: &MachineRenderer<'_>) -> bool {
    let images = machine.context.config.images.as_ref();
    images.is_some_and(|images| images.preallocation() == Preallocation::Performance)
        && find_instancetype(machine).is_some_and(|(_, fields)| fields.has_dedicated_cpus)
}

fn first_access_mode(machine: &MachineRenderer<'_>) -> ConfigVar {
    let disk = &machine.provider.primary_disk;
    access_mode_or_default(machine, &disk.access_mode, &disk.storage_class)
}

/// Returns the access mode of a disk: that of the providerSpec, otherwise the default of the StorageProfile.
fn access_mode_or_default(
    machine: &MachineRenderer<'_>,
    access_mode: &ConfigVar,
    storage_class: &str,
) -> ConfigVar {
    if !access_mode.is_empty() {
        return access_mode.clone();
    }
    let profile = machine.context.storage_profiles.get(storage_class);
    profile.map_or(READ_WRITE_ONCE, StorageProfile::default_access_mode).to_owned().into()
}
