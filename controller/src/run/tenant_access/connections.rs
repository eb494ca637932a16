//! State of the connections to all tenants, which the reconcilers of tenants' Nodes and StorageClasses read.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use berth_api::TenantCluster;
use berth_runtime::certificate::Validity;
use berth_runtime::untrusted::UntrustedClient;
use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use kube::runtime::reflector::ObjectRef;
use tokio::sync::watch::Sender;

use crate::run::metrics::Metrics;
use crate::tenant_nodes::node_store::NodeStore;
use crate::tenant_storage::class_store::ClassStore;
use crate::tenants::fault::Fault;

/// Connection to the API server of a tenant.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    /// Client of the server.
    pub(crate) client: UntrustedClient,
    /// Validity of the client certificate, if the kubeconfig has one.
    pub(crate) certificate: Option<Validity>,
}

/// Tenants to be reconciled.
pub(crate) type TenantQueue = UnboundedReceiver<ObjectRef<TenantCluster>>;

/// Tenants to be reconciled by each reconciler.
#[derive(Debug)]
pub(crate) struct Queues {
    /// Tenants whose connections or Nodes have changed.
    pub(crate) nodes: TenantQueue,
    /// Tenants whose connections or StorageClasses have changed.
    pub(crate) classes: TenantQueue,
}

/// StorageClasses of a tenant.
#[derive(Debug, Default)]
pub(crate) struct ClassState {
    /// True while the classes are watched. The reconciler of StorageClasses sets it.
    pub(crate) is_wanted: Sender<bool>,
    /// `Ok` if the classes are listed, or the reason why they cannot be listed. `None` before the first answer.
    pub(crate) listed: Option<Result<(), Fault>>,
    /// The classes.
    pub(crate) store: ClassStore,
}

/// State of a tenant.
#[derive(Debug, Default)]
pub(crate) struct TenantState {
    /// The connection, or the reason why there is none. `None` before the first answer of the tenant's API server.
    pub(crate) access: Option<Result<Access, Fault>>,
    /// Nodes of the tenant. They stay while there is no connection.
    pub(crate) nodes: NodeStore,
    /// StorageClasses of the tenant.
    pub(crate) classes: ClassState,
}

/// State of a tenant, with a lock of its own: a plan for many Nodes delays only their tenant. A new kubeconfig gets a new
/// state, so code that still has the previous one cannot mix Nodes of two clusters.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedState(Arc<Mutex<TenantState>>);

impl SharedState {
    /// Returns the state, locked.
    pub(crate) fn lock(&self) -> MutexGuard<'_, TenantState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Default)]
struct Entry {
    is_connected: bool,
    state: SharedState,
}

/// State of the connections to all tenants.
#[derive(Clone, Debug)]
pub(crate) struct Connections {
    entries: Arc<Mutex<BTreeMap<String, Entry>>>,
    node_queue: UnboundedSender<ObjectRef<TenantCluster>>,
    class_queue: UnboundedSender<ObjectRef<TenantCluster>>,
    metrics: Arc<Metrics>,
}

impl Connections {
    /// Returns the state without any tenant, and the queues to which tenants are added whose state has changed.
    pub(crate) fn new(metrics: Arc<Metrics>) -> (Self, Queues) {
        let ((node_queue, nodes), (class_queue, classes)) = (unbounded(), unbounded());
        let connections = Self { entries: Arc::default(), node_queue, class_queue, metrics };
        (connections, Queues { nodes, classes })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Triggers a reconcile of a tenant's Nodes.
    pub(crate) fn trigger(&self, tenant: &str) {
        // The error is ignored: the queue has no receiver only if the reconciler is stopped.
        self.node_queue.unbounded_send(ObjectRef::new(tenant)).unwrap_or_default();
    }

    /// Triggers a reconcile of a tenant's StorageClasses.
    pub(crate) fn trigger_classes(&self, tenant: &str) {
        self.class_queue.unbounded_send(ObjectRef::new(tenant)).unwrap_or_default();
    }

    /// Returns the state of a tenant; `None` if it is not known yet, or the tenant has no kubeconfig.
    pub(crate) fn state(&self, tenant: &str) -> Option<SharedState> {
        self.lock().get(tenant).map(|entry| entry.state.clone())
    }

    /// Changes the Nodes of a tenant. Triggers a reconcile if `change` returns true.
    pub(super) fn update_nodes(&self, tenant: &str, change: impl FnOnce(&mut NodeStore) -> bool) {
        let state = self.lock().entry(tenant.to_owned()).or_default().state.clone();
        let is_changed = change(&mut state.lock().nodes);
        if is_changed {
            self.trigger(tenant);
        }
    }

    /// Sets the connection of a tenant, or the reason why there is none, and triggers the reconciles.
    pub(super) fn set_access(&self, tenant: &str, access: Result<Access, Fault>) {
        {
            let mut all = self.lock();
            let entry = all.entry(tenant.to_owned()).or_default();
            entry.is_connected = access.is_ok();
            let state = entry.state.clone();
            self.count(&all);
            drop(all);
            state.lock().access = Some(access);
        }
        self.trigger(tenant);
        self.trigger_classes(tenant);
    }

    /// Removes the connection and the Nodes of a tenant, because it has a new kubeconfig: no write of the old connection
    /// may be based on Nodes of the new one.
    pub(super) fn reset(&self, tenant: &str) {
        let mut all = self.lock();
        all.insert(tenant.to_owned(), Entry::default());
        self.count(&all);
    }

    /// Removes the state of a tenant.
    pub(super) fn remove(&self, tenant: &str) {
        let mut all = self.lock();
        all.remove(tenant);
        self.count(&all);
        drop(all);
        self.trigger(tenant);
        self.trigger_classes(tenant);
    }

    fn count(&self, all: &BTreeMap<String, Entry>) {
        let connected = all.values().filter(|entry| entry.is_connected).count();
        self.metrics.set_tenant_connections(connected, all.len().saturating_sub(connected));
    }
}
