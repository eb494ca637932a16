//! Plan for the labels, annotations and taints of all Nodes of a tenant.

use std::collections::{BTreeMap, BTreeSet};

use super::fields::{FieldConflict, plan_fields};
use super::host_fields::HostFields;
use super::keys::FieldKind;
use super::node::TenantNode;
use super::node_match::{NodeIndex, NodeMatch};
use super::replicated_taint::NodeTaint;
use super::taint_changes::plan_taints;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeWrite {
    /// Name of the Node.
    pub node: String,
    /// UID of the Node: the write must not affect a later Node of the same name.
    pub uid: String,
    /// Labels and annotations to apply; `None` if they are as desired.
    pub metadata: Option<OwnedMetadata>,
    /// Taints of Berth that the Node should have; `None` if they are as desired. The write does not change taints of
    /// other managers.
    pub taints: Option<BTreeSet<NodeTaint>>,
}

/// All labels and annotations that Berth owns after a write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnedMetadata {
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
}

/// Plan for all Nodes of a tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantPlan {
    /// Writes that are needed.
    pub writes: Vec<NodeWrite>,
    /// Names of Nodes, each with a field that is not changed because another manager owns it.
    pub conflicts: Vec<(String, FieldConflict)>,
    /// Machines whose names are in the providerIDs of several Nodes, with the number of these Nodes.
    pub ambiguous: Vec<(String, usize)>,
    /// Number of Nodes that have the labels of their hosts, or will have them after the writes.
    pub node_count: usize,
    /// Number of machines that have no Node, or are on no host.
    pub pending_count: usize,
}

/// Computes the writes for the Nodes of a tenant. `machines` contains the machines of the tenant with their hosts.
/// `host_fields` returns the fields of a host to be copied; `None` if the host is not known.
///
/// A Node retains its labels while its machine is on no known host, because missing information must not remove labels.
#[must_use]
pub fn plan_tenant(
    machines: &BTreeMap<String, Option<String>>,
    nodes: &BTreeMap<String, TenantNode>,
    host_fields: impl Fn(&str) -> Option<HostFields>,
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
        let Some(desired) = host.as_deref().and_then(&host_fields) else {
            plan.pending_count = plan.pending_count.saturating_add(1);
            continue;
        };
        plan.node_count = plan.node_count.saturating_add(1);
        plan.add_node(desired, node);
    }
    plan
}

impl TenantPlan {
    fn add_node(&mut self, desired: HostFields, node: &TenantNode) {
        let labels = plan_fields(FieldKind::Label, &desired.labels, &node.labels);
        let annotations =
            plan_fields(FieldKind::Annotation, &desired.annotations, &node.annotations);
        let taints = plan_taints(&desired.taints, &node.taints, &node.recorded_taints);
        let conflicts = labels.conflicts.into_iter().chain(annotations.conflicts);
        let conflicts = conflicts.chain(taints.conflicts);
        self.conflicts.extend(conflicts.map(|conflict| (node.name.clone(), conflict)));
        let has_other_metadata = labels.is_different || annotations.is_different;
        if has_other_metadata || taints.is_different {
            let metadata = OwnedMetadata { labels: labels.owned, annotations: annotations.owned };
            self.writes.push(NodeWrite {
                node: node.name.clone(),
                uid: node.uid.clone(),
                metadata: has_other_metadata.then_some(metadata),
                taints: taints.is_different.then_some(desired.taints),
            });
        }
    }
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

    fn host_fields(host: &str) -> Option<HostFields> {
        let labels = BTreeMap::from([("rack".to_owned(), host.to_owned())]);
        host.starts_with("rack").then(|| HostFields { labels, ..HostFields::default() })
    }

    #[test]
    fn each_node_gets_the_labels_of_its_host() {
        let machines = machines(&[
            ("web-1", Some("rack1")),
            ("web-2", Some("rack2")),
            ("web-3", Some("rack1")),
        ]);
        let plan = plan_tenant(&machines, &nodes(&["web-1", "web-2", "other"]), host_fields);
        let written: Vec<(&str, &str)> = plan
            .writes
            .iter()
            .map(|write| {
                let metadata = write.metadata.as_ref().unwrap();
                (write.node.as_str(), metadata.labels["rack"].as_str())
            })
            .collect();
        assert_eq!(written, [("web-1", "rack1"), ("web-2", "rack2")]);
        assert_eq!((plan.node_count, plan.pending_count), (2, 1), "web-3 has not joined");
    }

    #[test]
    fn unknown_hosts_remove_no_labels() {
        let machines = machines(&[("web-1", None), ("web-2", Some("gone"))]);
        let mut nodes = nodes(&["web-1", "web-2"]);
        for node in nodes.values_mut() {
            let label = crate::tenant_nodes::node::NodeField {
                value: "rack1".to_owned(),
                is_own: true,
                other_manager: None,
            };
            node.labels.insert("rack".to_owned(), label);
        }
        let plan = plan_tenant(&machines, &nodes, host_fields);
        assert_eq!((plan.writes.len(), plan.pending_count), (0, 2));
    }

    #[test]
    fn only_what_differs_is_written() {
        let machines = machines(&[("web-1", Some("rack1"))]);
        let mut nodes = nodes(&["web-1"]);
        let fields = |_: &str| {
            let taints = BTreeSet::from(["gpu:NoSchedule".parse().unwrap()]);
            Some(HostFields { taints, ..HostFields::default() })
        };
        let plan = plan_tenant(&machines, &nodes, fields);
        assert_eq!(
            (&plan.writes[0].metadata, plan.writes[0].taints.as_ref().unwrap().len()),
            (&None, 1)
        );
        let node = nodes.get_mut("web-1").unwrap();
        node.taints = BTreeSet::from(["gpu:NoSchedule".parse().unwrap()]);
        node.recorded_taints.clone_from(&node.taints);
        assert!(plan_tenant(&machines, &nodes, fields).writes.is_empty());
        let annotations = |_: &str| {
            let annotations = BTreeMap::from([("example.com/a".to_owned(), "x".to_owned())]);
            Some(HostFields { annotations, ..HostFields::default() })
        };
        let plan = plan_tenant(&machines, &nodes, annotations);
        assert_eq!(plan.writes[0].metadata.as_ref().unwrap().annotations["example.com/a"], "x");
        assert!(plan.writes[0].taints.as_ref().unwrap().is_empty(), "the taint is removed");
    }
}
