//! Hardware virtualisation: whether VMs can run on this host, and if not, the obstacle.

pub mod cpuid;
pub mod device;
pub mod evidence;
pub mod observe;
mod state;

pub use evidence::Evidence;
pub use state::is_ready;
