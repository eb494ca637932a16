//! Finds the Node of each machine in a tenant's cluster: by its providerID, or else by its name.
//!
//! The tenant determines both, so a Node may claim to be that of another machine. Then the labels of a host only reach
//! a wrong Node of the same tenant. If several Nodes name the same machine in their providerIDs, none of them is taken
//! for the Node of this machine.

use std::collections::BTreeMap;

use super::node::{NodeObject, TenantNode};

/// Prefix of the providerID that KubeVirt's cloud controller manager and machine-controller set. The rest is the name
/// of the VirtualMachineInstance.
const PROVIDER_ID_PREFIX: &str = "kubevirt://";

/// Node of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeMatch<'n> {
    /// The Node of the machine.
    Found(&'n TenantNode),
    /// This number of Nodes have the machine's providerID.
    Ambiguous(usize),
    /// The machine has no Node, for example because it has not joined the cluster yet.
    None,
}

/// Index of the Nodes of a tenant by the machine that the providerID of each Node names.
#[derive(Clone, Debug, Default)]
pub struct NodeIndex<'n> {
    by_name: Option<&'n BTreeMap<String, TenantNode>>,
    by_machine: BTreeMap<&'n str, Vec<&'n TenantNode>>,
}

impl<'n> NodeIndex<'n> {
    /// Returns the index of these Nodes.
    #[must_use]
    pub fn new(nodes: &'n BTreeMap<String, TenantNode>) -> Self {
        let mut by_machine: BTreeMap<&str, Vec<&TenantNode>> = BTreeMap::new();
        for node in nodes.values() {
            if let Some(machine) = named_machine(node) {
                by_machine.entry(machine).or_default().push(node);
            }
        }
        Self { by_name: Some(nodes), by_machine }
    }

    #[must_use]
    pub fn find(&self, machine: &str) -> NodeMatch<'n> {
        match self.by_machine.get(machine).map(Vec::as_slice) {
            Some([node]) => return NodeMatch::Found(node),
            Some(nodes) => return NodeMatch::Ambiguous(nodes.len()),
            None => {}
        }
        let node = self.by_name.and_then(|nodes| nodes.get(machine));
        // If the providerID of this Node names another machine, the Node belongs to that machine, even though its name
        // is that of the machine sought.
        let node = node.filter(|node| named_machine(node).is_none());
        node.map_or(NodeMatch::None, NodeMatch::Found)
    }
}

/// Returns the machine that the providerID of a Node names.
#[must_use]
pub fn named_machine(node: &TenantNode) -> Option<&str> {
    node.provider_id.as_deref()?.strip_prefix(PROVIDER_ID_PREFIX)
}

/// Returns true if [`NodeIndex::find`] may return this Node for the machine.
#[must_use]
pub fn may_be_node_of(node: &NodeObject, machine: &str) -> bool {
    match node.provider_id().and_then(|id| id.strip_prefix(PROVIDER_ID_PREFIX)) {
        Some(named) => named == machine,
        None => node.name() == machine,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn nodes(all: &[(&str, Option<&str>)]) -> BTreeMap<String, TenantNode> {
        let node = |(name, id): &(&str, Option<&str>)| {
            let provider_id = id.map(str::to_owned);
            let name = (*name).to_owned();
            (name.clone(), TenantNode { name, provider_id, ..TenantNode::default() })
        };
        all.iter().map(node).collect()
    }

    fn find(all: &[(&str, Option<&str>)], machine: &str) -> Result<Option<String>, usize> {
        let nodes = nodes(all);
        match NodeIndex::new(&nodes).find(machine) {
            NodeMatch::Found(node) => Ok(Some(node.name.clone())),
            NodeMatch::None => Ok(None),
            NodeMatch::Ambiguous(count) => Err(count),
        }
    }

    #[test]
    fn the_provider_id_precedes_the_name() {
        let renamed = [("other", Some("kubevirt://web-1")), ("web-1", Some("kubevirt://web-2"))];
        assert_eq!(find(&renamed, "web-1"), Ok(Some("other".to_owned())));
        assert_eq!(find(&renamed, "web-2"), Ok(Some("web-1".to_owned())));
        assert_eq!(find(&renamed, "other"), Ok(None));
        let without_id = [("web-1", None), ("web-2", Some("aws:///i-1"))];
        assert_eq!(find(&without_id, "web-1"), Ok(Some("web-1".to_owned())));
        assert_eq!(find(&without_id, "web-2"), Ok(Some("web-2".to_owned())));
        assert_eq!(find(&[], "web-1"), Ok(None));
    }

    #[test]
    fn an_object_is_matched_as_in_the_index() {
        let is_match = |name: &str, id: Option<&str>| {
            let object = json!({"metadata": {"name": name}, "spec": {"providerID": id}});
            may_be_node_of(&serde_json::from_value(object).unwrap(), "web-1")
        };
        assert!(is_match("web-1", None) && is_match("web-1", Some("aws:///i-1")));
        assert!(is_match("other", Some("kubevirt://web-1")));
        assert!(!is_match("web-1", Some("kubevirt://web-2")) && !is_match("other", None));
    }

    #[test]
    fn several_nodes_of_one_machine_are_ambiguous() {
        let all = [
            ("web-1", Some("kubevirt://web-1")),
            ("thief", Some("kubevirt://web-1")),
            ("web-2", None),
        ];
        assert_eq!(find(&all, "web-1"), Err(2));
        assert_eq!(find(&all, "web-2"), Ok(Some("web-2".to_owned())));
    }
}
