//! Desired objects of a tenant for server-side apply: only the fields that Berth owns.

pub mod attachment;
pub mod csi_access;
mod desired_object;
mod instancetypes;
mod kind;
mod namespace;
mod peers;
pub mod policies;
mod workload_policies;

pub use desired_object::{DesiredObject, differs};
pub use instancetypes::instancetype_objects;
pub use kind::ObjectKind;
pub use namespace::namespace_object;
