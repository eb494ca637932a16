//! What there is: hosts by what their agents report, and what is taken of them.

mod allocation;
mod cores;
mod devices;
mod host;
mod kubelet;
mod node;

pub use allocation::Allocation;
pub use berth_api::Problem;
pub use host::{HostFacts, Unpredictable, ZoneSize};
