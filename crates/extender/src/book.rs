//! Who has what, and since when: one entry for each pod that takes room on a host.
//!
//! Amounts are the engine's; here is only why they are booked, and until when. One record for each holder, never a
//! counter, so nothing can be given back twice.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_kubevirt_render::launcher::Existing;
use berth_placement::engine::Request;

/// The same for a pod of a PodGroup. kube-scheduler 1.36 asks for each pod of the group and for each placement that it
/// simulates, and does not tell an extender which of them it drops (`podGroupPodSchedulingAlgorithm`).
pub(super) const OF_GROUP: Duration = Duration::from_secs(10);
/// After the last `filter` a pod is bound, or asked about again, within so long.
pub(super) const RESERVED: Duration = Duration::from_secs(30);
/// While volumes are made: the scheduler waits ten minutes for them (`bindTimeoutSeconds`).
pub(super) const WITH_VOLUMES: Duration = Duration::from_secs(660);
/// A binding whose outcome nobody knows shows on the watch within so long.
pub(super) const BINDING: Duration = Duration::from_secs(60);
/// A pod that no report has listed yet may have been given its CPUs all the same when it goes.
pub(super) const LEAVING: Duration = Duration::from_secs(10);
/// A pod that was bound here is on every list of pods that is made so much later.
pub(super) const LISTED: Duration = Duration::from_secs(60);

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The scheduler was told the host.
    Reserved { until: Instant },
    /// The binding was sent, and nobody knows yet what became of it.
    Binding { until: Instant },
    /// It is on the host.
    Bound { since: Instant },
    /// A stand-in has gone, and its VM's own pod is to have its place.
    Kept { until: Option<Instant> },
    /// It has gone, and its kubelet may not know yet.
    Leaving { until: Instant },
    /// It is being deleted, and its kubelet has taken back what it had.
    Ended,
}

impl Stage {
    fn end(self) -> Option<Instant> {
        match self {
            Self::Reserved { until } | Self::Binding { until } | Self::Leaving { until } => {
                Some(until)
            }
            Self::Kept { until } => until,
            Self::Bound { .. } | Self::Ended => None,
        }
    }

    /// Whether it may be moved: nothing of it is on a host.
    pub(super) const fn is_movable(self) -> bool {
        matches!(self, Self::Reserved { .. } | Self::Kept { .. })
    }
}

/// One VM's pod: a VM that migrates has two. With the pod's namespace, so that a pod has no other namespace's VM.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) namespace: String,
    pub(super) instance: String,
    /// The migration whose target it is; empty if it is none.
    pub(super) migration: String,
}

impl Key {
    pub(super) fn of(existing: &Existing) -> Option<Self> {
        let instance = existing.vmi_uid.clone()?;
        let migration = existing.migration_uid.clone().unwrap_or_default();
        Some(Self { namespace: existing.namespace.clone(), instance, migration })
    }
}

/// What one pod has.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) host: Arc<str>,
    pub(super) stage: Stage,
    pub(super) request: Request,
    pub(super) key: Option<Key>,
    pub(super) is_stand_in: bool,
    /// What of the pod rules of others read, as it was when it was booked.
    pub(super) stamp: u64,
    /// Whether the watch has shown it on its host.
    pub(super) is_seen: bool,
    /// Whether a report has listed it.
    pub(super) is_listed: bool,
    pub(super) is_terminating: bool,
}

/// Whether a kubelet gives it CPUs or pages of its own, of zones.
pub(super) fn has_own(request: &Request) -> bool {
    request.pinned_cpus() > 0 || request.page_size().is_some()
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Book {
    entries: HashMap<Arc<str>, Entry>,
    /// The pod that has the place of a VM.
    keys: HashMap<Key, Arc<str>>,
    /// Those that end by themselves, or that move on.
    loose: BTreeSet<Arc<str>>,
    /// Pods by hosts that nothing else is known of.
    unhoused: BTreeMap<Arc<str>, BTreeSet<Arc<str>>>,
    hosts: HashSet<Arc<str>>,
}

impl Book {
    /// A host's name, kept once.
    pub(super) fn host(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.hosts.get(name) {
            return Arc::clone(known);
        }
        let name: Arc<str> = name.into();
        self.hosts.insert(Arc::clone(&name));
        name
    }

    pub(super) fn get(&self, uid: &str) -> Option<&Entry> {
        self.entries.get(uid)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (&Arc<str>, &Entry)> {
        self.entries.iter()
    }

    /// Those that are not bound.
    pub(super) fn loose(&self) -> impl Iterator<Item = (&Arc<str>, &Entry)> {
        self.loose.iter().filter_map(|uid| Some((uid, self.entries.get(uid)?)))
    }

    /// The pod that has a VM's place.
    pub(super) fn holder(&self, key: &Key) -> Option<&Arc<str>> {
        self.keys.get(key)
    }

    /// Writes an entry; its VM's place is its own from now on.
    pub(super) fn put(&mut self, uid: &str, entry: Entry) {
        let uid: Arc<str> = uid.into();
        if let Some(key) = &entry.key {
            self.keys.insert(key.clone(), Arc::clone(&uid));
        }
        self.loosen(&uid, entry.stage);
        self.entries.insert(uid, entry);
    }

    /// It is further.
    pub(super) fn set(&mut self, uid: &str, stage: Stage) {
        let Some((uid, _)) = self.entries.get_key_value(uid) else { return };
        let uid = Arc::clone(uid);
        if let Some(entry) = self.entries.get_mut(&uid) {
            entry.stage = stage;
        }
        self.loosen(&uid, stage);
    }

    /// The watch shows it there.
    pub(super) fn see(&mut self, uid: &str, is_terminating: bool) {
        if let Some(entry) = self.entries.get_mut(uid) {
            (entry.is_seen, entry.is_terminating) = (true, is_terminating);
        }
    }

    /// A report lists it.
    pub(super) fn list(&mut self, uid: &str) {
        if let Some(entry) = self.entries.get_mut(uid) {
            entry.is_listed = true;
        }
    }

    fn loosen(&mut self, uid: &Arc<str>, stage: Stage) {
        if matches!(stage, Stage::Bound { .. } | Stage::Ended) {
            self.loose.remove(uid);
        } else {
            self.loose.insert(Arc::clone(uid));
        }
    }

    pub(super) fn remove(&mut self, uid: &str) -> Option<Entry> {
        let entry = self.entries.remove(uid)?;
        if let Some(key) = &entry.key
            && self.keys.get(key).is_some_and(|holder| &**holder == uid)
        {
            self.keys.remove(key);
        }
        self.loose.remove(uid);
        if let Some(pods) = self.unhoused.get_mut(&entry.host) {
            pods.remove(uid);
        }
        Some(entry)
    }

    /// Those whose time is over.
    pub(super) fn over(&self, now: Instant) -> Vec<Arc<str>> {
        let over = |entry: &Entry| entry.stage.end().is_some_and(|end| end <= now);
        let loose = self.loose().filter(|(_, entry)| over(entry));
        loose.map(|(uid, _)| Arc::clone(uid)).collect()
    }

    /// Its host is not known yet.
    pub(super) fn unhouse(&mut self, uid: &str) {
        if let Some((uid, entry)) = self.entries.get_key_value(uid) {
            let host = Arc::clone(&entry.host);
            self.unhoused.entry(host).or_default().insert(Arc::clone(uid));
        }
    }

    /// Pods on a Node without a report.
    pub(super) fn on_unreported(&self, node: &str) -> impl Iterator<Item = &Arc<str>> {
        self.unhoused.get(node).into_iter().flatten()
    }

    /// A host has come: the pods that were waiting for it.
    pub(super) fn housed(&mut self, host: &str) -> BTreeSet<Arc<str>> {
        self.unhoused.remove(host).unwrap_or_default()
    }
}
