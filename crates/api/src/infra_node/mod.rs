//! InfraNode: desired state (`spec`) and observed state (`status`) of one host.

mod bridges;
mod capabilities;
mod devices;
mod limits;
mod spec;
mod status;

pub use capabilities::*;
pub use devices::*;
pub use spec::*;
pub use status::*;
