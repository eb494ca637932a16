//! Store of all objects that pages show.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use berth_views::{Kind, ObjectName, Snapshot};
use serde_json::Value;
use tokio::sync::broadcast::{Receiver, Sender, channel};

use super::visible::Visible;

/// Number of changes that a subscriber may be behind. A subscriber that is further behind treats all objects as changed.
const CHANGE_CAPACITY: usize = 4096;

/// A change of the store.
#[derive(Clone, Debug)]
pub(crate) struct Changed {
    pub(crate) kind: Kind,
    /// The object that was created, changed or deleted; `None` if any object of the kind may have changed.
    pub(crate) name: Option<ObjectName>,
}

/// State of the watch of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WatchState {
    Starting,
    NotInstalled,
    Failing,
    Listed,
}

impl WatchState {
    /// Returns the reason why objects are missing on pages; `None` if all are listed.
    const fn reason(self) -> Option<&'static str> {
        match self {
            Self::Starting => Some("they are being listed"),
            Self::NotInstalled => Some("the API server does not serve this kind"),
            Self::Failing => Some("the console cannot list them; its log has the reason"),
            Self::Listed => None,
        }
    }
}

/// All objects that pages show. One set of watches serves all users.
pub(crate) struct Store {
    snapshot: RwLock<Snapshot>,
    /// Rack of each host, from the label of the Node.
    racks: RwLock<BTreeMap<String, String>>,
    states: Mutex<BTreeMap<Kind, WatchState>>,
    changes: Sender<Changed>,
}

impl Default for Store {
    fn default() -> Self {
        Self {
            snapshot: RwLock::default(),
            racks: RwLock::default(),
            states: Mutex::new(Kind::ALL.map(|kind| (kind, WatchState::Starting)).into()),
            changes: channel(CHANGE_CAPACITY).0,
        }
    }
}

impl Store {
    fn write_snapshot(&self) -> RwLockWriteGuard<'_, Snapshot> {
        self.snapshot.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_snapshot(&self) -> RwLockReadGuard<'_, Snapshot> {
        self.snapshot.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Subscribes to all later changes.
    pub(crate) fn subscribe(&self) -> Receiver<Changed> {
        self.changes.subscribe()
    }

    /// Returns the namespaces of all machines.
    pub(crate) fn namespaces(&self) -> BTreeSet<String> {
        let snapshot = self.read_snapshot();
        let names = snapshot.machines.keys().chain(snapshot.instances.keys());
        let names = names.chain(snapshot.deployments.keys()).chain(snapshot.pods.keys());
        let mut namespaces = BTreeSet::new();
        for name in names {
            if !namespaces.contains(&name.namespace) {
                namespaces.insert(name.namespace.clone());
            }
        }
        namespaces
    }

    /// Calls `show` with the objects that a user may see. The store is locked until `show` returns, unless the user sees
    /// only a part.
    pub(crate) fn read<T>(&self, visible: &Visible, show: impl FnOnce(&Snapshot) -> T) -> T {
        let snapshot = self.read_snapshot();
        if visible.is_everything() {
            return show(&snapshot);
        }
        let selected = visible.select(&snapshot);
        drop(snapshot);
        show(&selected)
    }

    /// Returns the rack of a host.
    pub(crate) fn rack(&self, host: &str) -> Option<String> {
        self.racks.read().unwrap_or_else(PoisonError::into_inner).get(host).cloned()
    }

    /// Returns true if all installed kinds have been listed.
    pub(crate) fn is_listed(&self) -> bool {
        let states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        states.values().all(|state| matches!(state, WatchState::Listed | WatchState::NotInstalled))
    }

    /// Adds or replaces an object. Returns true if pages may show a difference.
    pub(crate) fn add(&self, kind: Kind, object: &Value) -> bool {
        let name = object_name(object);
        if kind == Kind::Node {
            let mut racks = self.racks.write().unwrap_or_else(PoisonError::into_inner);
            match rack_label(object) {
                Some(rack) => drop(racks.insert(name.name.clone(), rack.to_owned())),
                None => drop(racks.remove(&name.name)),
            }
        }
        let mut snapshot = self.write_snapshot();
        let all = &mut *snapshot;
        // kubelets and virt-handler write the same states again and again.
        match kind {
            Kind::Node => {
                adds_difference(all, kind, object, |all| all.nodes.get(&name.name).cloned())
            }
            Kind::LauncherPod => {
                adds_difference(all, kind, object, |all| all.pods.get(&name).cloned())
            }
            Kind::VirtualMachine => {
                adds_difference(all, kind, object, |all| all.machines.get(&name).cloned())
            }
            Kind::VirtualMachineInstance => {
                adds_difference(all, kind, object, |all| all.instances.get(&name).cloned())
            }
            _ => {
                all.add(kind, object);
                true
            }
        }
    }

    pub(super) fn remove(&self, kind: Kind, name: &ObjectName) {
        if kind == Kind::Node {
            self.racks.write().unwrap_or_else(PoisonError::into_inner).remove(&name.name);
        }
        self.write_snapshot().remove(kind, name);
    }

    /// Records the state of a watch. If it changes, pages show the reason why objects are missing.
    pub(super) fn set_state(&self, kind: Kind, state: WatchState) {
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        if states.insert(kind, state) == Some(state) {
            return;
        }
        let mut snapshot = self.write_snapshot();
        snapshot.unread.clear();
        for (kind, state) in states.iter() {
            if let Some(reason) = state.reason() {
                snapshot.set_unread(*kind, None, reason);
            }
        }
        drop(snapshot);
        self.publish(kind, None);
    }

    /// Returns the state of a watch.
    pub(super) fn state(&self, kind: Kind) -> WatchState {
        let states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        states.get(&kind).copied().unwrap_or(WatchState::Starting)
    }

    pub(super) fn publish(&self, kind: Kind, name: Option<ObjectName>) {
        // Without a subscriber, the change is dropped.
        self.changes.send(Changed { kind, name }).unwrap_or_default();
    }
}

/// Adds an object, and returns true if its fields differ from those of its last version.
fn adds_difference<T: PartialEq>(
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

/// Returns the value of the first label whose name, after the prefix, is `rack`.
fn rack_label(node: &Value) -> Option<&str> {
    let labels = node["metadata"]["labels"].as_object()?;
    let is_rack = |key: &str| key.rsplit('/').next() == Some("rack");
    labels.iter().find(|(key, _)| is_rack(key)).and_then(|(_, value)| value.as_str())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(ready: &str, heartbeat: u32) -> Value {
        json!({
            "metadata": {"name": "a", "labels": {"example.com/rack": "r1"}},
            "status": {"conditions": [{"type": "Ready", "status": ready, "lastHeartbeatTime": heartbeat}]},
        })
    }

    #[test]
    fn only_differences_are_published() {
        let store = Store::default();
        assert!(store.add(Kind::Node, &node("True", 1)));
        assert!(!store.add(Kind::Node, &node("True", 2)), "only the heartbeat has changed");
        assert!(store.add(Kind::Node, &node("False", 3)));
        assert_eq!(store.rack("a").as_deref(), Some("r1"));
        store.remove(Kind::Node, &ObjectName::new("", "a"));
        assert_eq!(store.rack("a"), None);
        assert!(store.read_snapshot().nodes.is_empty());
    }

    #[test]
    fn kinds_that_are_not_listed_are_unread() {
        let store = Store::default();
        let mut changes = store.subscribe();
        assert!(!store.is_listed());
        for kind in Kind::ALL {
            store.set_state(kind, WatchState::Listed);
        }
        assert!(store.is_listed() && store.read_snapshot().unread.is_empty());
        assert_eq!(std::iter::from_fn(|| changes.try_recv().ok()).count(), Kind::ALL.len());
        store.set_state(Kind::Node, WatchState::Failing);
        store.set_state(Kind::Node, WatchState::Failing);
        assert_eq!(store.read_snapshot().unread.len(), 1);
        assert_eq!(std::iter::from_fn(|| changes.try_recv().ok()).count(), 1);
    }
}
