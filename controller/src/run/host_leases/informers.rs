//! Stores of the objects from which HostLeases are computed.

use std::sync::Arc;

use berth_api::{AddressClaim, HostLeases, InfraNode, TenantCluster};
use berth_runtime::watch::{Informer, WatchHealth};
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use tokio::task::JoinSet;

/// Stores of the objects from which HostLeases are computed.
#[derive(Clone, Debug)]
pub struct LeaseInformers {
    pub tenants: Informer<TenantCluster>,
    pub claims: Informer<AddressClaim>,
    pub host_leases: Informer<HostLeases>,
    pub infra_nodes: Informer<InfraNode>,
    pub nodes: Informer<Node>,
}

impl LeaseInformers {
    /// Waits until all kinds have been listed.
    pub(super) async fn wait_until_ready(&self) {
        tokio::join!(
            self.tenants.wait_until_ready(),
            self.claims.wait_until_ready(),
            self.host_leases.wait_until_ready(),
            self.infra_nodes.wait_until_ready(),
            self.nodes.wait_until_ready()
        );
    }
}

/// Starts the watch of HostLeases.
pub fn start_host_leases(
    client: &Client,
    tasks: &mut JoinSet<()>,
    watch_health: &Arc<WatchHealth>,
) -> Informer<HostLeases> {
    Informer::start(client, tasks, watch_health, |leases: &mut HostLeases| {
        leases.metadata.managed_fields = None;
    })
}
