//! State that all reconcilers share: the client, the informer stores and the signals between reconcilers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

pub(super) use berth_api::names::INFRA_CONFIG;
use berth_api::{
    HostLeases, HostProfile, InfraConfig, InfraNode, PrefixClaim, TenantCluster, TenantQuota,
    TenantRequest, VlanClaim,
};
use berth_runtime::leader_election::LeaderGuard;
use berth_runtime::watch::{Informer, WatchHealth};
use k8s_openapi::api::core::v1::{Node, NodeCondition, NodeSpec, NodeStatus, NodeSystemInfo};
use kube::Client;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::address_store::AddressStore;
use super::apply::Writer;
use super::events::EventEmitter;
use super::host_leases::informers::{LeaseInformers, start_host_leases};
use super::image_table::ImageTable;
use super::metrics::Metrics;
use super::profile_store::ProfileStore;
use super::settings::Settings;
use super::tenants;
use super::unresponsive::AgentLeases;
use crate::managed_fields::reduce_to_conditions;
use crate::tenant_nodes::host_fields::is_copyable_annotation;

/// State that all reconcilers share.
pub struct Context {
    /// Client for reads, and for writes other than server-side apply. It refuses writes while this process is not the
    /// leader.
    pub client: Client,
    /// Writer for server-side apply.
    pub writer: Writer,
    pub events: Arc<EventEmitter>,
    /// All Nodes, without the fields that no reconciler reads.
    pub nodes: Informer<Node>,
    pub infra_nodes: Informer<InfraNode>,
    pub profiles: Informer<HostProfile>,
    pub tenants: Informer<TenantCluster>,
    /// All InfraConfigs; only the one with the name [`INFRA_CONFIG`] is used.
    pub configs: Informer<InfraConfig>,
    pub tenant_quotas: Informer<TenantQuota>,
    pub tenant_requests: Informer<TenantRequest>,
    pub vlan_claims: Informer<VlanClaim>,
    pub prefix_claims: Informer<PrefixClaim>,
    /// All AddressClaims.
    pub addresses: AddressStore,
    pub host_leases: Informer<HostLeases>,
    /// Golden images that machines need, and their states.
    pub(super) images: Arc<ImageTable>,
    /// Period after which an unchanged object is reconciled again.
    pub resync: Duration,
    pub(super) watch_health: Arc<WatchHealth>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) lease_namespace: String,
    pub(super) resolved_profiles: ProfileStore,
    pub(super) agent_leases: AgentLeases,
    pub(super) host_networks_changed: Notify,
    /// Permits writes only while this process is the leader.
    pub(super) guard: LeaderGuard,
    /// Host name or address of the API server that the controller uses, and its port.
    pub(super) own_server: (String, u16),
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").finish_non_exhaustive()
    }
}

impl Context {
    /// Starts the watches, and returns the state. `client` must refuse writes while this process is not the leader.
    pub(super) fn start(
        settings: &Settings,
        client: &Client,
        guard: LeaderGuard,
        own_server: (String, u16),
        tasks: &mut JoinSet<()>,
        watch_health: &Arc<WatchHealth>,
        metrics: &Arc<Metrics>,
    ) -> Self {
        Self {
            client: client.clone(),
            writer: Writer::new(client.clone(), Arc::clone(metrics)),
            events: Arc::new(EventEmitter::new(client.clone(), &settings.identity)),
            nodes: Informer::start(client, tasks, watch_health, trim_node),
            infra_nodes: Informer::start(client, tasks, watch_health, |_| {}),
            profiles: Informer::start(client, tasks, watch_health, |profile| {
                profile.metadata.managed_fields = None
            }),
            tenants: Informer::start(client, tasks, watch_health, |tenant| {
                reduce_to_conditions(&mut tenant.metadata);
            }),
            configs: Informer::start(client, tasks, watch_health, |config| {
                config.metadata.managed_fields = None
            }),
            tenant_quotas: Informer::start(client, tasks, watch_health, |quota| {
                quota.metadata.managed_fields = None
            }),
            tenant_requests: Informer::start(client, tasks, watch_health, |request| {
                request.metadata.managed_fields = None
            }),
            vlan_claims: Informer::start(client, tasks, watch_health, |claim| {
                claim.metadata.managed_fields = None
            }),
            prefix_claims: Informer::start(client, tasks, watch_health, |claim| {
                claim.metadata.managed_fields = None
            }),
            addresses: AddressStore::start(client, tasks, watch_health),
            host_leases: start_host_leases(client, tasks, watch_health),
            images: Arc::default(),
            resync: settings.resync,
            watch_health: Arc::clone(watch_health),
            metrics: Arc::clone(metrics),
            lease_namespace: settings.lease_namespace.clone(),
            resolved_profiles: ProfileStore::default(),
            agent_leases: AgentLeases::default(),
            host_networks_changed: Notify::new(),
            guard,
            own_server,
        }
    }

    /// Returns the InfraConfig; one with default values if there is none.
    #[must_use]
    pub fn config(&self) -> Arc<InfraConfig> {
        let defaults =
            || Arc::new(InfraConfig::new(INFRA_CONFIG, berth_api::InfraConfigSpec::default()));
        self.configs.get(INFRA_CONFIG).unwrap_or_else(defaults)
    }

    /// Returns the names of the TenantClusters of which no version could be parsed since the controller started.
    pub(super) fn unknown_tenants(&self) -> BTreeSet<String> {
        let mut names = self.watch_health.malformed_objects().names::<TenantCluster>();
        names.retain(|name| self.tenants.get(name).is_none());
        names
    }

    pub(super) fn shared_informers(&self) -> tenants::TenantInformers {
        tenants::TenantInformers {
            tenants: self.tenants.clone(),
            vlan_claims: self.vlan_claims.clone(),
            prefix_claims: self.prefix_claims.clone(),
            addresses: self.addresses.clone(),
            configs: self.configs.clone(),
            infra_nodes: self.infra_nodes.clone(),
            nodes: self.nodes.clone(),
        }
    }

    pub(super) fn lease_informers(&self) -> LeaseInformers {
        LeaseInformers {
            tenants: self.tenants.clone(),
            claims: self.addresses.informer().clone(),
            host_leases: self.host_leases.clone(),
            infra_nodes: self.infra_nodes.clone(),
            nodes: self.nodes.clone(),
        }
    }
}

/// Removes the fields of a Node that no reconciler reads. Images and most conditions are large and change often. Keeps
/// the fields that are read: taints and resources (by the extender), addresses and pod CIDRs (for NetworkPolicies), and
/// status and time of the condition Ready (to detect lost hosts).
fn trim_node(node: &mut Node) {
    node.metadata.managed_fields = None;
    if let Some(annotations) = &mut node.metadata.annotations {
        annotations.retain(|key, value| is_copyable_annotation(key, value));
    }
    node.spec = node.spec.take().map(|spec| NodeSpec {
        taints: spec.taints,
        unschedulable: spec.unschedulable,
        pod_cidr: spec.pod_cidr,
        pod_cidrs: spec.pod_cidrs,
        ..NodeSpec::default()
    });
    node.status = node.status.take().map(|status| NodeStatus {
        addresses: status.addresses,
        allocatable: status.allocatable,
        conditions: status.conditions.map(|all| {
            let ready = all.into_iter().filter(|one| one.type_ == "Ready");
            ready
                .map(|one| NodeCondition {
                    type_: one.type_,
                    status: one.status,
                    last_transition_time: one.last_transition_time,
                    ..NodeCondition::default()
                })
                .collect()
        }),
        node_info: status.node_info.map(|info| NodeSystemInfo {
            kubelet_version: info.kubelet_version,
            ..NodeSystemInfo::default()
        }),
        ..NodeStatus::default()
    });
}
