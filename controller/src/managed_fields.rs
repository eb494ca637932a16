//! Field ownership of an object, from its `metadata.managedFields`.
//!
//! Server-side apply without force fails if another manager owns a field with another value (KEP-555). This module
//! determines from the ownership which fields the controller must leave to other managers, which fields it owns, and
//! whether an apply would change the object. Format: structured-merge-diff, `fieldpath/serialize.go`: `f:` is a
//! field, `k:` a list item by its keys, `v:` a value of a set, `.` the item itself.

use std::collections::BTreeSet;

use berth_api::Condition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry, ObjectMeta};
use serde_json::{Map, Value, json};

/// A set of fields below one top-level field of an object, such as `spec`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldSet(Value);

/// A field manager, and the fields that it owns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldOwner {
    /// Name of the manager, such as `kubectl-edit`.
    pub manager: String,
    /// Fields that the manager owns.
    pub fields: FieldSet,
}

/// Returns the fields below the top-level field `top_level_field` that `manager` owns through an apply.
#[must_use]
pub fn fields_applied_by(
    entries: &[ManagedFieldsEntry],
    manager: &str,
    top_level_field: &str,
) -> FieldSet {
    let ours = entries.iter().filter(|entry| is_apply(entry) && is_managed_by(entry, manager));
    ours.filter_map(|entry| fields_below(entry, top_level_field)).next().unwrap_or_default()
}

/// Returns true if the API server treats the conditions of a status as atomic, with a single owner. Kubernetes 1.20
/// does this for kinds whose schema has an int-or-string field (its `customresource_handler.go`: error building
/// openapi models). On such a server, two managers that apply different conditions would remove each other's
/// conditions again and again.
#[must_use]
pub fn conditions_are_atomic(entries: &[ManagedFieldsEntry]) -> bool {
    let lists = entries
        .iter()
        .filter_map(|entry| entry.fields_v1.as_ref()?.0.pointer("/f:status/f:conditions"));
    lists.filter_map(Value::as_object).any(Map::is_empty)
}

/// Returns `conditions` and the existing conditions of other managers, which an apply must also contain if conditions
/// are atomic. Existing conditions whose types are in `owned` belong to the caller, and are left out.
#[must_use]
pub fn with_existing_conditions<'c>(
    existing: impl IntoIterator<Item = &'c Condition>,
    owned: &[&str],
    mut conditions: Vec<Condition>,
) -> Vec<Condition> {
    let is_written = |one: &&Condition| {
        owned.contains(&one.type_.as_str()) || conditions.iter().any(|new| new.type_ == one.type_)
    };
    let others = existing.into_iter().filter(|one| !is_written(one));
    let others: Vec<Condition> = others.cloned().collect();
    conditions.extend(others);
    conditions
}

/// Reduces an object's `managedFields` to the part that [`conditions_are_atomic`] reads. The complete `managedFields`
/// would take half of the memory of all tenants.
pub fn reduce_to_conditions(metadata: &mut ObjectMeta) {
    let entries = metadata.managed_fields.take().unwrap_or_default();
    metadata.managed_fields = conditions_are_atomic(&entries).then(|| {
        let fields = FieldsV1(json!({"f:status": {"f:conditions": {}}}));
        vec![ManagedFieldsEntry { fields_v1: Some(fields), ..ManagedFieldsEntry::default() }]
    });
}

/// Returns the owners of fields below the top-level field `top_level_field`, without the fields that the manager
/// `excluded_manager` owns through an apply.
#[must_use]
pub fn other_field_owners(
    entries: &[ManagedFieldsEntry],
    excluded_manager: &str,
    top_level_field: &str,
) -> Vec<FieldOwner> {
    let others =
        entries.iter().filter(|entry| !(is_apply(entry) && is_managed_by(entry, excluded_manager)));
    let owner = |entry: &ManagedFieldsEntry| {
        let manager = entry.manager.clone().unwrap_or_default();
        Some(FieldOwner { manager, fields: fields_below(entry, top_level_field)? })
    };
    others.filter_map(owner).collect()
}

fn is_apply(entry: &ManagedFieldsEntry) -> bool {
    entry.operation.as_deref() == Some("Apply")
}

fn is_managed_by(entry: &ManagedFieldsEntry, manager: &str) -> bool {
    entry.manager.as_deref() == Some(manager)
}

fn fields_below(entry: &ManagedFieldsEntry, top_level_field: &str) -> Option<FieldSet> {
    let fields = entry.fields_v1.as_ref()?.0.get(format!("f:{top_level_field}"))?;
    Some(FieldSet(fields.clone()))
}

impl FieldSet {
    /// Returns true if the set contains no field.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        child_elements(&self.0).next().is_none()
    }

    /// Returns the part of `live` that consists of the fields in the set.
    #[must_use]
    pub fn extract(&self, live: &Value) -> Value {
        extract_owned_fields(&self.0, live)
    }

    /// Returns true if applying `desired` would change a value or the ownership of a field.
    ///
    /// `self` contains the fields that the manager owns. The result is false if the manager owns exactly the desired
    /// fields, and they have their desired values in `live`.
    #[must_use]
    pub fn differs(&self, desired: &Value, live: &Value) -> bool {
        if self.is_empty() {
            return desired.as_object().is_none_or(|desired| !desired.is_empty());
        }
        !owned_fields_equal(&self.0, desired, live)
    }
}

impl FieldOwner {
    /// Removes from `desired` the fields in the set whose value in `live` is different, because another manager owns
    /// them. Returns the paths of the removed fields, such as `ksm.mode`.
    ///
    /// A field whose name is in `exclusive_fields` is removed as a whole, because only one of its alternative subfields
    /// may be set.
    pub fn remove_owned(
        &self,
        desired: &mut Value,
        live: &Value,
        exclusive_fields: &[&str],
    ) -> BTreeSet<String> {
        let mut removal = FieldRemover { exclusive_fields, removed: BTreeSet::new() };
        removal.remove(&self.fields.0, desired, live, "");
        removal.removed
    }
}

/// Returns the children of a node in a field tree, each as its path element and its subtree, without the element `.`.
fn child_elements(tree: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let fields = tree.as_object().into_iter().flatten();
    fields.map(|(step, tree)| (step.as_str(), tree)).filter(|(step, _)| *step != ".")
}

/// Returns true if a field has no subfields in the tree, which means that the manager owns the whole field.
fn is_leaf(tree: &Value) -> bool {
    child_elements(tree).next().is_none()
}

/// Returns the keys of a path element that stands for a list item; `None` for other path elements.
fn list_item_keys(step: &str) -> Option<Map<String, Value>> {
    serde_json::from_str(step.strip_prefix("k:")?).ok()
}

fn has_keys(item: &Value, keys: &Map<String, Value>) -> bool {
    keys.iter().all(|(name, value)| item.get(name) == Some(value))
}

fn find_item<'a>(list: &'a [Value], keys: &Map<String, Value>) -> Option<&'a Value> {
    list.iter().find(|item| has_keys(item, keys))
}

fn extract_owned_fields(tree: &Value, live: &Value) -> Value {
    if is_leaf(tree) {
        return live.clone();
    }
    match live {
        Value::Object(fields) => {
            let fields = child_elements(tree).filter_map(|(step, tree)| {
                let name = step.strip_prefix("f:")?;
                Some((name.to_owned(), extract_owned_fields(tree, fields.get(name)?)))
            });
            Value::Object(fields.collect())
        }
        Value::Array(items) => {
            // The result keeps the order of the items in the live list; the tree sorts the items by their keys.
            let fields = |item: &Value| {
                let tree = child_elements(tree).find(|(step, _)| {
                    list_item_keys(step).is_some_and(|keys| has_keys(item, &keys))
                });
                tree.map(|(_, tree)| extract_owned_fields(tree, item))
            };
            items.iter().filter_map(fields).collect()
        }
        other => other.clone(),
    }
}

/// Returns true if `desired` contains exactly the owned fields, and each has the value in `live`.
fn owned_fields_equal(tree: &Value, desired: &Value, live: &Value) -> bool {
    if is_leaf(tree) {
        return desired == live;
    }
    match (desired, live) {
        (Value::Object(desired), Value::Object(live)) => {
            let steps: Vec<(&str, &Value)> = child_elements(tree)
                .filter_map(|(step, tree)| Some((step.strip_prefix("f:")?, tree)))
                .collect();
            steps.len() == desired.len()
                && steps.iter().all(|(name, tree)| match (desired.get(*name), live.get(*name)) {
                    (Some(desired), Some(live)) => owned_fields_equal(tree, desired, live),
                    _ => false,
                })
        }
        (Value::Array(desired), Value::Array(live)) => {
            let mut steps = 0_usize;
            let all = child_elements(tree).all(|(step, tree)| {
                steps = steps.saturating_add(1);
                let Some(keys) = list_item_keys(step) else { return false };
                match (find_item(desired, &keys), find_item(live, &keys)) {
                    (Some(desired), Some(live)) => owned_fields_equal(tree, desired, live),
                    _ => false,
                }
            });
            all && steps == desired.len()
        }
        _ => false,
    }
}

/// Removes from a desired value the fields that another manager owns.
struct FieldRemover<'a> {
    exclusive_fields: &'a [&'a str],
    removed: BTreeSet<String>,
}

impl FieldRemover<'_> {
    fn remove(&mut self, tree: &Value, desired: &mut Value, live: &Value, path: &str) {
        match desired {
            Value::Object(fields) => {
                for (step, tree) in child_elements(tree) {
                    let Some(name) = step.strip_prefix("f:") else { continue };
                    let (Some(value), Some(live)) = (fields.get_mut(name), live.get(name)) else {
                        continue;
                    };
                    let field_path =
                        if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
                    let count_before = self.removed.len();
                    if is_leaf(tree) || self.exclusive_fields.contains(&name) {
                        if value != live {
                            fields.remove(name);
                            self.removed.insert(field_path);
                        }
                        continue;
                    }
                    self.remove(tree, value, live, &field_path);
                    // An object whose fields were all removed is removed too.
                    if self.removed.len() > count_before
                        && value.as_object().is_some_and(Map::is_empty)
                    {
                        fields.remove(name);
                    }
                }
            }
            Value::Array(items) => {
                let Some(live) = live.as_array() else { return };
                for (step, tree) in child_elements(tree) {
                    let Some(keys) = list_item_keys(step) else { continue };
                    let desired = items.iter_mut().find(|item| has_keys(item, &keys));
                    let (Some(desired), Some(live)) = (desired, find_item(live, &keys)) else {
                        continue;
                    };
                    let name = |value: &Value| {
                        value.as_str().map_or_else(|| value.to_string(), str::to_owned)
                    };
                    let names = keys.values().map(name).collect::<Vec<_>>().join(",");
                    self.remove(tree, desired, live, &format!("{path}[{names}]"));
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn managed_fields_entry(manager: &str, operation: &str, fields: Value) -> ManagedFieldsEntry {
        serde_json::from_value(json!({
            "manager": manager, "operation": operation, "apiVersion": "berth.dev/v1alpha1",
            "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": fields},
        }))
        .unwrap()
    }

    fn live_spec() -> Value {
        json!({"profile": "a", "ksm": {"mode": "Off", "pagesToScan": 100}, "hugepages": [{"size": "2Mi", "count": 3}],
            "networks": [{"name": "trunk", "scenario": "VlanAwareBridge", "mtu": 9000}, {"name": "mine", "mtu": 1500}]})
    }

    fn controller_fields() -> Value {
        json!({"f:profile": {}, "f:ksm": {"f:mode": {}}, "f:hugepages": {}, "f:networks": {
            "k:{\"name\":\"trunk\"}": {".": {}, "f:name": {}, "f:scenario": {}, "f:mtu": {}}}})
    }

    #[test]
    fn reduced_managed_fields_have_the_same_atomicity() {
        let status = |conditions: Value| {
            let mut entry = managed_fields_entry("c", "Apply", json!({}));
            entry.fields_v1 = Some(FieldsV1(json!({"f:status": {"f:conditions": conditions}})));
            entry
        };
        for (conditions, is_atomic) in
            [(json!({}), true), (json!({"k:{\"type\":\"A\"}": {}}), false)]
        {
            let entries =
                vec![managed_fields_entry("a", "Update", controller_fields()), status(conditions)];
            let mut metadata =
                ObjectMeta { managed_fields: Some(entries), ..ObjectMeta::default() };
            reduce_to_conditions(&mut metadata);
            let removed = metadata.managed_fields.unwrap_or_default();
            assert_eq!(
                (conditions_are_atomic(&removed), removed.len()),
                (is_atomic, usize::from(is_atomic))
            );
        }
    }

    #[test]
    fn owned_fields_with_desired_values_do_not_differ() {
        let fields = fields_applied_by(
            &[managed_fields_entry("c", "Apply", controller_fields())],
            "c",
            "spec",
        );
        let desired = json!({"profile": "a", "ksm": {"mode": "Off"}, "hugepages": [{"size": "2Mi", "count": 3}],
            "networks": [{"name": "trunk", "scenario": "VlanAwareBridge", "mtu": 9000}]});
        assert!(!fields.differs(&desired, &live_spec()));
        assert_eq!(fields.extract(&live_spec()), desired);
        for (pointer, value) in [
            ("/profile", json!("b")),
            ("/ksm", json!({"mode": "Off", "pagesToScan": 100})),
            ("/ksm/mode", json!("On")),
            ("/hugepages/0/count", json!(4)),
            ("/networks/0/mtu", json!(1500)),
            ("/networks", json!([])),
        ] {
            let mut other = desired.clone();
            *other.pointer_mut(pointer).unwrap() = value;
            assert!(fields.differs(&other, &live_spec()), "{pointer}");
        }
        // An owned field that is no longer desired, and a desired field without an owner, are differences.
        let mut less = desired.clone();
        less.as_object_mut().unwrap().remove("ksm");
        assert!(fields.differs(&less, &live_spec()));
        assert!(FieldSet::default().differs(&desired, &live_spec()));
        assert!(!FieldSet::default().differs(&json!({}), &live_spec()));
        assert!(FieldSet::default().is_empty() && !fields.is_empty());
    }

    #[test]
    fn conflicting_fields_of_other_managers_are_removed() {
        let others = other_field_owners(
            &[
                managed_fields_entry("c", "Apply", controller_fields()),
                managed_fields_entry(
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
        let mut desired = json!({"profile": "b", "ksm": {"mode": "On"},
            "networks": [{"name": "trunk", "scenario": "BridgePerTenant", "mtu": 1500}]});
        let removed = others[0].remove_owned(&mut desired, &live_spec(), &[]);
        assert_eq!(removed.into_iter().collect::<Vec<_>>(), ["ksm.mode", "networks[trunk].mtu"]);
        let expected =
            json!({"profile": "b", "networks": [{"name": "trunk", "scenario": "BridgePerTenant"}]});
        assert_eq!(desired, expected);
        // The same value is not a conflict: both managers own the field.
        let mut same = json!({"ksm": {"mode": "Off"}});
        assert!(others[0].remove_owned(&mut same, &live_spec(), &[]).is_empty());
        assert_eq!(same, json!({"ksm": {"mode": "Off"}}));
    }

    #[test]
    fn alternative_fields_are_removed_as_a_whole() {
        let holder = FieldOwner {
            manager: "kubectl-edit".to_owned(),
            fields: FieldSet(json!({"f:cpu": {"f:reserved": {".": {}, "f:cpus": {}}}})),
        };
        let live = json!({"cpu": {"reserved": {"cpus": "0-3"}, "housekeeping": true}});
        let mut desired = json!({"cpu": {"reserved": {"coresPerZone": 1}, "housekeeping": true}});
        let removed = holder.remove_owned(&mut desired, &live, &["reserved"]);
        assert_eq!(removed.into_iter().collect::<Vec<_>>(), ["cpu.reserved"]);
        assert_eq!(desired, json!({"cpu": {"housekeeping": true}}));
    }

    #[test]
    fn malformed_trees_own_no_fields() {
        for odd in
            [json!(null), json!([]), json!({"f:ksm": 3}), json!({"k:{": {}}), json!({"v:1": {}})]
        {
            let fields = FieldSet(odd);
            assert!(fields.extract(&live_spec()).is_object());
            assert!(fields.differs(&live_spec(), &live_spec()));
            let mut desired = live_spec();
            FieldOwner { manager: String::new(), fields }.remove_owned(
                &mut desired,
                &live_spec(),
                &[],
            );
            assert_eq!(desired, live_spec());
        }
    }

    fn condition(type_: &str, message: &str) -> Condition {
        let condition = json!({
            "type": type_, "status": "True", "reason": "Applied", "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        serde_json::from_value(condition).unwrap()
    }

    #[test]
    fn existing_conditions_of_other_managers_are_kept() {
        let existing = [
            condition("Ready", "of the agent"),
            condition("HostLost", "old"),
            condition("Draining", "old"),
        ];
        let written =
            with_existing_conditions(&existing, &["HostLost"], vec![condition("HostLost", "new")]);
        let messages: Vec<&str> = written.iter().map(|one| one.message.as_str()).collect();
        assert_eq!(messages, ["new", "of the agent", "old"]);
        assert_eq!(written[2].type_, "Draining");
        let removed = with_existing_conditions(&existing, &["HostLost"], Vec::new());
        assert!(removed.iter().all(|one| one.type_ != "HostLost") && removed.len() == 2);
        // The controller's condition about an unresponsive agent replaces the condition that the agent wrote.
        let of_agent = condition("Ready", "unknown");
        let written = with_existing_conditions(&existing, &["ProfileConflict"], vec![of_agent]);
        assert_eq!(written.iter().filter(|one| one.type_ == "Ready").count(), 1);
    }
}
