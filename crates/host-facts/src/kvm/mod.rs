//! Hardware virtualisation: can VMs run here, and if not, what exactly stands in the way.

pub mod cpuid;
pub mod device;
pub mod evidence;
pub mod observe;
mod state;

pub use evidence::Evidence;
pub use state::is_ready;
