//! Who holds which fields of an object, by its `metadata.managedFields`.
//!
//! Server-side apply without force is refused where another manager holds a field with another value (KEP-555). Read
//! beforehand, the fields tell what to leave to others, what we hold ourselves, and whether there is anything to write.
//! Format: structured-merge-diff, `fieldpath/serialize.go`: `f:` a field, `k:` a list item by its keys, `v:` a value of a
//! set, `.` the thing itself.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry, ObjectMeta};
use serde_json::{Map, Value, json};

/// Fields below one top-level field of an object, as `spec`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Held(Value);

/// What a manager holds, and who it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The manager's name, as `kubectl-edit`.
    pub manager: String,
    /// What it holds.
    pub held: Held,
}

/// What we applied below a top-level field.
#[must_use]
pub fn applied_by(entries: &[ManagedFieldsEntry], manager: &str, top: &str) -> Held {
    let ours = entries.iter().filter(|entry| is_apply(entry) && names(entry, manager));
    ours.filter_map(|entry| below(entry, top)).next().unwrap_or_default()
}

/// Whether the server takes the conditions of a status for one value, with one holder: Kubernetes 1.20 does for kinds whose
/// schema has an integer or string anywhere (its `customresource_handler.go`: error building openapi models). Then two
/// that apply conditions of their own take away each other's, for ever.
#[must_use]
pub fn conditions_are_one(entries: &[ManagedFieldsEntry]) -> bool {
    let lists = entries
        .iter()
        .filter_map(|entry| entry.fields_v1.as_ref()?.0.pointer("/f:status/f:conditions"));
    lists.filter_map(Value::as_object).any(Map::is_empty)
}

/// Keeps of an object's `managedFields` only what [`conditions_are_one`] tells: of a thousand tenants they take as much memory
/// as all else of them.
pub fn keep_whether_conditions_are_one(metadata: &mut ObjectMeta) {
    let entries = metadata.managed_fields.take().unwrap_or_default();
    metadata.managed_fields = conditions_are_one(&entries).then(|| {
        let fields = FieldsV1(json!({"f:status": {"f:conditions": {}}}));
        vec![ManagedFieldsEntry { fields_v1: Some(fields), ..ManagedFieldsEntry::default() }]
    });
}

/// What all others hold below a top-level field, `but` us.
#[must_use]
pub fn held_by_others(entries: &[ManagedFieldsEntry], but: &str, top: &str) -> Vec<Holder> {
    let others = entries.iter().filter(|entry| !(is_apply(entry) && names(entry, but)));
    let holder = |entry: &ManagedFieldsEntry| {
        let manager = entry.manager.clone().unwrap_or_default();
        Some(Holder { manager, held: below(entry, top)? })
    };
    others.filter_map(holder).collect()
}

fn is_apply(entry: &ManagedFieldsEntry) -> bool {
    entry.operation.as_deref() == Some("Apply")
}

fn names(entry: &ManagedFieldsEntry, manager: &str) -> bool {
    entry.manager.as_deref() == Some(manager)
}

fn below(entry: &ManagedFieldsEntry, top: &str) -> Option<Held> {
    let held = entry.fields_v1.as_ref()?.0.get(format!("f:{top}"))?;
    Some(Held(held.clone()))
}

impl Held {
    /// Nothing below the top.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        children(&self.0).next().is_none()
    }

    /// The part of a live value that is held.
    #[must_use]
    pub fn part_of(&self, live: &Value) -> Value {
        part(&self.0, live)
    }

    /// Whether an apply of `wanted` would change who holds what, or a value: then it is to be written.
    ///
    /// It would not if all that is wanted is there with the same value and held, and nothing else is held.
    #[must_use]
    pub fn differs(&self, wanted: &Value, live: &Value) -> bool {
        if self.is_empty() {
            return wanted.as_object().is_none_or(|wanted| !wanted.is_empty());
        }
        !is_same(&self.0, wanted, live)
    }
}

impl Holder {
    /// Takes out of `wanted` what this manager holds with another value. Gives the paths of it, as `ksm.mode`.
    ///
    /// Fields of the names `units` are taken as one: where only one of several fields may be set, ours beside another's
    /// makes no sense.
    pub fn keep_from(&self, wanted: &mut Value, live: &Value, units: &[&str]) -> BTreeSet<String> {
        let mut keeping = Keeping { units, kept: BTreeSet::new() };
        keeping.keep(&self.held.0, wanted, live, "");
        keeping.kept
    }
}

/// Steps below a node of a tree of fields, without `.`.
fn children(tree: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let fields = tree.as_object().into_iter().flatten();
    fields.map(|(step, tree)| (step.as_str(), tree)).filter(|(step, _)| *step != ".")
}

/// Whether nothing below it is held by itself: its whole value is held as one.
fn is_leaf(tree: &Value) -> bool {
    children(tree).next().is_none()
}

/// The keys of a step that is a list item.
fn keys(step: &str) -> Option<Map<String, Value>> {
    serde_json::from_str(step.strip_prefix("k:")?).ok()
}

fn has_keys(item: &Value, keys: &Map<String, Value>) -> bool {
    keys.iter().all(|(name, value)| item.get(name) == Some(value))
}

fn item<'a>(list: &'a [Value], keys: &Map<String, Value>) -> Option<&'a Value> {
    list.iter().find(|item| has_keys(item, keys))
}

fn part(tree: &Value, live: &Value) -> Value {
    if is_leaf(tree) {
        return live.clone();
    }
    match live {
        Value::Object(fields) => {
            let held = children(tree).filter_map(|(step, tree)| {
                let name = step.strip_prefix("f:")?;
                Some((name.to_owned(), part(tree, fields.get(name)?)))
            });
            Value::Object(held.collect())
        }
        Value::Array(items) => {
            // In the order of the list: the tree is sorted by keys.
            let held = |item: &Value| {
                let tree = children(tree)
                    .find(|(step, _)| keys(step).is_some_and(|keys| has_keys(item, &keys)));
                tree.map(|(_, tree)| part(tree, item))
            };
            items.iter().filter_map(held).collect()
        }
        other => other.clone(),
    }
}

/// Whether `wanted` is exactly what is held, and is there.
fn is_same(tree: &Value, wanted: &Value, live: &Value) -> bool {
    if is_leaf(tree) {
        return wanted == live;
    }
    match (wanted, live) {
        (Value::Object(wanted), Value::Object(live)) => {
            let steps: Vec<(&str, &Value)> = children(tree)
                .filter_map(|(step, tree)| Some((step.strip_prefix("f:")?, tree)))
                .collect();
            steps.len() == wanted.len()
                && steps.iter().all(|(name, tree)| match (wanted.get(*name), live.get(*name)) {
                    (Some(wanted), Some(live)) => is_same(tree, wanted, live),
                    _ => false,
                })
        }
        (Value::Array(wanted), Value::Array(live)) => {
            let mut steps = 0_usize;
            let all = children(tree).all(|(step, tree)| {
                steps = steps.saturating_add(1);
                let Some(keys) = keys(step) else { return false };
                match (item(wanted, &keys), item(live, &keys)) {
                    (Some(wanted), Some(live)) => is_same(tree, wanted, live),
                    _ => false,
                }
            });
            all && steps == wanted.len()
        }
        _ => false,
    }
}

/// What is left to others.
struct Keeping<'a> {
    units: &'a [&'a str],
    kept: BTreeSet<String>,
}

impl Keeping<'_> {
    fn keep(&mut self, tree: &Value, wanted: &mut Value, live: &Value, path: &str) {
        match wanted {
            Value::Object(fields) => {
                for (step, tree) in children(tree) {
                    let Some(name) = step.strip_prefix("f:") else { continue };
                    let (Some(value), Some(live)) = (fields.get_mut(name), live.get(name)) else {
                        continue;
                    };
                    let at =
                        if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
                    let known = self.kept.len();
                    if is_leaf(tree) || self.units.contains(&name) {
                        if value != live {
                            fields.remove(name);
                            self.kept.insert(at);
                        }
                        continue;
                    }
                    self.keep(tree, value, live, &at);
                    // An object of which nothing is left to say says nothing.
                    if self.kept.len() > known && value.as_object().is_some_and(Map::is_empty) {
                        fields.remove(name);
                    }
                }
            }
            Value::Array(items) => {
                let Some(live) = live.as_array() else { return };
                for (step, tree) in children(tree) {
                    let Some(keys) = keys(step) else { continue };
                    let wanted = items.iter_mut().find(|item| has_keys(item, &keys));
                    let (Some(wanted), Some(live)) = (wanted, item(live, &keys)) else { continue };
                    let name = |value: &Value| {
                        value.as_str().map_or_else(|| value.to_string(), str::to_owned)
                    };
                    let names = keys.values().map(name).collect::<Vec<_>>().join(",");
                    self.keep(tree, wanted, live, &format!("{path}[{names}]"));
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(manager: &str, operation: &str, fields: Value) -> ManagedFieldsEntry {
        serde_json::from_value(json!({
            "manager": manager, "operation": operation, "apiVersion": "berth.dev/v1alpha1",
            "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": fields},
        }))
        .unwrap()
    }

    fn live() -> Value {
        json!({"profile": "a", "ksm": {"mode": "Off", "pagesToScan": 100}, "hugepages": [{"size": "2Mi", "count": 3}],
            "networks": [{"name": "trunk", "scenario": "VlanAwareBridge", "mtu": 9000}, {"name": "mine", "mtu": 1500}]})
    }

    fn ours() -> Value {
        json!({"f:profile": {}, "f:ksm": {"f:mode": {}}, "f:hugepages": {}, "f:networks": {
            "k:{\"name\":\"trunk\"}": {".": {}, "f:name": {}, "f:scenario": {}, "f:mtu": {}}}})
    }

    #[test]
    fn what_is_kept_of_managers_tells_the_same_of_conditions() {
        let status = |conditions: Value| {
            let mut entry = entry("c", "Apply", json!({}));
            entry.fields_v1 = Some(FieldsV1(json!({"f:status": {"f:conditions": conditions}})));
            entry
        };
        for (conditions, are_one) in [(json!({}), true), (json!({"k:{\"type\":\"A\"}": {}}), false)]
        {
            let entries = vec![entry("a", "Update", ours()), status(conditions)];
            let mut metadata =
                ObjectMeta { managed_fields: Some(entries), ..ObjectMeta::default() };
            keep_whether_conditions_are_one(&mut metadata);
            let kept = metadata.managed_fields.unwrap_or_default();
            assert_eq!((conditions_are_one(&kept), kept.len()), (are_one, usize::from(are_one)));
        }
    }

    #[test]
    fn what_is_there_and_ours_is_not_written_again() {
        let held = applied_by(&[entry("c", "Apply", ours())], "c", "spec");
        let wanted = json!({"profile": "a", "ksm": {"mode": "Off"}, "hugepages": [{"size": "2Mi", "count": 3}],
            "networks": [{"name": "trunk", "scenario": "VlanAwareBridge", "mtu": 9000}]});
        assert!(!held.differs(&wanted, &live()));
        assert_eq!(held.part_of(&live()), wanted);
        for (pointer, value) in [
            ("/profile", json!("b")),
            ("/ksm", json!({"mode": "Off", "pagesToScan": 100})),
            ("/ksm/mode", json!("On")),
            ("/hugepages/0/count", json!(4)),
            ("/networks/0/mtu", json!(1500)),
            ("/networks", json!([])),
        ] {
            let mut other = wanted.clone();
            *other.pointer_mut(pointer).unwrap() = value;
            assert!(held.differs(&other, &live()), "{pointer}");
        }
        // A field that is no longer wanted, and one that nobody holds yet.
        let mut less = wanted.clone();
        less.as_object_mut().unwrap().remove("ksm");
        assert!(held.differs(&less, &live()));
        assert!(Held::default().differs(&wanted, &live()));
        assert!(!Held::default().differs(&json!({}), &live()));
        assert!(Held::default().is_empty() && !held.is_empty());
    }

    #[test]
    fn what_others_hold_with_another_value_is_left_to_them() {
        let others = held_by_others(
            &[
                entry("c", "Apply", ours()),
                entry(
                    "kubectl-edit",
                    "Update",
                    json!({"f:ksm": {"f:mode": {}}, "f:networks": {
                    "k:{\"name\":\"trunk\"}": {"f:mtu": {}}, "k:{\"name\":\"mine\"}": {".": {}, "f:mtu": {}}}}),
                ),
            ],
            "c",
            "spec",
        );
        assert_eq!(others.len(), 1);
        let mut wanted = json!({"profile": "b", "ksm": {"mode": "On"},
            "networks": [{"name": "trunk", "scenario": "BridgePerTenant", "mtu": 1500}]});
        let kept = others[0].keep_from(&mut wanted, &live(), &[]);
        assert_eq!(kept.into_iter().collect::<Vec<_>>(), ["ksm.mode", "networks[trunk].mtu"]);
        let left =
            json!({"profile": "b", "networks": [{"name": "trunk", "scenario": "BridgePerTenant"}]});
        assert_eq!(wanted, left);
        // The same value is no conflict: both hold it.
        let mut same = json!({"ksm": {"mode": "Off"}});
        assert!(others[0].keep_from(&mut same, &live(), &[]).is_empty());
        assert_eq!(same, json!({"ksm": {"mode": "Off"}}));
    }

    #[test]
    fn a_choice_of_fields_is_one() {
        let holder = Holder {
            manager: "kubectl-edit".to_owned(),
            held: Held(json!({"f:cpu": {"f:reserved": {".": {}, "f:cpus": {}}}})),
        };
        let live = json!({"cpu": {"reserved": {"cpus": "0-3"}, "housekeeping": true}});
        let mut wanted = json!({"cpu": {"reserved": {"coresPerZone": 1}, "housekeeping": true}});
        let kept = holder.keep_from(&mut wanted, &live, &["reserved"]);
        assert_eq!(kept.into_iter().collect::<Vec<_>>(), ["cpu.reserved"]);
        assert_eq!(wanted, json!({"cpu": {"housekeeping": true}}));
    }

    #[test]
    fn odd_trees_are_nobodys() {
        for odd in
            [json!(null), json!([]), json!({"f:ksm": 3}), json!({"k:{": {}}), json!({"v:1": {}})]
        {
            let held = Held(odd);
            assert!(held.part_of(&live()).is_object());
            assert!(held.differs(&live(), &live()));
            let mut wanted = live();
            Holder { manager: String::new(), held }.keep_from(&mut wanted, &live(), &[]);
            assert_eq!(wanted, live());
        }
    }
}
