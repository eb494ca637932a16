//! Queue of tenants for a reconciler of objects in tenants' clusters.

use std::sync::Arc;

use berth_api::TenantCluster;
use berth_runtime::watch::Change;
use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use kube::ResourceExt as _;
use kube::runtime::reflector::ObjectRef;

use super::connections::{Connections, TenantObjects};
use crate::run::context::Context;

/// Queue of tenants that must be reconciled.
#[derive(Clone)]
pub(in crate::run) struct TenantQueue(UnboundedSender<ObjectRef<TenantCluster>>);

impl TenantQueue {
    /// Returns the queue and its receiver. Each tenant whose connection changes, or whose objects of the kind `objects`
    /// change, is added to the queue.
    pub(in crate::run) fn subscribe(
        connections: &Connections,
        objects: TenantObjects,
    ) -> (Self, UnboundedReceiver<ObjectRef<TenantCluster>>) {
        let (sender, requests) = unbounded();
        let queue = Self(sender);
        let changed = queue.clone();
        connections.subscribe(objects, move |tenant, _| changed.trigger(tenant));
        (queue, requests)
    }

    /// Triggers a reconcile of a tenant.
    pub(in crate::run) fn trigger(&self, tenant: &str) {
        // The error is ignored: the queue has no receiver only if the reconciler has been stopped.
        self.0.unbounded_send(ObjectRef::new(tenant)).unwrap_or_default();
    }

    /// Triggers reconciles of all tenants.
    pub(in crate::run) fn trigger_all(&self, context: &Context) {
        context.tenants.all().iter().for_each(|tenant| self.trigger(&tenant.name_any()));
    }

    /// Handles a change of a TenantCluster. Only a change of the UID or the generation triggers a reconcile, because
    /// the status changes with every machine.
    pub(in crate::run) fn handle_tenant(&self, change: &Change<TenantCluster>, context: &Context) {
        let Change::Object(before, after) = change else { return self.trigger_all(context) };
        let facts = |tenant: &Option<Arc<TenantCluster>>| {
            tenant.as_ref().map(|tenant| (tenant.uid(), tenant.metadata.generation))
        };
        if facts(before) != facts(after)
            && let Some(tenant) = after
        {
            self.trigger(&tenant.name_any());
        }
    }
}
