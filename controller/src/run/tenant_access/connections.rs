//! State of the connections to the API servers of all tenants, which several reconcilers read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use berth_api::names::CONTROLLER_FIELD_MANAGER;
use berth_runtime::certificate::Validity;
use berth_runtime::untrusted::{CollectionEvent, UntrustedClient};
use tokio::sync::watch::Sender;

use crate::run::metrics::Metrics;
use crate::tenant_nodes::node::NodeObject;
use crate::tenant_nodes::node_budget::NodeBudget;
use crate::tenant_nodes::node_store::NodeStore;
use crate::tenant_storage::class_store::ClassStore;
use crate::tenants::fault::Fault;

/// Connection to the API server of a tenant.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    /// Client of the tenant's API server.
    pub(crate) client: UntrustedClient,
    /// Validity period of the client certificate; `None` if the kubeconfig has no client certificate.
    pub(crate) certificate: Option<Validity>,
}

/// Kinds of objects that are watched in tenants' clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TenantObjects {
    Nodes,
    /// StorageClasses.
    Classes,
}

/// StorageClasses in a tenant's cluster.
#[derive(Debug, Default)]
pub(crate) struct ClassState {
    /// True while the reconciler of StorageClasses needs the watch of StorageClasses.
    pub(crate) needs_watch: Sender<bool>,
    /// `Ok` if the StorageClasses have been listed, or the reason why they cannot be listed; `None` before the first
    /// answer.
    pub(crate) listed: Option<Result<(), Fault>>,
    /// The StorageClasses.
    pub(crate) store: ClassStore,
}

/// State of the connection to a tenant, and the objects that were received through it.
#[derive(Debug, Default)]
pub(crate) struct ConnectionState {
    /// The connection, or the reason why there is none; `None` before the first answer of the tenant's API server.
    pub(crate) access: Option<Result<Access, Fault>>,
    /// Nodes in the tenant's cluster. They are retained while there is no connection.
    pub(crate) nodes: NodeStore,
    /// StorageClasses in the tenant's cluster.
    pub(crate) classes: ClassState,
}

/// Shared state of the connection to a tenant. Each tenant has a lock of its own, so a long plan for many Nodes delays
/// only the tenant of these Nodes. A new kubeconfig gets a new state, so code that still uses the previous state cannot
/// mix the Nodes of two clusters.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedState(Arc<Mutex<ConnectionState>>);

impl SharedState {
    fn new(budget: &NodeBudget) -> Self {
        let state = ConnectionState { nodes: NodeStore::new(budget), ..ConnectionState::default() };
        Self(Arc::new(Mutex::new(state)))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, ConnectionState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct Entry {
    is_connected: bool,
    state: SharedState,
}

impl Entry {
    fn new(budget: &NodeBudget) -> Self {
        Self { is_connected: false, state: SharedState::new(budget) }
    }
}

/// Machines whose Nodes have changed; `None` if the Nodes of all machines may have changed.
pub(crate) type ChangedMachines<'a> = Option<&'a BTreeSet<String>>;
/// Function that is called with the name of a tenant, and with those of its machines whose Nodes have changed.
type Handler = Box<dyn Fn(&str, ChangedMachines<'_>) + Send + Sync>;

/// State of the connections to all tenants.
#[derive(Clone)]
pub struct Connections {
    entries: Arc<Mutex<BTreeMap<String, Entry>>>,
    /// The lock of the handlers is a read lock during calls, because a handler may wait for the lock of a tenant's
    /// state, and must not delay the handlers of other tenants.
    handlers: Arc<RwLock<Vec<(TenantObjects, Handler)>>>,
    budget: NodeBudget,
    metrics: Arc<Metrics>,
}

impl std::fmt::Debug for Connections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connections").finish_non_exhaustive()
    }
}

impl Connections {
    /// Returns the state without tenants.
    #[must_use]
    pub fn new(metrics: Arc<Metrics>) -> Self {
        let budget = NodeBudget::default();
        Self { entries: Arc::default(), handlers: Arc::default(), budget, metrics }
    }

    /// Calls `handle` with the name of each tenant whose connection changes from now on, or whose objects of the kind
    /// `objects` change.
    pub(crate) fn subscribe(
        &self,
        objects: TenantObjects,
        handle: impl Fn(&str, ChangedMachines<'_>) + Send + Sync + 'static,
    ) {
        let handler = (objects, Box::new(handle) as Handler);
        self.handlers.write().unwrap_or_else(PoisonError::into_inner).push(handler);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls the handlers of the changed kind of objects; all handlers if the connection has changed (`None`). The
    /// handlers lock the states of tenants, so the caller must hold no such lock.
    fn notify(&self, tenant: &str, changed: Option<TenantObjects>, machines: ChangedMachines<'_>) {
        let handlers = self.handlers.read().unwrap_or_else(PoisonError::into_inner);
        let affected = handlers.iter().filter(|(kind, _)| changed.is_none_or(|one| one == *kind));
        affected.for_each(|(_, handle)| handle(tenant, machines));
    }

    /// Calls the handlers of StorageClasses, because the StorageClasses of a tenant have changed.
    pub(super) fn notify_classes(&self, tenant: &str) {
        self.notify(tenant, Some(TenantObjects::Classes), None);
    }

    /// Returns the state of a tenant's connection; `None` if there is no state yet, or the tenant has no kubeconfig.
    pub(crate) fn state(&self, tenant: &str) -> Option<SharedState> {
        self.lock().get(tenant).map(|entry| entry.state.clone())
    }

    /// Handles an event of the watch of the Nodes in a tenant's cluster. Calls the handlers if the Nodes have changed.
    pub(crate) fn handle_node_event(&self, tenant: &str, event: CollectionEvent<NodeObject>) {
        let state = {
            let mut all = self.lock();
            self.entry(&mut all, tenant).state.clone()
        };
        self.handle_node_answer(tenant, &state, event);
    }

    /// Handles a Node in the answer of the tenant's API server to a request, and calls the handlers if the Nodes have
    /// changed. When the watch delivers the same Node later, this is no change. `state` is the state of the connection
    /// that sent the request.
    pub(crate) fn handle_node_answer(
        &self,
        tenant: &str,
        state: &SharedState,
        event: CollectionEvent<NodeObject>,
    ) {
        let node = match &event {
            CollectionEvent::Applied(node) | CollectionEvent::Deleted(node) => {
                Some(node.name().to_owned())
            }
            CollectionEvent::ListStarted
            | CollectionEvent::Listed(_)
            | CollectionEvent::ListCompleted => None,
        };
        let machines = {
            let mut locked = state.lock();
            let before = node.as_ref().map(|node| locked.nodes.machines_of(node));
            if !locked.nodes.handle(event, CONTROLLER_FIELD_MANAGER) {
                return;
            }
            let after = node.as_ref().map(|node| locked.nodes.machines_of(node));
            before.zip(after).map(|(before, after)| &before | &after)
        };
        self.notify(tenant, Some(TenantObjects::Nodes), machines.as_ref());
    }

    /// Sets the connection of a tenant, or the reason why there is none, and calls the handlers.
    pub(super) fn set_access(&self, tenant: &str, access: Result<Access, Fault>) {
        {
            let mut all = self.lock();
            let entry = self.entry(&mut all, tenant);
            entry.is_connected = access.is_ok();
            let state = entry.state.clone();
            self.update_metrics(&all);
            drop(all);
            state.lock().access = Some(access);
        }
        self.notify(tenant, None, None);
    }

    /// Removes the connection and the Nodes of a tenant after a change of its kubeconfig: a write through the old
    /// connection must not be based on Nodes from the new connection.
    pub(super) fn reset(&self, tenant: &str) {
        let mut all = self.lock();
        all.insert(tenant.to_owned(), Entry::new(&self.budget));
        self.update_metrics(&all);
    }

    /// Removes the state of a tenant.
    pub(super) fn remove(&self, tenant: &str) {
        let mut all = self.lock();
        all.remove(tenant);
        self.update_metrics(&all);
        drop(all);
        self.notify(tenant, None, None);
    }

    fn entry<'a>(&self, all: &'a mut BTreeMap<String, Entry>, tenant: &str) -> &'a mut Entry {
        all.entry(tenant.to_owned()).or_insert_with(|| Entry::new(&self.budget))
    }

    fn update_metrics(&self, all: &BTreeMap<String, Entry>) {
        let connected = all.values().filter(|entry| entry.is_connected).count();
        self.metrics.set_tenant_connections(connected, all.len().saturating_sub(connected));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    fn applied(name: &str) -> CollectionEvent<NodeObject> {
        let node = serde_json::from_value(json!({"metadata": {"name": name}}));
        CollectionEvent::Applied(node.unwrap())
    }

    #[test]
    fn the_event_after_an_answer_is_no_change() {
        let connections = Connections::new(Arc::default());
        let (handled, tenants) = channel();
        connections.subscribe(TenantObjects::Nodes, move |tenant, machines| {
            let machines = machines.map(|all| all.iter().cloned().collect::<Vec<_>>().join(" "));
            handled.send(format!("{tenant}: {machines:?}")).unwrap();
        });
        connections.handle_node_event("bank", applied("a"));
        assert_eq!(tenants.try_iter().collect::<Vec<_>>(), ["bank: Some(\"a\")"]);
        let state = connections.state("bank").unwrap();
        connections.handle_node_answer("bank", &state, applied("b"));
        assert_eq!(tenants.try_iter().collect::<Vec<_>>(), ["bank: Some(\"b\")"]);
        connections.handle_node_event("bank", applied("b"));
        assert_eq!(tenants.try_iter().count(), 0);
        connections.handle_node_event("bank", CollectionEvent::ListStarted);
        connections.handle_node_event("bank", CollectionEvent::ListCompleted);
        assert_eq!(tenants.try_iter().collect::<Vec<_>>(), ["bank: None"]);
    }

    #[test]
    fn a_handler_that_waits_delays_no_other_tenant() {
        let connections = Connections::new(Arc::default());
        let (started, starts) = channel();
        let (release, released) = channel::<()>();
        let released = Mutex::new(released);
        let (handled, tenants) = channel();
        connections.subscribe(TenantObjects::Nodes, move |tenant, _| {
            if tenant == "slow" {
                started.send(()).unwrap();
                released.lock().unwrap().recv().unwrap();
            }
            handled.send(tenant.to_owned()).unwrap();
        });
        let slow = connections.clone();
        let waiting = thread::spawn(move || slow.handle_node_event("slow", applied("a")));
        starts.recv().unwrap();
        let other = thread::spawn(move || connections.handle_node_event("other", applied("a")));
        let first = tenants.recv_timeout(Duration::from_secs(10));
        release.send(()).unwrap();
        assert_eq!(first.as_deref(), Ok("other"));
        waiting.join().unwrap();
        other.join().unwrap();
    }
}
