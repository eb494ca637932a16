//! InfraNode: desired state (`spec`) and observed state (`status`) of one host.

mod address_conflict;
mod allocations;
mod bridges;
mod capabilities;
mod devices;
mod limits;
mod minimum;
mod spec;
mod status;
mod trunk;
mod unknown_value;
mod zones;

pub use address_conflict::*;
pub use allocations::*;
pub use capabilities::*;
pub use devices::*;
pub use minimum::*;
pub use spec::*;
pub use status::*;
pub use trunk::*;
pub use zones::*;
