//! Stores and clients of the reconciler of removals.

use std::sync::Arc;

use berth_api::{InfraConfig, TenantCluster};
use berth_runtime::watch::{Informer, OptionalInformer};
use k8s_openapi::api::core::v1::Node;
use kube::Client;

use super::list_slots::ListSlots;
use super::table::RemovalTable;
use super::volume_lists::VolumeLists;
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
}

/// Reconciler of removals.
pub(super) struct Remover {
    pub(super) context: RemovalContext,
    pub(super) list_slots: ListSlots,
    pub(super) volume_lists: VolumeLists,
}
