//! Hosts as their agents report them, with the resources that the kubelets have already allocated.

mod allocation;
mod cores;
mod devices;
mod host;
mod kubelet;
mod node;
mod ready_networks;

pub use allocation::Allocation;
pub use berth_api::Problem;
pub use host::{MissingInformation, ReportedHost, ZoneCapacity};
