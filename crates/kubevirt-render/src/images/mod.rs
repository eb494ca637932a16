//! Golden images: an image is imported once for each storage class, and the disks of machines are clones of it.
//!
//! ```text
//! image of a MachineDeployment × storage class ─► GoldenImage ─► DataVolume and DataSource, or DataImportCron
//!                                                      └───────► sourceRef of the disks
//! ```
//!
//! The objects are those of CDI (`cdi.kubevirt.io/v1beta1`).

mod clone_grant;
mod golden_image;
mod source;
mod volume_mode;

pub use clone_grant::{clone_cluster_role, clone_role_binding};
pub use golden_image::GoldenImage;
pub use source::{HttpSource, ImageSource, RegistrySource};
pub use volume_mode::VolumeMode;
