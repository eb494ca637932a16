//! Stores and clients of the reconciler of removals.

use std::sync::Arc;

use berth_api::names::INFRA_CONFIG;
use berth_api::{InfraConfig, TenantCluster};
use berth_runtime::watch::{Informer, OptionalInformer, WatchHealth};
use k8s_openapi::api::core::v1::Node;
use kube::Client;

use super::list_slots::ListSlots;
use super::table::RemovalTable;
use super::volume_lists::VolumeLists;
use crate::removal::timeout::TimeoutLimit;
use crate::run::events::EventEmitter;
use crate::run::metrics::Metrics;
use crate::run::tenant_access::Connections;

/// Stores and clients of the reconciler.
pub(in crate::run) struct RemovalContext {
    pub(in crate::run) client: Client,
    pub(in crate::run) events: Arc<EventEmitter>,
    pub(in crate::run) metrics: Arc<Metrics>,
    pub(in crate::run) machines: OptionalInformer,
    pub(in crate::run) instances: OptionalInformer,
    pub(in crate::run) deployments: OptionalInformer,
    pub(in crate::run) tenants: Informer<TenantCluster>,
    pub(in crate::run) nodes: Informer<Node>,
    pub(in crate::run) configs: Informer<InfraConfig>,
    pub(in crate::run) connections: Connections,
    pub(in crate::run) table: Arc<RemovalTable>,
    pub(in crate::run) watch_health: Arc<WatchHealth>,
}

impl RemovalContext {
    /// Returns the upper bound for drain time limits that annotations may set, according to the last valid InfraConfig.
    pub(super) fn timeout_limit(&self) -> TimeoutLimit {
        // The malformed objects are read first: a config that is corrected meanwhile is then in the store.
        let malformed = self.watch_health.malformed_objects().names::<InfraConfig>();
        let config = self.configs.get(INFRA_CONFIG);
        let is_malformed = config.is_none() && malformed.contains(INFRA_CONFIG);
        TimeoutLimit::new(config.as_deref().map(|config| &config.spec), is_malformed)
    }
}

/// Reconciler that removes machines.
pub(super) struct Remover {
    pub(super) context: RemovalContext,
    pub(super) list_slots: ListSlots,
    pub(super) volume_lists: VolumeLists,
}
