//! Store of all objects that pages show.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use berth_api::Time;
use berth_views::{Kind, ObjectName, Snapshot};
use serde_json::Value;
use tokio::sync::broadcast::{Receiver, Sender, channel};

use super::changed::{Changed, Relations};
use super::namespaces::Namespaces;
use super::visible::Visible;

/// Number of changes that a subscriber may be behind. A subscriber that is further behind treats all objects as changed.
const CHANGE_CAPACITY: usize = 4096;

/// State of the watch of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WatchState {
    Starting,
    NotInstalled,
    Failing,
    Listed,
    /// The objects were listed, but cannot be watched since this time.
    Outdated(Time),
}

impl WatchState {
    /// Returns the reason why objects are missing on pages; `None` if all are listed.
    const fn reason(self) -> Option<&'static str> {
        match self {
            Self::Starting => Some("they are being listed"),
            Self::NotInstalled => Some("the API server does not serve this kind"),
            Self::Failing => Some("the console cannot list them; its log has the reason"),
            Self::Listed | Self::Outdated(_) => None,
        }
    }
}

/// All objects that pages show. One set of watches serves all users.
pub(crate) struct Store {
    /// Pages are computed from a snapshot that readers share: writers copy it if it is in use, and never wait for a page.
    snapshot: RwLock<Arc<Snapshot>>,
    namespaces: Mutex<Namespaces>,
    states: Mutex<BTreeMap<Kind, WatchState>>,
    changes: Sender<Arc<Changed>>,
}

impl Default for Store {
    fn default() -> Self {
        Self {
            snapshot: RwLock::default(),
            namespaces: Mutex::default(),
            states: Mutex::new(Kind::ALL.map(|kind| (kind, WatchState::Starting)).into()),
            changes: channel(CHANGE_CAPACITY).0,
        }
    }
}

impl Store {
    /// Returns the current objects.
    fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes the objects.
    fn change<T>(&self, change: impl FnOnce(&mut Snapshot) -> T) -> T {
        let mut snapshot = self.snapshot.write().unwrap_or_else(PoisonError::into_inner);
        change(Arc::make_mut(&mut snapshot))
    }

    fn lock_namespaces(&self) -> MutexGuard<'_, Namespaces> {
        self.namespaces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_states(&self) -> MutexGuard<'_, BTreeMap<Kind, WatchState>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Subscribes to all later changes.
    pub(crate) fn subscribe(&self) -> Receiver<Arc<Changed>> {
        self.changes.subscribe()
    }

    /// Returns the namespaces of all machines.
    pub(crate) fn namespaces(&self) -> Arc<BTreeSet<String>> {
        self.lock_namespaces().all()
    }

    /// Returns the objects that a user may see.
    pub(crate) fn select(&self, visible: &Visible) -> Arc<Snapshot> {
        let snapshot = self.snapshot();
        if visible.is_everything() { snapshot } else { Arc::new(visible.select(&snapshot)) }
    }

    /// Returns the host of a VM.
    pub(crate) fn host_of(&self, machine: &ObjectName) -> Option<String> {
        let snapshot = self.snapshot.read().unwrap_or_else(PoisonError::into_inner);
        snapshot.instances.get(machine)?.host.clone()
    }

    /// Returns true if pages can be shown: no kind is being listed for the first time, and not all lists fail.
    pub(crate) fn is_listed(&self) -> bool {
        let states = self.lock_states();
        let is_listed =
            |state: &WatchState| matches!(state, WatchState::Listed | WatchState::Outdated(_));
        states.values().all(|state| *state != WatchState::Starting)
            && states.values().any(is_listed)
    }

    /// Returns the time since which objects of a kind may have changed without a change of pages; `None` if all are current.
    pub(crate) fn outdated_since(&self) -> Option<Time> {
        let states = self.lock_states();
        let times = states.values().filter_map(|state| match state {
            WatchState::Outdated(since) => Some(*since),
            _ => None,
        });
        times.min()
    }

    /// Adds or replaces an object. Returns the change if pages may show a difference.
    pub(crate) fn add(&self, kind: Kind, object: &Value) -> Option<Changed> {
        let name = object_name(object);
        let mut relations = Relations::default();
        let is_different = self.change(|all| {
            relations.add(all, kind, &name);
            self.lock_namespaces().track(all, kind, &name, |all| {
                // kubelets, agents and virt-handler write the same states again and again.
                let difference = add_object(all, kind, &name, object);
                relations.add(all, kind, &name);
                difference
            })
        });
        is_different.then_some(Changed { kind, name: Some(name), relations })
    }

    /// Removes an object, and returns the change.
    pub(super) fn remove(&self, kind: Kind, name: &ObjectName) -> Changed {
        let mut relations = Relations::default();
        self.change(|all| {
            relations.add(all, kind, name);
            self.lock_namespaces().track(all, kind, name, |all| all.remove(kind, name));
        });
        Changed { kind, name: Some(name.clone()), relations }
    }

    /// Records the state of a watch. If it changes, pages show the reason why objects are missing.
    pub(super) fn set_state(&self, kind: Kind, state: WatchState) {
        let mut states = self.lock_states();
        if states.insert(kind, state) == Some(state) {
            return;
        }
        self.change(|snapshot| {
            snapshot.unread.clear();
            snapshot.outdated.clear();
            for (kind, state) in states.iter() {
                if let Some(reason) = state.reason() {
                    snapshot.set_unread(*kind, None, reason);
                }
                if let WatchState::Outdated(since) = state {
                    snapshot.outdated.insert(*kind, *since);
                }
            }
        });
        drop(states);
        self.publish(Changed::of_kind(kind));
    }

    /// Returns the state of a watch.
    pub(super) fn state(&self, kind: Kind) -> WatchState {
        self.lock_states().get(&kind).copied().unwrap_or(WatchState::Starting)
    }

    pub(super) fn publish(&self, changed: Changed) {
        // Without a subscriber, the change is dropped.
        self.changes.send(Arc::new(changed)).unwrap_or_default();
    }
}

/// Adds an object, and returns true if its fields differ from those of its last version.
fn add_object(all: &mut Snapshot, kind: Kind, name: &ObjectName, object: &Value) -> bool {
    match kind {
        Kind::Node => differs(all, kind, object, |all| all.nodes.get(&name.name).cloned()),
        Kind::LauncherPod => differs(all, kind, object, |all| all.pods.get(name).cloned()),
        Kind::VirtualMachine => differs(all, kind, object, |all| all.machines.get(name).cloned()),
        Kind::VirtualMachineInstance => {
            differs(all, kind, object, |all| all.instances.get(name).cloned())
        }
        Kind::AddressClaim => {
            differs(all, kind, object, |all| all.address_claims.get(&name.name).cloned())
        }
        Kind::InfraNode => {
            let before = all.infra_nodes.get(&name.name).cloned();
            all.add(kind, object);
            match (before, all.infra_nodes.get(&name.name)) {
                (Some(before), Some(after)) => {
                    before.spec != after.spec || before.status != after.status
                }
                _ => true,
            }
        }
        _ => {
            all.add(kind, object);
            true
        }
    }
}

fn differs<T: PartialEq>(
    all: &mut Snapshot,
    kind: Kind,
    object: &Value,
    read: impl Fn(&Snapshot) -> Option<T>,
) -> bool {
    let before = read(all);
    all.add(kind, object);
    before.is_none() || before != read(all)
}

/// Returns namespace and name of an object.
pub(super) fn object_name(object: &Value) -> ObjectName {
    let field = |name: &str| object["metadata"][name].as_str().unwrap_or_default();
    ObjectName::new(field("namespace"), field("name"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::objects::visible::Scope;

    fn node(ready: &str, heartbeat: u32) -> Value {
        json!({
            "metadata": {"name": "a", "labels": {"example.com/rack": "r1"}},
            "status": {"conditions": [{"type": "Ready", "status": ready, "lastHeartbeatTime": heartbeat}]},
        })
    }

    #[test]
    fn only_differences_are_published() {
        let store = Store::default();
        assert!(store.add(Kind::Node, &node("True", 1)).is_some());
        assert!(
            store.add(Kind::Node, &node("True", 2)).is_none(),
            "only the heartbeat has changed"
        );
        assert!(store.add(Kind::Node, &node("False", 3)).is_some());
        store.remove(Kind::Node, &ObjectName::new("", "a"));
        assert!(store.snapshot().nodes.is_empty());
    }

    #[test]
    fn changes_name_the_hosts_before_and_after() {
        let store = Store::default();
        let instance = |host: &str| json!({"metadata": {"namespace": "x", "name": "vm"}, "status": {"nodeName": host}});
        store.add(Kind::VirtualMachineInstance, &instance("a"));
        let changed = store.add(Kind::VirtualMachineInstance, &instance("b")).unwrap();
        let hosts: Vec<&str> = changed.relations.hosts.iter().map(String::as_str).collect();
        assert_eq!(hosts, ["a", "b"]);
        assert_eq!(store.host_of(&ObjectName::new("x", "vm")).as_deref(), Some("b"));
        let machine = json!({"metadata": {"namespace": "x", "name": "vm"}});
        let changed = store.add(Kind::VirtualMachine, &machine).unwrap();
        assert!(changed.relations.hosts.contains("b") && changed.relations.hosts.len() == 1);
        assert!(changed.relations.machines.contains(&ObjectName::new("x", "vm")));
    }

    #[test]
    fn pages_keep_their_objects_while_the_store_changes() {
        let store = Store::default();
        store.add(Kind::Node, &node("True", 1));
        let everything = Visible::new(Kind::ALL.map(|kind| (kind, Scope::All)).into());
        let snapshot = store.select(&everything);
        store.remove(Kind::Node, &ObjectName::new("", "a"));
        assert!(snapshot.nodes.contains_key("a") && !store.snapshot().nodes.contains_key("a"));
    }

    #[test]
    fn kinds_that_are_not_listed_are_unread() {
        let store = Store::default();
        let mut changes = store.subscribe();
        assert!(!store.is_listed());
        for kind in Kind::ALL {
            store.set_state(kind, WatchState::Listed);
        }
        assert!(store.is_listed() && store.snapshot().unread.is_empty());
        assert_eq!(std::iter::from_fn(|| changes.try_recv().ok()).count(), Kind::ALL.len());
        store.set_state(Kind::Node, WatchState::Failing);
        store.set_state(Kind::Node, WatchState::Failing);
        assert_eq!(store.snapshot().unread.len(), 1);
        assert_eq!(std::iter::from_fn(|| changes.try_recv().ok()).count(), 1);
        assert!(store.is_listed(), "one kind that cannot be listed does not hide the others");
        let since = Time("2026-11-28T02:00:00Z".parse().unwrap());
        store.set_state(Kind::Node, WatchState::Outdated(since));
        assert!(store.snapshot().unread.is_empty());
        assert_eq!(store.snapshot().outdated[&Kind::Node], since);
        assert_eq!(store.outdated_since(), Some(since));
    }
}
