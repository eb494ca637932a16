//! InfraNode: what one host is asked to be (`spec`) and what it is (`status`).

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
