//! Desired objects of a tenant for server-side apply: only the fields that Berth owns.

pub mod attachment;
pub mod cloud_controller_manager;
pub mod csi_access;
mod desired_object;
mod exposure_policies;
mod instancetypes;
mod kind;
mod load_balancer_pool;
mod machine_access;
mod namespace;
mod peers;
pub mod policies;
mod workload_policies;

pub use desired_object::{DesiredObject, add_content_hash, differs};
pub use instancetypes::{built_in_instancetype, instancetype_objects, is_built_in_preference};
pub use kind::ObjectKind;
pub use load_balancer_pool::load_balancer_pool_objects;
pub use machine_access::{access_service, access_service_name, with_node_ports};
pub use namespace::namespace_object;
