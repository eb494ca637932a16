//! The placement engine: selects the host of a pod by all rules, and explains why hosts are excluded.
//!
//! ```text
//! request ─► class (requests, hosts that rules allow regardless of pods)   ─► hosts by score, best first
//!                                                                         │ rules by pods: affinity, spread
//!                                                                         │ the kubelet's own admission
//!                                                                         ▼
//!                                                             assumed: reserved for this pod
//! ```
//!
//! The engine is a pure state machine without clock, file access and randomness: the same calls return the same
//! results.

mod admission_orders;
mod change_log;
mod free_resources;
mod host_order;
mod hosts;
mod reason;
mod request;
mod request_classes;
mod score;
mod score_index;
mod search;
mod spread;
mod spread_index;
#[cfg(test)]
mod spread_tests;
mod state;
mod storage;
mod vm_requirements;

pub use reason::Reason;
pub use request::Request;
pub use request_classes::RequestClassKey;
pub use spread_index::{SpreadDomain, SpreadIndex};
pub use state::Engine;
pub use vm_requirements::{NumaGuestMemory, VmRequirements, parse_class};
