//! Taints of one Node of a tenant: those to add, to remove, and those that are not Berth's.
//!
//! `spec.taints` is an atomic list for server-side apply, and a list without merge keys for a strategic merge patch: both
//! replace the taints of all managers. Therefore a JSON patch adds and removes single taints; it tests each taint that it
//! removes. An annotation of the Node lists the taints that Berth has added, and the same patch changes both. A taint that
//! it does not list, or with another value, belongs to another manager and stays.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use berth_api::names::REPLICATED_TAINTS_ANNOTATION;
use k8s_openapi::api::core::v1::Taint;
use serde::Deserialize;
use serde_json::{Value, json};

use super::fields::FieldConflict;
use super::keys::{FieldKind, MAX_COPIED};
use super::node::{NodeObject, UNKNOWN_MANAGER};

/// A taint. A Node has at most one taint with a key and an effect.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(default)]
pub struct NodeTaint {
    /// Key of the taint.
    pub key: String,
    /// Effect of the taint, such as `NoSchedule`.
    pub effect: String,
    /// Value of the taint; may be empty.
    pub value: String,
}

/// The string is not a taint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a taint must be KEY=VALUE:EFFECT or KEY:EFFECT")]
pub struct InvalidTaint;

impl FromStr for NodeTaint {
    type Err = InvalidTaint;

    fn from_str(text: &str) -> Result<Self, InvalidTaint> {
        let (rest, effect) = text.rsplit_once(':').ok_or(InvalidTaint)?;
        let (key, value) = rest.split_once('=').unwrap_or((rest, ""));
        if key.is_empty() || effect.is_empty() {
            return Err(InvalidTaint);
        }
        Ok(Self { key: key.to_owned(), effect: effect.to_owned(), value: value.to_owned() })
    }
}

impl fmt::Display for NodeTaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let equals = if self.value.is_empty() { "" } else { "=" };
        write!(f, "{}{equals}{}:{}", self.key, self.value, self.effect)
    }
}

impl NodeTaint {
    /// Returns a taint of a host.
    #[must_use]
    pub fn of_host(taint: &Taint) -> Self {
        let value = taint.value.clone().unwrap_or_default();
        Self { key: taint.key.clone(), effect: taint.effect.clone(), value }
    }

    fn replaces(&self, other: &Self) -> bool {
        self.key == other.key && self.effect == other.effect
    }

    fn to_value(&self) -> Value {
        let mut taint = json!({"key": self.key, "effect": self.effect});
        if !self.value.is_empty() {
            taint["value"] = self.value.as_str().into();
        }
        taint
    }
}

/// Reads the annotation with the taints that Berth has added. The tenant can write it: entries that are not valid, and
/// taints that are never copied, are left out.
#[must_use]
pub fn parse_recorded(annotation: &str) -> BTreeSet<NodeTaint> {
    let entries = annotation.split(',').take(MAX_COPIED);
    let taints = entries.filter_map(|entry| entry.parse::<NodeTaint>().ok());
    taints.filter(|taint| !FieldKind::Taint.describes_node_itself(&taint.key)).collect()
}

/// Plan for the taints of a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaintPlan {
    /// All taints that are Berth's after the write.
    pub owned: BTreeSet<NodeTaint>,
    /// True if a write changes a taint or the annotation.
    pub is_different: bool,
    /// Taints that stay as they are.
    pub conflicts: Vec<FieldConflict>,
}

/// Compares the taints that a Node should have with those that it has. `recorded` contains those of the annotation.
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
    // An entry without its taint would make a later taint of another manager look like Berth's.
    plan.is_different = *recorded != plan.owned || !plan.owned.is_subset(actual);
    plan
}

/// Returns the JSON patch that gives a Node the desired taints; `None` if it has them. `node` is the latest version of the
/// Node. The server refuses the patch if a taint that it removes has changed meanwhile, and also if another manager has
/// added a taint with the key and the effect of an added one.
#[must_use]
pub fn taint_patch(desired: &BTreeSet<NodeTaint>, node: &NodeObject) -> Option<Value> {
    let (taints, recorded) = (node.taints(), node.recorded_taints());
    let plan = plan_taints(desired, &taints.iter().cloned().collect(), &recorded);
    if !plan.is_different {
        return None;
    }
    let mut patch =
        Patch(vec![json!({"op": "test", "path": "/metadata/uid", "value": node.uid()})]);
    // From the end, because each removal changes the indexes of the taints after it.
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

    /// Returns the operations of a patch, as text, without the test of the UID.
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
    fn taints_are_written_as_in_kubectl() {
        for text in ["a.b/c=d:NoSchedule", "a:NoExecute"] {
            assert_eq!(text.parse::<NodeTaint>().unwrap().to_string(), text);
        }
        for wrong in ["", "a", "a=b", ":NoSchedule", "a:", "=b:NoSchedule"] {
            assert_eq!(wrong.parse::<NodeTaint>(), Err(InvalidTaint), "{wrong}");
        }
        let recorded = parse_recorded("a:NoSchedule,,x,node.kubernetes.io/not-ready:NoExecute");
        assert_eq!(recorded, set(&["a:NoSchedule"]));
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
    fn taints_of_others_stay() {
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
        // A user has removed a taint of Berth's.
        assert!(plan(&["a:NoSchedule"], &[], &["a:NoSchedule"]).is_different);
    }

    proptest! {
        /// After a write, the second plan is empty, and no taint of another manager has changed.
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

        #[test]
        fn any_text_is_parsed(text in "\\PC{0,60}") {
            for taint in parse_recorded(&text) {
                prop_assert_eq!(taint.to_string().parse(), Ok(taint));
            }
        }
    }
}
