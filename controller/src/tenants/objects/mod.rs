//! Desired objects of a tenant for server-side apply: only the fields that Berth owns.

pub mod access;
pub mod attachment;
mod desired_object;
mod flavours;
mod kind;
mod namespace;
mod peers;
pub mod policies;
mod workloads;

pub use desired_object::{DesiredObject, differs};
pub use flavours::flavours;
pub use kind::Kind;
pub use namespace::namespace;
