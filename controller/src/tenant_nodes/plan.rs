//! Plan for the labels of all Nodes of a tenant.

use std::collections::BTreeMap;

use super::labels::{LabelConflict, plan_labels};
use super::node::TenantNode;
use super::node_match::{NodeIndex, NodeMatch};

/// Write of the labels of one Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeWrite {
    /// Name of the Node.
    pub node: String,
    /// UID of the Node: the write must not affect a later Node of the same name.
    pub uid: String,
    /// All labels that Berth owns after the write.
    pub labels: BTreeMap<String, String>,
}

/// Plan for the labels of all Nodes of a tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantPlan {
    /// Writes that are needed.
    pub writes: Vec<NodeWrite>,
    /// Nodes with labels of another manager.
    pub conflicts: Vec<(String, LabelConflict)>,
    /// Machines that several Nodes name, with the number of Nodes.
    pub ambiguous: Vec<(String, usize)>,
    /// Number of Nodes whose labels are, or will be, those of their hosts.
    pub node_count: usize,
    /// Number of machines that have no Node, or are on no host.
    pub pending_count: usize,
}

/// Computes the writes for the Nodes of a tenant. `machines` contains its machines with their hosts. `host_labels` returns
/// the labels to copy from a host; `None` if the host is not known.
///
/// A Node keeps its labels while its machine is on no known host: an unknown fact removes no label.
#[must_use]
pub fn plan_tenant(
    machines: &BTreeMap<String, Option<String>>,
    nodes: &BTreeMap<String, TenantNode>,
    host_labels: impl Fn(&str) -> Option<BTreeMap<String, String>>,
) -> TenantPlan {
    let (mut plan, index) = (TenantPlan::default(), NodeIndex::new(nodes));
    for (machine, host) in machines {
        let node = match index.find(machine) {
            NodeMatch::Found(node) => node,
            NodeMatch::Ambiguous(count) => {
                plan.ambiguous.push((machine.clone(), count));
                continue;
            }
            NodeMatch::None => {
                plan.pending_count = plan.pending_count.saturating_add(1);
                continue;
            }
        };
        let Some(desired) = host.as_deref().and_then(&host_labels) else {
            plan.pending_count = plan.pending_count.saturating_add(1);
            continue;
        };
        plan.node_count = plan.node_count.saturating_add(1);
        let labels = plan_labels(&desired, node);
        let conflicts = labels.conflicts.into_iter();
        plan.conflicts.extend(conflicts.map(|conflict| (node.name.clone(), conflict)));
        if labels.is_different {
            plan.writes.push(NodeWrite {
                node: node.name.clone(),
                uid: node.uid.clone(),
                labels: labels.labels,
            });
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(names: &[&str]) -> BTreeMap<String, TenantNode> {
        let node = |name: &&str| {
            let name = (*name).to_owned();
            (name.clone(), TenantNode { name, uid: "u".to_owned(), ..TenantNode::default() })
        };
        names.iter().map(node).collect()
    }

    fn machines(all: &[(&str, Option<&str>)]) -> BTreeMap<String, Option<String>> {
        all.iter().map(|(name, host)| ((*name).to_owned(), host.map(str::to_owned))).collect()
    }

    fn host_labels(host: &str) -> Option<BTreeMap<String, String>> {
        host.starts_with("rack").then(|| BTreeMap::from([("rack".to_owned(), host.to_owned())]))
    }

    #[test]
    fn each_node_gets_the_labels_of_its_host() {
        let machines = machines(&[
            ("web-1", Some("rack1")),
            ("web-2", Some("rack2")),
            ("web-3", Some("rack1")),
        ]);
        let plan = plan_tenant(&machines, &nodes(&["web-1", "web-2", "other"]), host_labels);
        let written: Vec<(&str, &str)> = plan
            .writes
            .iter()
            .map(|write| (write.node.as_str(), write.labels["rack"].as_str()))
            .collect();
        assert_eq!(written, [("web-1", "rack1"), ("web-2", "rack2")]);
        assert_eq!((plan.node_count, plan.pending_count), (2, 1), "web-3 has not joined");
    }

    #[test]
    fn unknown_hosts_remove_no_labels() {
        let machines = machines(&[("web-1", None), ("web-2", Some("gone"))]);
        let mut nodes = nodes(&["web-1", "web-2"]);
        for node in nodes.values_mut() {
            let label = crate::tenant_nodes::node::NodeLabel {
                value: "rack1".to_owned(),
                is_own: true,
                other_manager: None,
            };
            node.labels.insert("rack".to_owned(), label);
        }
        let plan = plan_tenant(&machines, &nodes, host_labels);
        assert_eq!((plan.writes.len(), plan.pending_count), (0, 2));
    }
}
