//! Store of the Nodes of a tenant, with limited memory.

use std::collections::{BTreeMap, BTreeSet};

use berth_runtime::untrusted::CollectionEvent;

use super::node::{NodeObject, TenantNode};
use super::node_budget::{ListBytes, NodeBudget};
use super::node_match::named_machine;
use crate::tenant_object::name_hash;

/// Maximum number of Nodes of a tenant, as Kubernetes supports in one cluster.
const MAX_NODES: usize = 5_000;
/// Maximum number of omitted Nodes that are counted.
const MAX_OMITTED: usize = 10_000;

/// The Nodes of a tenant.
///
/// While a list is received, a Node that is already stored is replaced immediately, because there may be no memory for
/// a second version. Nodes that the list adds or lacks only take effect when the list is complete.
#[derive(Debug)]
pub struct NodeStore {
    budget: NodeBudget,
    current: LimitedNodes,
    list: ListProgress,
    is_listed: bool,
}

/// A list that is not complete yet.
#[derive(Debug)]
struct ListProgress {
    /// Nodes in the list that were not stored before.
    added: LimitedNodes,
    /// Hashes of the names of stored Nodes that the list contains again.
    kept: BTreeSet<u64>,
    /// True if the list has replaced a stored Node by a different version.
    has_changed: bool,
}

#[derive(Debug)]
struct LimitedNodes {
    nodes: BTreeMap<String, TenantNode>,
    bytes: ListBytes,
    /// Hashes of the names of omitted Nodes. A plain counter would count a Node once for each of its events.
    omitted: BTreeSet<u64>,
}

impl Default for NodeStore {
    fn default() -> Self {
        Self::new(&NodeBudget::default())
    }
}

impl NodeStore {
    /// Returns a store without Nodes, which shares `budget` with the stores of other tenants.
    #[must_use]
    pub fn new(budget: &NodeBudget) -> Self {
        Self {
            budget: budget.clone(),
            current: LimitedNodes::new(budget),
            list: ListProgress::new(budget),
            is_listed: false,
        }
    }

    /// Returns the Nodes, by name.
    #[must_use]
    pub const fn nodes(&self) -> &BTreeMap<String, TenantNode> {
        &self.current.nodes
    }

    /// Returns true if the Nodes were listed completely at least once.
    #[must_use]
    pub const fn is_listed(&self) -> bool {
        self.is_listed
    }

    /// Returns the number of Nodes that are omitted because of their names or a limit, at most 10,000.
    #[must_use]
    pub fn omitted(&self) -> usize {
        self.current.omitted.len()
    }

    /// Returns the machines to which a Node may belong: that of its name, and that of its providerID.
    #[must_use]
    pub fn machines_of(&self, node: &str) -> BTreeSet<String> {
        let named = self.current.nodes.get(node).and_then(named_machine);
        [Some(node), named].into_iter().flatten().map(str::to_owned).collect()
    }

    /// Handles an event of a list or a watch. Returns true if the Nodes have changed.
    pub fn handle(&mut self, event: CollectionEvent<NodeObject>, own_manager: &str) -> bool {
        match event {
            CollectionEvent::ListStarted => {
                let has_changed = self.list.has_changed;
                self.list = ListProgress { has_changed, ..ListProgress::new(&self.budget) };
                false
            }
            CollectionEvent::Listed(object) => {
                self.insert_listed(object, own_manager);
                false
            }
            CollectionEvent::ListCompleted => self.complete_list(),
            CollectionEvent::Applied(object) => self.current.insert(object, own_manager),
            CollectionEvent::Deleted(object) => {
                let was_omitted = self.current.omitted.remove(&name_hash(object.name()));
                self.current.remove(object.name()).is_some() || was_omitted
            }
        }
    }

    fn insert_listed(&mut self, object: NodeObject, own_manager: &str) {
        let Self { current, list, .. } = self;
        let name = object.name().to_owned();
        if !current.nodes.contains_key(&name) {
            list.added.insert(object, own_manager);
            return;
        }
        list.has_changed |= current.insert(object, own_manager);
        if current.nodes.contains_key(&name) {
            list.kept.insert(name_hash(&name));
        } else {
            list.added.omit(&name);
        }
    }

    /// Applies a complete list. Returns true if the Nodes have changed since the previous complete list.
    fn complete_list(&mut self) -> bool {
        let list = std::mem::replace(&mut self.list, ListProgress::new(&self.budget));
        let ListProgress { mut added, kept, mut has_changed } = list;
        let current = &mut self.current;
        // The result is not larger than the larger of the two lists was before, so the bytes for all its Nodes are
        // already reserved.
        let held = current.bytes.byte_count().max(added.bytes.byte_count());
        let names = current.nodes.keys();
        let gone = names.filter(|name| !kept.contains(&name_hash(name))).cloned();
        for name in gone.collect::<Vec<_>>() {
            has_changed |= current.remove(&name).is_some();
        }
        for (name, node) in std::mem::take(&mut added.nodes) {
            has_changed |= current.remove(&name).is_some();
            let byte_count = node.byte_count();
            let fits = current.nodes.len() < MAX_NODES
                && current.bytes.move_from(&mut added.bytes, byte_count, held);
            if fits {
                has_changed = true;
                current.nodes.insert(name, node);
            } else {
                added.omit(&name);
            }
        }
        has_changed |= current.omitted != added.omitted;
        current.omitted = added.omitted;
        let is_first = !std::mem::replace(&mut self.is_listed, true);
        is_first || has_changed
    }
}

impl ListProgress {
    fn new(budget: &NodeBudget) -> Self {
        Self { added: LimitedNodes::new(budget), kept: BTreeSet::new(), has_changed: false }
    }
}

impl LimitedNodes {
    fn new(budget: &NodeBudget) -> Self {
        Self { nodes: BTreeMap::new(), bytes: budget.add_list(), omitted: BTreeSet::new() }
    }

    fn remove(&mut self, name: &str) -> Option<TenantNode> {
        let removed = self.nodes.remove(name)?;
        self.bytes.release(removed.byte_count());
        Some(removed)
    }

    /// Counts a Node that is not stored. Returns true if this Node was not counted before.
    fn omit(&mut self, name: &str) -> bool {
        self.omitted.len() < MAX_OMITTED && self.omitted.insert(name_hash(name))
    }

    /// Inserts a Node if the limits permit it. An earlier version of a Node that does not fit any more is removed.
    /// Returns true if a Node has changed.
    fn insert(&mut self, object: NodeObject, own_manager: &str) -> bool {
        let (name, before) = (object.name().to_owned(), self.nodes.remove(object.name()));
        let byte_count = before.as_ref().map_or(0, TenantNode::byte_count);
        let node = TenantNode::from_object(object, own_manager).ok();
        let fits = |node: &TenantNode| {
            self.nodes.len() < MAX_NODES && self.bytes.resize(byte_count, node.byte_count())
        };
        let Some(node) = node.filter(fits) else {
            self.bytes.release(byte_count);
            return self.omit(&name) || before.is_some();
        };
        let is_changed = self.omitted.remove(&name_hash(&name)) || before.as_ref() != Some(&node);
        self.nodes.insert(node.name.clone(), node);
        is_changed
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tenant_nodes::node_budget::MAX_BYTES;

    fn object(name: &str, labels: serde_json::Value) -> NodeObject {
        serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}})).unwrap()
    }

    fn plain(name: &str) -> NodeObject {
        object(name, json!({}))
    }

    fn handle(store: &mut NodeStore, event: CollectionEvent<NodeObject>) -> bool {
        store.handle(event, "berth-controller")
    }

    fn names(store: &NodeStore) -> Vec<&str> {
        store.nodes().keys().map(String::as_str).collect()
    }

    #[test]
    fn a_list_replaces_the_nodes_when_it_is_complete() {
        let mut store = NodeStore::default();
        handle(&mut store, CollectionEvent::Applied(plain("old")));
        handle(&mut store, CollectionEvent::ListStarted);
        handle(&mut store, CollectionEvent::Listed(plain("new")));
        assert_eq!(names(&store), ["old"], "the list is not complete");
        assert!(handle(&mut store, CollectionEvent::ListCompleted));
        assert_eq!(names(&store), ["new"]);
        assert!(!handle(&mut store, CollectionEvent::Applied(plain("new"))), "nothing has changed");
        assert!(handle(&mut store, CollectionEvent::Applied(object("new", json!({"a": "b"})))));
        assert!(handle(&mut store, CollectionEvent::Deleted(plain("new"))));
        assert!(!handle(&mut store, CollectionEvent::Deleted(plain("new"))));
        assert_eq!(store.current.bytes.byte_count(), 0);
    }

    #[test]
    fn a_node_may_belong_to_two_machines() {
        let mut store = NodeStore::default();
        let object = json!({"metadata": {"name": "a"}, "spec": {"providerID": "kubevirt://web-1"}});
        handle(&mut store, CollectionEvent::Applied(serde_json::from_value(object).unwrap()));
        let machines: Vec<String> = store.machines_of("a").into_iter().collect();
        assert_eq!(machines, ["a", "web-1"]);
        assert_eq!(store.machines_of("b").len(), 1);
    }

    #[test]
    fn an_omitted_node_is_counted_once() {
        let mut store = NodeStore::default();
        let large = || object("large", json!({"a": "x".repeat(100_000)}));
        assert!(handle(&mut store, CollectionEvent::Applied(large())));
        assert!(!handle(&mut store, CollectionEvent::Applied(large())), "the same event again");
        assert_eq!(store.omitted(), 1);
        assert!(handle(&mut store, CollectionEvent::Applied(plain("large"))));
        assert_eq!((store.omitted(), store.nodes().len()), (0, 1));
        handle(&mut store, CollectionEvent::Applied(large()));
        assert!(handle(&mut store, CollectionEvent::Deleted(large())));
        assert_eq!((store.omitted(), store.nodes().len()), (0, 0));
    }

    #[test]
    fn a_flood_of_nodes_is_limited() {
        let mut store = NodeStore::default();
        for number in 0..MAX_NODES + 10 {
            handle(&mut store, CollectionEvent::Listed(plain(&format!("node-{number}"))));
        }
        let value = "x".repeat(60_000);
        handle(&mut store, CollectionEvent::ListCompleted);
        assert_eq!((store.nodes().len(), store.omitted()), (MAX_NODES, 10));
        for number in 0..400 {
            let large = object(&format!("node-{number}"), json!({"a": value}));
            handle(&mut store, CollectionEvent::Applied(large));
        }
        let bytes = store.current.bytes.byte_count();
        assert!(bytes <= MAX_BYTES, "{bytes}");
        assert!(store.omitted() > 100, "{}", store.omitted());
    }

    #[test]
    fn floods_of_other_tenants_remove_no_nodes() {
        let budget = NodeBudget::default();
        let mut store = NodeStore::new(&budget);
        let node = |number: usize, value: &str| large_node(&format!("node-{number}"), value);
        for number in 0..100 {
            handle(&mut store, CollectionEvent::Applied(node(number, "a")));
        }
        let mut others: Vec<_> = (0..400).map(|_| budget.add_list()).collect();
        others.iter_mut().for_each(|one| while one.reserve(1 << 16) {});
        assert!(!store.current.bytes.reserve(1), "the list has more than it is guaranteed");
        for number in 0..100 {
            handle(&mut store, CollectionEvent::Applied(node(number, "b")));
        }
        assert_eq!((store.nodes().len(), store.omitted()), (100, 0));
    }

    fn large_node(name: &str, value: &str) -> NodeObject {
        let labels: serde_json::Map<String, serde_json::Value> =
            (0..100).map(|label| (format!("label-{label}"), value.into())).collect();
        object(name, labels.into())
    }

    fn list(store: &mut NodeStore, nodes: impl Iterator<Item = NodeObject>) -> bool {
        handle(store, CollectionEvent::ListStarted);
        for node in nodes {
            handle(store, CollectionEvent::Listed(node));
        }
        handle(store, CollectionEvent::ListCompleted)
    }

    #[test]
    fn a_relist_keeps_the_nodes_of_a_large_tenant() {
        let budget = NodeBudget::default();
        let mut store = NodeStore::new(&budget);
        let nodes =
            |value: &'static str| (0..100).map(move |one| large_node(&format!("n-{one}"), value));
        assert!(list(&mut store, nodes("a")));
        let held = store.current.bytes.byte_count();
        assert!(held > 1 << 19, "more than is guaranteed: {held}");
        let mut others: Vec<_> = (0..400).map(|_| budget.add_list()).collect();
        others.iter_mut().for_each(|one| while one.reserve(1 << 16) {});
        assert!(!store.current.bytes.reserve(1));
        assert!(!list(&mut store, nodes("a")), "nothing has changed");
        assert!(list(&mut store, nodes("b")), "each Node has changed");
        assert_eq!((store.nodes().len(), store.omitted()), (100, 0));
        // A list that was not completed is started again.
        handle(&mut store, CollectionEvent::ListStarted);
        handle(&mut store, CollectionEvent::Listed(large_node("n-1", "c")));
        assert_eq!(store.list.added.bytes.byte_count(), 0, "the Node is counted once");
        assert!(list(&mut store, nodes("c").take(99)), "one Node was deleted");
        assert_eq!((store.nodes().len(), store.omitted()), (99, 0));
    }

    #[test]
    fn relists_do_not_exceed_the_share_of_a_tenant() {
        let budget = NodeBudget::default();
        let mut store = NodeStore::new(&budget);
        let mut others: Vec<_> = (0..400).map(|_| budget.add_list()).collect();
        others.iter_mut().for_each(|one| while one.reserve(1 << 16) {});
        for round in 1..=4 {
            // Each list contains the Nodes of the previous list, and twenty new ones.
            list(&mut store, (0..20 * round).map(|one| large_node(&format!("n-{one:03}"), "a")));
            let bytes = store.current.bytes.byte_count();
            assert!(bytes <= 1 << 19, "{bytes}");
        }
        assert!(store.nodes().len() >= 20 && store.omitted() > 0, "{}", store.omitted());
        // All Nodes are replaced by Nodes with new names.
        let before = store.nodes().len();
        list(&mut store, (0..before).map(|one| large_node(&format!("m-{one:03}"), "a")));
        assert_eq!((store.nodes().len(), store.omitted()), (before, 0));
    }

    #[test]
    fn floods_of_other_tenants_omit_no_usual_nodes() {
        let budget = NodeBudget::default();
        let mut others: Vec<_> = (0..400).map(|_| budget.add_list()).collect();
        others.iter_mut().for_each(|one| while one.reserve(1 << 16) {});
        let mut store = NodeStore::new(&budget);
        for _ in 0..3 {
            handle(&mut store, CollectionEvent::ListStarted);
            for number in 0..100 {
                let labels = json!({"a": "x".repeat(4_000)});
                let node = object(&format!("node-{number}"), labels);
                handle(&mut store, CollectionEvent::Listed(node));
            }
            handle(&mut store, CollectionEvent::ListCompleted);
            assert_eq!((store.nodes().len(), store.omitted()), (100, 0));
        }
    }
}
