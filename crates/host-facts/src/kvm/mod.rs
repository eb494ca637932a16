//! Hardware virtualisation: the state of KVM, and the reason if VMs cannot run on the host.

pub mod cpuid;
pub mod device;
pub mod evidence;
pub mod observe;
mod state;

pub use evidence::KvmEvidence;
pub use state::is_ready;
