//! Carries out a plan: dull, one outcome per change, everything read back.
//!
//! What was found is saved durably before the first change. A change that fails does not stop the others.
//! What is done here is what the plan says, and nothing else is decided but how often to try.

mod cannot_start;
mod carry_out;
mod converge;
mod files;
mod hands;
mod hugepages;
mod interrupts;
mod ksm;
pub mod links;
mod outcome;
mod settings;
mod settle;

pub use cannot_start::CannotStart;
pub use carry_out::{Applied, apply};
pub use converge::{Converged, converge, look};
pub use hands::Hands;
pub use links::kernel::Kernel;
pub use outcome::Outcome;
