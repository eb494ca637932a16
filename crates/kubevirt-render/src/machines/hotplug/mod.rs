//! Updates the hotpluggable disks of an existing machine: attaches, detaches and expands them without a restart.
//!
//! KubeVirt attaches and detaches the volumes with `hotpluggable: true` that are added to and removed from the
//! VirtualMachine (KubeVirt: `pkg/storage/hotplug/hotplug.go`). The DataVolume of a removed disk is retained, or is deleted
//! when the VirtualMachineInstance does not use it any more, because its deletion would remove the storage of a running guest.
//! CDI permits no change of a DataVolume, so an expansion changes the request of its PersistentVolumeClaim.

mod claims;
mod disk;
mod fault;
mod lists;
mod plan;
mod volume_status;

pub use claims::{
    detached_claims, detached_patch, is_claim_in_use, is_own_volume, retained_claims,
    retained_patch,
};
pub use disk::{HotplugDisk, copy_disks};
pub use fault::DiskFault;
pub use plan::{DiskExpansion, DiskPlan};
pub use volume_status::{UnattachedDisk, is_unattached, unattached_disks};

pub(super) use claims::{own_claims, split_claims};
