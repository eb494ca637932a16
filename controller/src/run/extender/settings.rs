//! Settings of the scheduler extender, and the informers that the extender shares with reconcilers.

use berth_api::{HostProfile, InfraConfig, InfraNode};
use berth_runtime::serve::ListenAddress;
use berth_runtime::watch::Informer;
use k8s_openapi::api::core::v1::Node;

/// Settings of the extender from the command line.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Address on which the extender listens for calls of the local kube-scheduler.
    pub listen: ListenAddress,
    /// Namespace and name of the scheduler's Lease; `None` if only one scheduler runs, without a Lease.
    pub lease: Option<(String, String)>,
    /// Host name of this pod, with which the scheduler's identity in the Lease begins.
    pub hostname: String,
}

/// Informers that the extender shares with reconcilers.
#[derive(Clone)]
pub(in crate::run) struct ExtenderInformers {
    pub(in crate::run) nodes: Informer<Node>,
    pub(in crate::run) infra_nodes: Informer<InfraNode>,
    pub(in crate::run) profiles: Informer<HostProfile>,
    pub(in crate::run) configs: Informer<InfraConfig>,
}
