//! The kubelet: its effective configuration and its allocations.
//!
//! The effective configuration has four layers, lowest priority first: the kubelet's defaults, the file of `--config`,
//! the drop-ins of `--config-dir`, the command line. If a layer cannot be read, the configuration counts as unknown:
//! with assumed values, checks would fail on healthy hosts.

pub mod checkpoints;
pub mod config;
pub mod config_diff;
pub mod cpu_state;
pub mod drop_in;
pub mod facts;
pub mod flags;
mod go_json;
mod layers;
pub mod memory_state;
pub mod observe;
pub mod podresources;
pub mod process;
pub mod start_record;

pub use config::KubeletConfig;
pub use cpu_state::CpuManagerState;
pub use facts::KubeletFacts;
pub use memory_state::MemoryManagerState;
pub use start_record::{RunningConfig, StartId, StartRecord};
