//! Labels, or annotations, of one Node of a tenant: those that Berth applies, and those that another manager owns.
//!
//! Owners are the field managers of server-side apply. Berth applies all its labels and annotations of a Node in one
//! request, without force, so a key that Berth owns is removed if the request does not contain it. Keys of other
//! managers are not changed: a kubelet that was started with `--node-labels`, a cloud controller manager or a user may
//! set region and zone.

use std::collections::BTreeMap;

use super::keys::FieldKind;
use super::node::{NodeField, value_or_digest};
use crate::tenant_object::UNKNOWN_MANAGER;

/// A label, annotation or taint that Berth does not set, because another manager owns the key with another value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FieldConflict {
    pub kind: FieldKind,
    pub key: String,
    /// Manager that owns the field.
    pub manager: String,
}

/// Plan for the labels, or the annotations, of a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldPlan {
    /// All labels or annotations that Berth owns after the apply.
    pub owned: BTreeMap<String, String>,
    /// True if an apply would change a value, or the owner of a key.
    pub is_different: bool,
    /// Labels or annotations that are not changed, because other managers own them.
    pub conflicts: Vec<FieldConflict>,
}

/// Compares the desired labels, or annotations, of a Node with the actual ones.
#[must_use]
pub fn plan_fields(
    kind: FieldKind,
    desired: &BTreeMap<String, String>,
    actual: &BTreeMap<String, NodeField>,
) -> FieldPlan {
    let mut plan = FieldPlan::default();
    for (key, value) in desired {
        let Some(field) = actual.get(key) else {
            plan.owned.insert(key.clone(), value.clone());
            continue;
        };
        let is_equal = field.value == value_or_digest(value);
        match &field.other_manager {
            // A field of another manager is not applied even if its value is equal: with two owners, the next change of
            // the value would fail with a conflict.
            Some(_) if is_equal => {}
            Some(manager) => {
                let (key, manager) = (key.clone(), manager.clone());
                plan.conflicts.push(FieldConflict { kind, key, manager });
            }
            // A field without an owner has lost its entry in `managedFields`, and may belong to a user.
            None if !field.is_own && !is_equal => {
                let (key, manager) = (key.clone(), UNKNOWN_MANAGER.to_owned());
                plan.conflicts.push(FieldConflict { kind, key, manager });
            }
            None => {
                plan.owned.insert(key.clone(), value.clone());
            }
        }
    }
    let own = actual.iter().filter(|(_, field)| field.is_own);
    let own = own.map(|(key, field)| (key, field.value.as_str().into()));
    plan.is_different =
        !own.eq(plan.owned.iter().map(|(key, value)| (key, value_or_digest(value))));
    plan
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ZONE: &str = "topology.kubernetes.io/zone";

    type Fields = BTreeMap<String, NodeField>;

    fn node(labels: &[(&str, &str, bool, Option<&str>)]) -> Fields {
        let label = |(key, value, is_own, other): &(&str, &str, bool, Option<&str>)| {
            let (value, other_manager) = ((*value).to_owned(), other.map(str::to_owned));
            ((*key).to_owned(), NodeField { value, is_own: *is_own, other_manager })
        };
        labels.iter().map(label).collect()
    }

    fn plan(desired: &[(&str, &str)], node: &Fields) -> FieldPlan {
        let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        plan_fields(FieldKind::Label, &desired.iter().map(pair).collect(), node)
    }

    fn applied(plan: &FieldPlan) -> Vec<(&str, &str)> {
        assert!(plan.is_different);
        plan.owned.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect()
    }

    #[test]
    fn labels_are_those_of_the_host() {
        let empty = node(&[("kubernetes.io/hostname", "web-1", false, Some("kubelet"))]);
        assert_eq!(applied(&plan(&[(ZONE, "a")], &empty)), [(ZONE, "a")]);
        let own = node(&[(ZONE, "a", true, None), ("rack", "7", true, None)]);
        assert!(!plan(&[(ZONE, "a"), ("rack", "7")], &own).is_different);
        assert_eq!(
            applied(&plan(&[(ZONE, "b"), ("rack", "7")], &own)),
            [("rack", "7"), (ZONE, "b")]
        );
        // A key that Berth owns is removed if it is no longer listed in the InfraConfig, or no longer exists on the
        // host.
        assert_eq!(applied(&plan(&[("rack", "7")], &own)), [("rack", "7")]);
        assert_eq!(applied(&plan(&[], &own)), []);
        assert!(!plan(&[], &empty).is_different);
    }

    #[test]
    fn labels_of_other_managers_are_kept_and_reported() {
        let foreign = node(&[(ZONE, "a", false, Some("kubelet")), ("rack", "7", true, None)]);
        let planned = plan(&[(ZONE, "b"), ("rack", "7")], &foreign);
        assert!(!planned.is_different, "{planned:?}");
        let (kind, manager) = (FieldKind::Label, "kubelet".to_owned());
        let conflict = FieldConflict { kind, key: ZONE.to_owned(), manager };
        assert_eq!(planned.conflicts, [conflict]);
        let equal = plan(&[(ZONE, "a"), ("rack", "7")], &foreign);
        assert_eq!((equal.is_different, equal.conflicts.len()), (false, 0));
        // Another manager has become a second owner of a label that Berth had applied.
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

    #[test]
    fn long_values_are_compared() {
        let (long, other) = ("x".repeat(1000), "x".repeat(1001));
        let own = node(&[("a", &value_or_digest(&long), true, None)]);
        assert!(!plan(&[("a", &long)], &own).is_different);
        assert_eq!(applied(&plan(&[("a", &other)], &own)), [("a", other.as_str())]);
    }

    proptest! {
        /// After the first plan is applied, a second plan is empty, and no label of another manager has changed.
        #[test]
        fn a_second_plan_is_empty(
            desired in proptest::collection::btree_map("[a-d]", "[xy]", 0..4),
            actual in proptest::collection::btree_map("[a-d]", ("[xy]", any::<bool>(), any::<bool>()), 0..4),
        ) {
            let labels = actual.into_iter().map(|(key, (value, is_own, is_foreign))| {
                let other_manager = is_foreign.then(|| "other".to_owned());
                (key, NodeField { value, is_own, other_manager })
            });
            let mut node: Fields = labels.collect();
            let foreign: Vec<_> = node.clone().into_iter().filter(|(_, one)| one.other_manager.is_some()).collect();
            let first = plan_fields(FieldKind::Label, &desired, &node);
            // Simulates how the API server applies the plan.
            node.retain(|key, label| {
                let stays = !label.is_own || label.other_manager.is_some() || first.owned.contains_key(key);
                label.is_own &= first.owned.contains_key(key);
                stays
            });
            for (key, value) in &first.owned {
                let label = node.entry(key.clone()).or_default();
                label.value.clone_from(value);
                label.is_own = true;
            }
            let second = plan_fields(FieldKind::Label, &desired, &node);
            prop_assert!(!second.is_different, "{first:?} {second:?}");
            prop_assert_eq!(&first.conflicts, &second.conflicts);
            for (key, before) in foreign {
                prop_assert_eq!(&node[&key].value, &before.value);
            }
        }
    }
}
