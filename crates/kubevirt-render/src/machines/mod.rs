//! Renders the VirtualMachines of a MachineDeployment.
//!
//! ```text
//! MachineDeployment ─► providerSpec (strict parser) ─► defaults from InfraConfig and tenant ─► VirtualMachine
//! ```
//!
//! The modules do no I/O; the reconciler and `berth-controller render` run the same code.

mod additional_interfaces;
mod additional_networks;
mod config_var;
mod controller_reference;
mod data_volumes;
mod defaults;
mod deployment;
mod disk_checks;
mod disk_clone;
mod disks;
mod field_parser;
pub mod guest;
mod host_devices;
pub mod hotplug;
mod image;
mod interface_config;
mod interrupt_vectors;
mod json_value;
mod kubeconfig;
mod labels;
mod machine_disk;
mod machine_namespace;
mod network;
mod preload;
mod provider;
pub mod reconcile_steps;
mod references;
mod render;
mod render_context;
mod renderer;
mod requested_devices;
mod revision;
pub mod rollout;
mod scheduling;
mod storage;
mod unsupported;
pub mod user_data;

pub use controller_reference::controller_reference;
pub use deployment::{
    DeploymentSpec, MACHINE_DEPLOYMENT_GROUP, MACHINE_DEPLOYMENT_KIND, MachineDeployment,
    MachineSpec, MachineTemplate, Metadata, ProviderSpec, RollingUpdate, UpdateStrategy,
};
pub use disk_clone::{DiskClone, plan_image_clone};
pub use interface_config::InterfaceConfig;
pub use machine_namespace::{MachineNamespace, determine_machine_namespace, referenced_tenants};
pub use network::{TENANT_INTERFACE, unmet_additional_network, unmet_prerequisite};
pub use preload::preloaded_images;
pub use references::{
    EntryReference, ReferenceResolver, ReferenceScope, ResolveError, SecretRefusal,
};
pub use render::{RenderedMachine, render_machine};
pub use render_context::{InstanceType, RenderContext, StorageClass};
pub use renderer::RenderOptions;
