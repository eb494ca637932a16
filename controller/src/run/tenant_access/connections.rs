//! State of the connections to all tenants, which several reconcilers read.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use berth_runtime::certificate::Validity;
use berth_runtime::untrusted::UntrustedClient;

use crate::run::metrics::Metrics;
use crate::tenant_nodes::node_store::NodeStore;
use crate::tenants::fault::Fault;

/// Connection to the API server of a tenant.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    /// Client of the server.
    pub(crate) client: UntrustedClient,
    /// Validity of the client certificate, if the kubeconfig has one.
    pub(crate) certificate: Option<Validity>,
}

/// State of a tenant.
#[derive(Debug, Default)]
pub(crate) struct TenantState {
    /// The connection, or the reason why there is none. `None` before the first answer of the tenant's API server.
    pub(crate) access: Option<Result<Access, Fault>>,
    /// Nodes of the tenant. They stay while there is no connection.
    pub(crate) nodes: NodeStore,
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

/// Function that is called with the name of each tenant whose connection or Nodes have changed.
type Handler = Box<dyn Fn(&str) + Send + Sync>;

/// State of the connections to all tenants.
#[derive(Clone)]
pub struct Connections {
    entries: Arc<Mutex<BTreeMap<String, Entry>>>,
    handlers: Arc<Mutex<Vec<Handler>>>,
    metrics: Arc<Metrics>,
}

impl std::fmt::Debug for Connections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connections").finish_non_exhaustive()
    }
}

impl Connections {
    /// Returns the state without any tenant.
    #[must_use]
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self { entries: Arc::default(), handlers: Arc::default(), metrics }
    }

    /// Calls `handle` with the name of each tenant whose connection or Nodes change from now on.
    pub(crate) fn subscribe(&self, handle: impl Fn(&str) + Send + Sync + 'static) {
        self.handlers.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(handle));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls the handlers. The caller must hold no lock of a tenant's state, which handlers lock.
    fn notify(&self, tenant: &str) {
        let handlers = self.handlers.lock().unwrap_or_else(PoisonError::into_inner);
        handlers.iter().for_each(|handle| handle(tenant));
    }

    /// Returns the state of a tenant; `None` if it is not known yet, or the tenant has no kubeconfig.
    pub(crate) fn state(&self, tenant: &str) -> Option<SharedState> {
        self.lock().get(tenant).map(|entry| entry.state.clone())
    }

    /// Changes the Nodes of a tenant. Calls the handlers if `change` returns true.
    pub(super) fn update_nodes(&self, tenant: &str, change: impl FnOnce(&mut NodeStore) -> bool) {
        let state = self.lock().entry(tenant.to_owned()).or_default().state.clone();
        let is_changed = change(&mut state.lock().nodes);
        if is_changed {
            self.notify(tenant);
        }
    }

    /// Sets the connection of a tenant, or the reason why there is none, and calls the handlers.
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
        self.notify(tenant);
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
        self.notify(tenant);
    }

    fn count(&self, all: &BTreeMap<String, Entry>) {
        let connected = all.values().filter(|entry| entry.is_connected).count();
        self.metrics.set_tenant_connections(connected, all.len().saturating_sub(connected));
    }
}
