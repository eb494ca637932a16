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
pub use instancetypes::instancetypes;
pub use kind::Kind;
pub use namespace::namespace;
