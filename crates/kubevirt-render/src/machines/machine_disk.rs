//! Disks of a machine that have a DataVolume: the first disk and the secondary disks.

use super::config_var::ConfigVar;
use super::disks::{PrimaryDisk, SecondaryDisk};
use super::renderer::MachineRenderer;
use super::storage::claim_name;
use crate::images::{READ_WRITE_ONCE, StorageProfile};

/// A disk of a machine.
pub(super) struct MachineDisk<'a> {
    /// Name of the DataVolume and of its PersistentVolumeClaim.
    pub(super) name: String,
    pub(super) size: &'a ConfigVar,
    pub(super) storage_class: &'a ConfigVar,
    pub(super) access_mode: String,
    /// True if the DataVolume describes its PersistentVolumeClaim in `spec.pvc`, false if in `spec.storage`.
    pub(super) is_pvc: bool,
    /// True if the disk is created empty, false if it has the image of the machine.
    pub(super) is_blank: bool,
}

impl<'a> MachineDisk<'a> {
    /// Returns the disks of a machine, beginning with the first disk.
    pub(super) fn all(machine: &MachineRenderer<'a>) -> Vec<Self> {
        let PrimaryDisk { size, storage_class, is_pvc, .. } = &machine.provider.primary_disk;
        let first = Self {
            name: machine.name.clone(),
            size,
            storage_class,
            access_mode: first_access_mode(machine),
            is_pvc: *is_pvc,
            is_blank: false,
        };
        let mut disks = vec![first];
        for (index, disk) in machine.provider.secondary_disks.iter().enumerate() {
            let SecondaryDisk { size, storage_class, access_mode, is_blank } = disk;
            // As in machine-controller, a disk that is cloned from the image has the access mode of the first disk. A blank
            // disk, which only Berth supports, has its own access mode.
            let access_mode = if *is_blank {
                access_mode_or_default(machine, access_mode, storage_class)
            } else {
                first_access_mode(machine)
            };
            disks.push(Self {
                name: claim_name(&machine.name, index),
                size,
                storage_class,
                access_mode,
                is_pvc: true,
                is_blank: *is_blank,
            });
        }
        disks
    }
}

fn first_access_mode(machine: &MachineRenderer<'_>) -> String {
    let disk = &machine.provider.primary_disk;
    access_mode_or_default(machine, &disk.access_mode, &disk.storage_class)
}

/// Returns the access mode of a disk: that of the providerSpec, otherwise the default of the StorageProfile.
fn access_mode_or_default(
    machine: &MachineRenderer<'_>,
    access_mode: &ConfigVar,
    storage_class: &str,
) -> String {
    if !access_mode.is_empty() {
        return access_mode.clone().into_plain_string();
    }
    let profile = machine.context.storage_profiles.get(storage_class);
    profile.map_or(READ_WRITE_ONCE, StorageProfile::default_access_mode).to_owned()
}
