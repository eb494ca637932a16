//! Stores of the objects from which HostLeases are computed.

use std::sync::Arc;

use berth_api::{AddressClaim, HostLeases, InfraNode, TenantCluster};
use berth_runtime::watch::{Informer, WatchHealth};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use tokio::task::JoinSet;

/// Stores of the objects from which HostLeases are computed.
#[derive(Clone, Debug)]
pub struct LeaseInformers {
    /// All TenantClusters.
    pub tenants: Informer<TenantCluster>,
    /// All AddressClaims.
    pub claims: Informer<AddressClaim>,
    /// All HostLeases.
    pub host_leases: Informer<HostLeases>,
    /// All InfraNodes.
    pub infra_nodes: Informer<InfraNode>,
    /// All Nodes.
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

/// Starts the watch of AddressClaims. A cluster may have a hundred thousand of them, so their metadata is reduced to
/// the fields that identify a version.
pub fn start_claims(
    client: &Client,
    tasks: &mut JoinSet<()>,
    watches: &Arc<WatchHealth>,
) -> Informer<AddressClaim> {
    Informer::start(client, tasks, watches, |claim: &mut AddressClaim| {
        let metadata = std::mem::take(&mut claim.metadata);
        claim.metadata = ObjectMeta {
            name: metadata.name,
            uid: metadata.uid,
            resource_version: metadata.resource_version,
            deletion_timestamp: metadata.deletion_timestamp,
            ..ObjectMeta::default()
        };
    })
}

/// Starts the watch of HostLeases.
pub fn start_host_leases(
    client: &Client,
    tasks: &mut JoinSet<()>,
    watches: &Arc<WatchHealth>,
) -> Informer<HostLeases> {
    Informer::start(client, tasks, watches, |leases: &mut HostLeases| {
        leases.metadata.managed_fields = None;
    })
}
