//! The kubelet: how it is really configured, and what it has handed out.
//!
//! Effective configuration, lowest first: the kubelet's defaults, the file of `--config`, the drop-ins
//! of `--config-dir`, the command line. If a layer that is named cannot be read, the configuration is
//! unknown: the rest would be a guess, and a guess here makes checks fail on healthy hosts.

pub mod checkpoints;
pub mod config;
pub mod cpu_state;
pub mod drop_in;
pub mod facts;
pub mod fields;
pub mod flags;
mod go_json;
mod layers;
pub mod memory_state;
pub mod observe;
pub mod podresources;
pub mod process;
pub mod started;

pub use config::KubeletConfig;
pub use cpu_state::CpuManagerState;
pub use facts::KubeletFacts;
pub use memory_state::MemoryManagerState;
pub use started::{Record, Start, StartedWith};
