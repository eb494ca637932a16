//! Labels of one Node of a tenant: those to apply, and those that another manager owns.
//!
//! Ownership is that of server-side apply. Berth applies all labels that it owns on a Node in one request, without
//! force, so a label that is left out of the request is removed. A label of another manager stays as it is: a kubelet
//! started with `--node-labels`, a cloud controller manager or a user may set region and zone.

use std::collections::BTreeMap;

use super::node::TenantNode;

/// A label that Berth does not set, because another manager owns it with another value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LabelConflict {
    /// Key of the label.
    pub key: String,
    /// The manager.
    pub manager: String,
}

/// Plan for the labels of a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelPlan {
    /// All labels that Berth owns after the apply.
    pub labels: BTreeMap<String, String>,
    /// True if an apply changes a label or its owner.
    pub is_different: bool,
    /// Labels that stay as they are.
    pub conflicts: Vec<LabelConflict>,
}

/// Compares the labels that a Node should have with those that it has.
#[must_use]
pub fn plan_labels(desired: &BTreeMap<String, String>, node: &TenantNode) -> LabelPlan {
    let mut plan = LabelPlan::default();
    for (key, value) in desired {
        let Some(actual) = node.labels.get(key) else {
            plan.labels.insert(key.clone(), value.clone());
            continue;
        };
        let is_equal = actual.value == *value;
        match &actual.other_manager {
            // Joint ownership would be in the way of the next change, so an equal label of another manager is left, too.
            Some(_) if is_equal => {}
            Some(manager) => {
                plan.conflicts.push(LabelConflict { key: key.clone(), manager: manager.clone() });
            }
            // Without any owner, the server has removed the owners, and the label may belong to a user.
            None if !actual.is_own && !is_equal => {
                let manager = "an unknown manager".to_owned();
                plan.conflicts.push(LabelConflict { key: key.clone(), manager });
            }
            None => {
                plan.labels.insert(key.clone(), value.clone());
            }
        }
    }
    let own = node.own_labels().map(|(key, label)| (key, &label.value));
    plan.is_different = !own.eq(plan.labels.iter());
    plan
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tenant_nodes::node::NodeLabel;

    const ZONE: &str = "topology.kubernetes.io/zone";

    fn node(labels: &[(&str, &str, bool, Option<&str>)]) -> TenantNode {
        let label = |(key, value, is_own, other): &(&str, &str, bool, Option<&str>)| {
            let (value, other_manager) = ((*value).to_owned(), other.map(str::to_owned));
            ((*key).to_owned(), NodeLabel { value, is_own: *is_own, other_manager })
        };
        TenantNode { labels: labels.iter().map(label).collect(), ..TenantNode::default() }
    }

    fn plan(desired: &[(&str, &str)], node: &TenantNode) -> LabelPlan {
        let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        plan_labels(&desired.iter().map(pair).collect(), node)
    }

    fn applied(plan: &LabelPlan) -> Vec<(&str, &str)> {
        assert!(plan.is_different);
        plan.labels.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect()
    }

    #[test]
    fn labels_follow_the_host() {
        let empty = node(&[("kubernetes.io/hostname", "web-1", false, Some("kubelet"))]);
        assert_eq!(applied(&plan(&[(ZONE, "a")], &empty)), [(ZONE, "a")]);
        let own = node(&[(ZONE, "a", true, None), ("rack", "7", true, None)]);
        assert!(!plan(&[(ZONE, "a"), ("rack", "7")], &own).is_different);
        assert_eq!(
            applied(&plan(&[(ZONE, "b"), ("rack", "7")], &own)),
            [("rack", "7"), (ZONE, "b")]
        );
        // A key that is no longer in the list, or no longer on the host, is removed.
        assert_eq!(applied(&plan(&[("rack", "7")], &own)), [("rack", "7")]);
        assert_eq!(applied(&plan(&[], &own)), []);
        assert!(!plan(&[], &empty).is_different);
    }

    #[test]
    fn labels_of_others_are_left_and_reported() {
        let foreign = node(&[(ZONE, "a", false, Some("kubelet")), ("rack", "7", true, None)]);
        let planned = plan(&[(ZONE, "b"), ("rack", "7")], &foreign);
        assert!(!planned.is_different, "{planned:?}");
        let conflict = LabelConflict { key: ZONE.to_owned(), manager: "kubelet".to_owned() };
        assert_eq!(planned.conflicts, [conflict]);
        let equal = plan(&[(ZONE, "a"), ("rack", "7")], &foreign);
        assert_eq!((equal.is_different, equal.conflicts.len()), (false, 0));
        // Another manager took over a label that Berth had applied.
        let shared = node(&[(ZONE, "a", true, Some("kubectl-label"))]);
        let planned = plan(&[(ZONE, "b")], &shared);
        assert_eq!((applied(&planned).len(), planned.conflicts.len()), (0, 1));
    }

    #[test]
    fn labels_without_any_owner_may_belong_to_a_user() {
        let unowned = node(&[(ZONE, "a", false, None)]);
        assert_eq!(plan(&[(ZONE, "b")], &unowned).conflicts.len(), 1);
        assert_eq!(applied(&plan(&[(ZONE, "a")], &unowned)), [(ZONE, "a")]);
    }

    proptest! {
        /// After an apply, the second plan is empty, and no label of another manager has changed.
        #[test]
        fn a_second_plan_is_empty(
            desired in proptest::collection::btree_map("[a-d]", "[xy]", 0..4),
            actual in proptest::collection::btree_map("[a-d]", ("[xy]", any::<bool>(), any::<bool>()), 0..4),
        ) {
            let labels = actual.into_iter().map(|(key, (value, is_own, is_foreign))| {
                let other_manager = is_foreign.then(|| "other".to_owned());
                (key, NodeLabel { value, is_own, other_manager })
            });
            let mut node = TenantNode { labels: labels.collect(), ..TenantNode::default() };
            let foreign: Vec<_> = node.labels.clone().into_iter().filter(|(_, one)| one.other_manager.is_some()).collect();
            let first = plan_labels(&desired, &node);
            // What the API server does with an apply.
            node.labels.retain(|key, label| {
                let stays = !label.is_own || label.other_manager.is_some() || first.labels.contains_key(key);
                label.is_own &= first.labels.contains_key(key);
                stays
            });
            for (key, value) in &first.labels {
                let label = node.labels.entry(key.clone()).or_default();
                label.value.clone_from(value);
                label.is_own = true;
            }
            let second = plan_labels(&desired, &node);
            prop_assert!(!second.is_different, "{first:?} {second:?}");
            prop_assert_eq!(&first.conflicts, &second.conflicts);
            for (key, before) in foreign {
                prop_assert_eq!(&node.labels[&key].value, &before.value);
            }
        }
    }
}
