//! Fields that Berth applies but that another field manager owns: Berth does not change these fields, and reports them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use kube::core::Status;
use serde_json::Value;

/// Time after which Berth tries to apply a field again, because the other manager may have released the field.
const RETRY_INTERVAL: Duration = Duration::from_secs(600);

/// `reason` of each cause in the response to a conflicting apply (`metav1.CauseTypeFieldManagerConflict`).
pub const FIELD_MANAGER_CONFLICT: &str = "FieldManagerConflict";

/// Returns the fields that caused the conflict (409) of a server-side apply, each with the name of the manager that
/// owns the field.
#[must_use]
pub fn conflicting_managers(status: &Status) -> BTreeMap<String, String> {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let conflicts = causes.filter(|cause| cause.reason == FIELD_MANAGER_CONFLICT);
    conflicts.map(|cause| (cause.field.clone(), parse_manager(&cause.message).to_owned())).collect()
}

/// Returns the name of the manager in a message such as `conflict with "kubectl-edit" using berth.dev/v1alpha1`.
fn parse_manager(message: &str) -> &str {
    message.split('"').nth(1).unwrap_or(message)
}

/// Fields of one object that other managers own: for each path in the server's format, the time of the last conflict.
#[derive(Debug, Default)]
pub struct FieldConflicts(BTreeMap<String, Instant>);

impl FieldConflicts {
    /// Records the fields that caused the conflict (409) of a server-side apply, except the fields for whose path and
    /// manager `may_force` returns true. Returns the fields that are recorded for the first time, with the server's
    /// messages; `None` if there are none.
    pub fn record_conflict(
        &mut self,
        status: &Status,
        may_force: impl Fn(&str, &str) -> bool,
    ) -> Option<String> {
        let causes = status.details.iter().flat_map(|details| &details.causes);
        let conflicts = causes.filter(|cause| {
            cause.reason == FIELD_MANAGER_CONFLICT
                && !may_force(&cause.field, parse_manager(&cause.message))
        });
        let mut new = Vec::new();
        for cause in conflicts {
            if self.0.insert(cause.field.clone(), Instant::now()).is_none() {
                new.push(format!("{}: {}", cause.field, cause.message));
            }
        }
        (!new.is_empty()).then(|| new.join("; "))
    }

    /// Returns the fields that had a conflict in the last ten minutes, and forgets all other fields.
    pub fn conflicting_fields(&mut self) -> BTreeSet<String> {
        self.0.retain(|_, since| since.elapsed() < RETRY_INTERVAL);
        self.0.keys().cloned().collect()
    }
}

/// Removes the field at a path such as `.status.zones[id=1].memory` from an object.
pub fn remove_field(object: &mut Value, path: &str) {
    let mut steps = parse_path(path);
    let Some(last) = steps.pop() else { return };
    let mut current = object;
    for step in &steps {
        let Some(next) = find_child(current, step) else { return };
        current = next;
    }
    match last {
        PathElement::Field(name) => {
            current.as_object_mut().and_then(|fields| fields.remove(&name));
        }
        PathElement::Key(name, value) => {
            if let Some(items) = current.as_array_mut() {
                items.retain(|item| !has_field_value(item, &name, &value));
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum PathElement {
    Field(String),
    Key(String, String),
}

/// Splits a path into fields and list keys. In list keys, the server quotes strings, but not numbers. Fields are
/// separated at dots, because no field name of an InfraNode contains a dot.
fn parse_path(path: &str) -> Vec<PathElement> {
    let mut steps = Vec::new();
    for part in path.split('.').filter(|part| !part.is_empty()) {
        let (field, key) = part.split_once('[').unwrap_or((part, ""));
        if !field.is_empty() {
            steps.push(PathElement::Field(field.to_owned()));
        }
        if let Some((name, value)) = key.trim_end_matches(']').split_once('=') {
            steps.push(PathElement::Key(name.to_owned(), value.trim_matches('"').to_owned()));
        }
    }
    steps
}

fn find_child<'a>(parent: &'a mut Value, step: &PathElement) -> Option<&'a mut Value> {
    match step {
        PathElement::Field(name) => parent.get_mut(name),
        PathElement::Key(name, value) => {
            parent.as_array_mut()?.iter_mut().find(|item| has_field_value(item, name, value))
        }
    }
}

fn has_field_value(item: &Value, name: &str, value: &str) -> bool {
    match item.get(name) {
        Some(Value::String(found)) => found == value,
        Some(found) => serde_json::from_str::<Value>(value).is_ok_and(|value| *found == value),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn remove_field_removes_only_the_field_of_the_path() {
        let mut object = json!({"status": {"zones": [{"id": 0, "cores": 2}, {"id": 1, "cores": 2}],
            "conditions": [{"type": "Ready", "status": "True"}]}});
        remove_field(&mut object, ".status.zones[id=1].cores");
        remove_field(&mut object, ".status.conditions[type=\"Ready\"].status");
        remove_field(&mut object, ".status.nothing[a=\"b\"].here");
        remove_field(&mut object, "");
        let expected = json!({"status": {"zones": [{"id": 0, "cores": 2}, {"id": 1}], "conditions": [{"type": "Ready"}]}});
        assert_eq!(object, expected);
        remove_field(&mut object, ".status.zones[id=0]");
        assert_eq!(object["status"]["zones"], json!([{"id": 1}]));
    }
}
