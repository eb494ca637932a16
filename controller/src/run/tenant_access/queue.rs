//! Queue of tenants that a reconciler of their objects must reconcile.

use berth_api::TenantCluster;
use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use kube::runtime::reflector::ObjectRef;

use super::connections::{Connections, TenantObjects};

/// Queue of tenants that must be reconciled.
#[derive(Clone)]
pub(in crate::run) struct TenantQueue(UnboundedSender<ObjectRef<TenantCluster>>);

impl TenantQueue {
    /// Returns the queue, to which each tenant is added whose connection or objects of this kind change, and its receiver.
    pub(in crate::run) fn subscribe(
        connections: &Connections,
        objects: TenantObjects,
    ) -> (Self, UnboundedReceiver<ObjectRef<TenantCluster>>) {
        let (sender, requests) = unbounded();
        let queue = Self(sender);
        let changed = queue.clone();
        connections.subscribe(objects, move |tenant| changed.trigger(tenant));
        (queue, requests)
    }

    /// Triggers a reconcile of a tenant.
    pub(in crate::run) fn trigger(&self, tenant: &str) {
        // The error is ignored: the queue has no receiver only if the reconciler is stopped.
        self.0.unbounded_send(ObjectRef::new(tenant)).unwrap_or_default();
    }
}
