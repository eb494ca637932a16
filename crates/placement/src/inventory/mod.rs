//! Hosts according to their agents' reports, with the resources that are already allocated.

mod allocation;
mod cores;
mod devices;
mod host;
mod kubelet;
mod node;

pub use allocation::Allocation;
pub use berth_api::Problem;
pub use host::{ReportedHost, Unpredictable, ZoneSize};
