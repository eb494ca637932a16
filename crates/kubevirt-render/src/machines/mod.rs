//! Renders the VirtualMachines of a MachineDeployment.
//!
//! ```text
//! MachineDeployment ─► providerSpec (strict parser) ─► defaults from InfraConfig and tenant ─► VirtualMachine
//! ```
//!
//! All modules are pure; the reconciler and `berth-controller render` run the same code.

mod config_var;
mod context;
mod defaults;
mod deployment;
mod disks;
mod fields;
mod json_value;
mod labels;
mod machine_namespace;
mod network;
mod provider;
mod references;
mod render;
mod renderer;
pub mod rollout;
mod scheduling;
pub mod steps;
mod storage;
mod unsupported;
pub mod user_data;
mod vectors;

pub use context::{InstanceType, RenderContext, StorageClass};
pub use deployment::{
    DeploymentSpec, GROUP, KIND, MachineDeployment, MachineSpec, Metadata, ProviderSpec,
    RollingUpdate, Strategy, Template,
};
pub use machine_namespace::{MachineNamespace, machine_namespace, referenced_tenants};
pub use network::unmet_prerequisite;
pub use references::{Reference, Resolve, ResolveError, Scope};
pub use render::{Rendered, render};
pub use renderer::RenderOptions;
