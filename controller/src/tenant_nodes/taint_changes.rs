//! Taints of one Node of a tenant: those that Berth adds or removes, and those of other managers.
//!
//! For server-side apply, `spec.taints` is an atomic list, and for a strategic merge patch, it is a list without merge
//! keys: both would replace the taints of all managers. Therefore a JSON patch adds and removes single taints; `test`
//! operations ensure that the removed taints have not changed. An annotation of the Node lists the taints that Berth
//! has added; the same patch updates it. A taint that the annotation does not list, or lists with another value,
//! belongs to another manager and is not changed.

use std::collections::BTreeSet;

use berth_api::names::REPLICATED_TAINTS_ANNOTATION;
use serde_json::{Value, json};

use super::fields::FieldConflict;
use super::keys::FieldKind;
use super::node::NodeObject;
use super::replicated_taint::NodeTaint;
use crate::tenant_object::UNKNOWN_MANAGER;

/// Plan for the taints of a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaintPlan {
    /// All taints that Berth owns after the write.
    pub owned: BTreeSet<NodeTaint>,
    /// True if a taint or the annotation must be changed.
    pub is_different: bool,
    /// Taints that are not changed, because other managers own them.
    pub conflicts: Vec<FieldConflict>,
}

/// Compares the desired taints of a Node with the actual ones. `recorded` contains the taints that the annotation
/// lists.
#[must_use]
pub fn plan_taints(
    desired: &BTreeSet<NodeTaint>,
    actual: &BTreeSet<NodeTaint>,
    recorded: &BTreeSet<NodeTaint>,
) -> TaintPlan {
    let mut plan = TaintPlan::default();
    for taint in desired {
        match actual.iter().find(|one| one.replaces(taint)) {
            Some(one) if !recorded.contains(one) && one == taint => {}
            Some(one) if !recorded.contains(one) => plan.conflicts.push(FieldConflict {
                kind: FieldKind::Taint,
                key: format!("{}:{}", taint.key, taint.effect),
                manager: UNKNOWN_MANAGER.to_owned(),
            }),
            Some(_) | None => drop(plan.owned.insert(taint.clone())),
        }
    }
    // The annotation must not list a taint that the Node does not have: if another manager added this taint later,
    // Berth would treat it as its own.
    plan.is_different = *recorded != plan.owned || !plan.owned.is_subset(actual);
    plan
}

/// Returns the JSON patch after which a Node has the desired taints; `None` if it already has them. `node` is the
/// latest version of the Node. The server refuses the patch if a taint that it removes has changed meanwhile, or if
/// another manager has meanwhile added a taint with the key and the effect of an added one.
#[must_use]
pub fn taint_patch(desired: &BTreeSet<NodeTaint>, node: &NodeObject) -> Option<Value> {
    let (taints, recorded) = (node.taints(), node.recorded_taints());
    let plan = plan_taints(desired, &taints.iter().cloned().collect(), &recorded);
    if !plan.is_different {
        return None;
    }
    let mut patch =
        Patch(vec![json!({"op": "test", "path": "/metadata/uid", "value": node.uid()})]);
    // The taints are removed from the last to the first, because each removal changes the indexes of all later taints.
    for (at, taint) in taints.iter().enumerate().rev() {
        if recorded.contains(taint) && !plan.owned.contains(taint) {
            let path = format!("/spec/taints/{at}");
            let value = if taint.value.is_empty() { Value::Null } else { json!(taint.value) };
            patch.test(&format!("{path}/key"), json!(taint.key));
            patch.test(&format!("{path}/effect"), json!(taint.effect));
            patch.test(&format!("{path}/value"), value);
            patch.0.push(json!({"op": "remove", "path": path}));
        }
    }
    let added = plan.owned.iter().filter(|taint| !taints.contains(taint));
    let added: Vec<Value> = added.map(NodeTaint::to_value).collect();
    if taints.is_empty() && !added.is_empty() {
        patch.test("/spec/taints", Value::Null);
        patch.add("/spec/taints", json!(added));
    } else {
        added.into_iter().for_each(|taint| patch.add("/spec/taints/-", taint));
    }
    let annotation: Vec<String> = plan.owned.iter().map(NodeTaint::to_string).collect();
    let annotation = annotation.join(",");
    let path = format!("/metadata/annotations/{}", REPLICATED_TAINTS_ANNOTATION.replace('/', "~1"));
    if plan.owned.is_empty() {
        patch.0.push(json!({"op": "remove", "path": path}));
    } else if node.has_annotations() {
        patch.add(&path, json!(annotation));
    } else {
        patch.test("/metadata/annotations", Value::Null);
        patch.add("/metadata/annotations", json!({REPLICATED_TAINTS_ANNOTATION: annotation}));
    }
    Some(Value::Array(patch.0))
}

struct Patch(Vec<Value>);

impl Patch {
    fn test(&mut self, path: &str, value: Value) {
        self.0.push(json!({"op": "test", "path": path, "value": value}));
    }

    fn add(&mut self, path: &str, value: Value) {
        self.0.push(json!({"op": "add", "path": path, "value": value}));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn set(taints: &[&str]) -> BTreeSet<NodeTaint> {
        taints.iter().map(|taint| taint.parse().unwrap()).collect()
    }

    fn object(taints: &[&str], recorded: Option<&str>) -> NodeObject {
        let taints: Vec<Value> =
            taints.iter().map(|taint| taint.parse::<NodeTaint>().unwrap().to_value()).collect();
        let annotations = recorded.map(|text| json!({REPLICATED_TAINTS_ANNOTATION: text}));
        let metadata = json!({"name": "web-1", "uid": "u", "annotations": annotations});
        let spec = if taints.is_empty() { json!({}) } else { json!({"taints": taints}) };
        serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
    }

    /// Returns the operations of a patch as text, without the `test` operation for the UID.
    fn patch(desired: &[&str], node: &NodeObject) -> Vec<String> {
        let Some(patch) = taint_patch(&set(desired), node) else { return Vec::new() };
        let text = |one: &Value| {
            format!(
                "{} {} {}",
                one["op"].as_str().unwrap(),
                one["path"].as_str().unwrap(),
                one["value"]
            )
        };
        patch.as_array().unwrap().iter().skip(1).map(text).collect()
    }

    #[test]
    fn single_taints_are_added_and_removed() {
        assert!(patch(&[], &object(&["other:NoSchedule"], None)).is_empty());
        let path = "/metadata/annotations/berth.dev~1replicated-taints";
        let first = patch(&["gpu=a:NoSchedule"], &object(&[], None));
        assert_eq!(
            first,
            [
                "test /spec/taints null",
                r#"add /spec/taints [{"effect":"NoSchedule","key":"gpu","value":"a"}]"#,
                "test /metadata/annotations null",
                r#"add /metadata/annotations {"berth.dev/replicated-taints":"gpu=a:NoSchedule"}"#,
            ]
        );
        let node = object(&["gpu=a:NoSchedule", "other:NoExecute"], Some("gpu=a:NoSchedule"));
        assert!(patch(&["gpu=a:NoSchedule"], &node).is_empty());
        assert_eq!(
            patch(&["new:NoSchedule"], &node),
            [
                r#"test /spec/taints/0/key "gpu""#.to_owned(),
                r#"test /spec/taints/0/effect "NoSchedule""#.to_owned(),
                r#"test /spec/taints/0/value "a""#.to_owned(),
                "remove /spec/taints/0 null".to_owned(),
                r#"add /spec/taints/- {"effect":"NoSchedule","key":"new"}"#.to_owned(),
                format!(r#"add {path} "new:NoSchedule""#),
            ]
        );
        let all = patch(&[], &node);
        assert_eq!(all.last().unwrap(), &format!("remove {path} null"));
        assert_eq!(all.len(), 5, "{all:?}");
    }

    #[test]
    fn taints_of_other_managers_are_kept() {
        let foreign = object(&["gpu=a:NoSchedule"], None);
        assert!(patch(&["gpu=a:NoSchedule"], &foreign).is_empty());
        assert!(patch(&["gpu=b:NoSchedule"], &foreign).is_empty());
        // Another manager has changed the value of a taint that Berth had added.
        let plan = |desired: &[&str], actual: &[&str], recorded: &[&str]| {
            plan_taints(&set(desired), &set(actual), &set(recorded))
        };
        let changed = plan(&["gpu=b:NoSchedule"], &["gpu=x:NoSchedule"], &["gpu=a:NoSchedule"]);
        assert_eq!(changed.conflicts[0].key, "gpu:NoSchedule");
        assert!(changed.owned.is_empty() && changed.is_different, "the record is removed");
        // A user has removed a taint that Berth had added.
        assert!(plan(&["a:NoSchedule"], &[], &["a:NoSchedule"]).is_different);
    }

    proptest! {
        /// After the first plan is applied, a second plan is empty, and no taint of another manager has changed.
        #[test]
        fn a_second_plan_is_empty(
            desired in proptest::collection::btree_map("[a-c]", "[xy]", 0..3),
            actual in proptest::collection::btree_map("[a-c]", "[xy]", 0..3),
            recorded in proptest::collection::btree_map("[a-c]", "[xy]", 0..3),
        ) {
            let taints = |all: std::collections::BTreeMap<String, String>| -> BTreeSet<NodeTaint> {
                let effect = "NoSchedule".to_owned();
                all.into_iter().map(|(key, value)| NodeTaint { key, effect: effect.clone(), value }).collect()
            };
            let (desired, actual, recorded) = (taints(desired), taints(actual), taints(recorded));
            let first = plan_taints(&desired, &actual, &recorded);
            let foreign: BTreeSet<NodeTaint> = actual.difference(&recorded).cloned().collect();
            let written: BTreeSet<NodeTaint> = foreign.union(&first.owned).cloned().collect();
            let second = plan_taints(&desired, &written, &first.owned);
            prop_assert!(!second.is_different, "{first:?} {second:?}");
            prop_assert_eq!(&first.conflicts, &second.conflicts);
            let keys: BTreeSet<&str> = written.iter().map(|taint| taint.key.as_str()).collect();
            prop_assert_eq!(keys.len(), written.len(), "two taints with one key and effect");
        }
    }
}
