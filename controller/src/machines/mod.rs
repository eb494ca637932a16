//! Tenants' machines: from a MachineDeployment to KubeVirt VirtualMachines.
//!
//! ```text
//! MachineDeployment ─► providerSpec, strictly ─► what is open from InfraConfig and tenant ─► VirtualMachine
//! ```
//!
//! All of it is pure; the reconciler and `berth-controller render` are the same code.

mod completion;
mod deployment;
mod disks;
mod fields;
mod home;
mod ignored;
mod marks;
mod network;
mod provider;
mod references;
mod render;
pub mod rollout;
mod scheduling;
pub mod steps;
mod storage;
mod surroundings;
mod text;
pub mod user_data;
mod vectors;

pub use deployment::{
    DeploymentSpec, GROUP, KIND, MachineDeployment, MachineSpec, Metadata, ProviderSpec,
    RollingUpdate, Strategy, Template,
};
pub use home::{Home, home, tenants_named};
pub use network::awaited;
pub use references::{Reference, Resolve, Scope};
pub use render::{Choice, Rendered, render};
pub use surroundings::{InstanceType, StorageClass, Surroundings};
