//! Golden images: an image is imported once for each storage class, and the disks of machines are clones of it.
//!
//! ```text
//! image of a MachineDeployment × storage class ─► GoldenImage ─► DataVolume and DataSource, or DataImportCron
//!                                                      └───────► sourceRef of the disks
//! ```
//!
//! The objects are those of CDI (`cdi.kubevirt.io/v1beta1`).

mod clone_grant;
mod clone_strategy;
mod data_volume_state;
mod desired_objects;
mod golden_image;
mod retention;
mod source;
mod storage_profile;
mod volume_mode;

pub use clone_grant::{clone_cluster_role, clone_role_binding};
pub use clone_strategy::{ClonePlan, CloneReason, CloneRequest, CloneVolume};
pub use data_volume_state::DataVolumeState;
pub use desired_objects::{GoldenImageUse, desired_objects};
pub use golden_image::GoldenImage;
pub use retention::{ExistingImage, images_to_delete};
pub use source::{HttpSource, ImageSource, RegistrySource};
pub use storage_profile::{
    ClaimProperties, READ_WRITE_MANY, READ_WRITE_ONCE, SnapshotClass, StorageProfile,
};
pub use volume_mode::VolumeMode;
