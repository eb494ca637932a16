//! Tenants' machines: from a MachineDeployment to KubeVirt VirtualMachines.
//!
//! ```text
//! MachineDeployment ─► providerSpec, strictly ─► what is open from InfraConfig and tenant ─► VirtualMachine
//! ```
//!
//! All of it is pure; the reconciler and `berth-controller render` are the same code.

mod completion;
mod deployment;
mod fields;
mod network;
mod provider;
mod render;
pub mod rollout;
mod scheduling;
pub mod steps;
mod storage;
mod stream;
mod surroundings;
pub mod user_data;
mod vectors;

pub use deployment::{
    DeploymentSpec, GROUP, KIND, MachineDeployment, MachineSpec, Metadata, ProviderSpec,
    RollingUpdate, Strategy, Template,
};
pub use fields::{Reference, Resolve};
pub use render::{Choice, Rendered, home, render};
pub use stream::Stream;
pub use surroundings::{StorageClass, Surroundings};
