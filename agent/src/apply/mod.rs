//! Applies a plan. Each change has one outcome, and each setting is read again after it was written.
//!
//! Original values are saved durably before the first change. A change that fails does not stop the other changes. This
//! module applies exactly the changes of the plan, and decides only the number of tries.

mod apply_blocked;
mod context;
mod converge;
mod drives;
mod execute;
mod hugepages;
mod interrupts;
mod ksm;
mod kubelet_files;
pub mod links;
mod outcome;
mod setting_outcome;
mod settings;
mod vfio;

pub use apply_blocked::ApplyBlocked;
pub use context::ApplyContext;
pub use converge::{ConvergeResult, converge, observe_for_plan};
pub use execute::{ApplyOutcomes, apply};
pub use links::kernel::Kernel;
pub use outcome::Outcome;
