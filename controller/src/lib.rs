//! Converts the machines of tenants into `KubeVirt` virtual machines, and assigns these virtual machines to hosts,
//! based on the reports of the node agents.
//!
//! The code that makes decisions has no side effects: its input and output are plain data. Therefore
//! `berth-controller plan` can predict the decisions of the controller without a cluster.

mod api_resource;
pub mod check;
pub mod cli;
pub mod evacuation;
pub mod fleet;
pub mod host_devices;
pub mod host_loss;
mod images;
mod list;
mod machine_owner;
mod managed_by;
pub mod managed_fields;
pub mod observation;
pub mod observe;
mod parallel;
pub mod parsers;
pub mod plan;
pub mod profiles;
pub mod removal;
pub mod run;
pub mod selector_migration;
pub mod self_service;
pub mod tenant_nodes;
mod tenant_object;
pub mod tenant_storage;
pub mod tenants;
