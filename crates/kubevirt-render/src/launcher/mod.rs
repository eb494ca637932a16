//! Predicts the virt-launcher pod of a VM that does not run yet, according to `KubeVirt`'s rules.
//!
//! The prediction has three steps, as in a cluster: instance type and preference are applied (`instancetype`,
//! `conflict`, `topology`, `preference`), the webhook sets defaults and checks the result (`defaults`, `requirements`,
//! `check`), and the controller renders the pod (`overhead`, `compute`, `containers`, `selector`, `labels`,
//! `annotations`). Comments name the function of kubevirt/kubevirt that implements a rule. Rules that differ between
//! KubeVirt releases depend on the [`Version`].
//!
//! Two parts of the pod cannot be predicted: changes by other webhooks and admission plugins (injected sidecars, limit
//! ranges), and the pod anti-affinity for SCSI persistent reservations, which depends on the UIDs of
//! PersistentVolumeClaims.

mod amounts;
mod annotations;
mod check;
mod cluster_objects;
mod compute;
pub mod configuration;
mod conflict;
mod containers;
mod defaults;
pub mod existing_pod;
mod gate;
mod instancetype;
mod instancetype_spec;
mod invalid;
mod labels;
mod machine;
mod namespace;
mod network_resources;
mod overhead;
mod predict;
mod preference;
mod requirements;
mod selector;
mod spec;
#[cfg(test)]
mod tests;
mod topology;
mod version;

pub use cluster_objects::{ClusterObjects, RESOURCE_NAME};
pub use configuration::Configuration;
pub use existing_pod::{ExistingPod, kubelet_uid};
pub use gate::HotplugUnsupported;
pub use invalid::Invalid;
pub(crate) use invalid::without_nulls;
pub use machine::Machine;
pub use predict::{Launcher, predict};
pub use version::{ParseVersionError, Version};
