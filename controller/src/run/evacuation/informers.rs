//! Stores that the reconciler shares with other reconcilers.

use std::sync::Arc;

use berth_api::{InfraNode, TenantCluster};
use berth_runtime::watch::Informer;
use k8s_openapi::api::core::v1::Node;

use crate::run::machine_instances::MachineInstances;
use crate::run::object_handlers::ObjectHandlers;
use crate::run::removal::RemovalTable;
use crate::run::removal_lock::RemovalLock;
use crate::run::tenant_access::Connections;

/// Stores that the reconciler shares with other reconcilers.
#[derive(Clone, Debug)]
pub struct EvacuationInformers {
    pub tenants: Informer<TenantCluster>,
    /// Connections to the API servers of tenants.
    pub connections: Connections,
    pub nodes: Informer<Node>,
    pub infra_nodes: Informer<InfraNode>,
    /// All VirtualMachineInstances of machines.
    pub instances: MachineInstances,
    /// Functions that are called with each changed MachineDeployment.
    pub deployment_handlers: ObjectHandlers,
    /// Lock that this reconciler shares with the reconciler of MachineDeployments.
    pub removal_lock: RemovalLock,
    /// Reports of all removals.
    pub removals: Arc<RemovalTable>,
}
