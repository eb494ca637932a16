//! Reads fields of objects. Any field of an object may be missing or have another type.

use serde_json::Value;

/// Maximum number of names in a message.
const SHOWN_NAMES: usize = 5;

pub(super) fn name(object: &Value) -> &str {
    text(object, "/metadata/name")
}

/// Returns a string field by its JSON pointer; empty if the field is no string.
pub(super) fn text<'v>(object: &'v Value, pointer: &str) -> &'v str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Returns the items of an array field by its JSON pointer; none if the field is no array.
pub(super) fn items<'v>(object: &'v Value, pointer: &str) -> std::slice::Iter<'v, Value> {
    object.pointer(pointer).and_then(Value::as_array).map(|all| all.iter()).unwrap_or_default()
}

/// Returns the strings of an array field by its JSON pointer.
pub(super) fn texts<'v>(object: &'v Value, pointer: &str) -> Vec<&'v str> {
    items(object, pointer).filter_map(Value::as_str).collect()
}

/// Returns the condition of a type, which is null if the object has no such condition.
pub(super) fn condition<'v>(object: &'v Value, kind: &str) -> &'v Value {
    items(object, "/status/conditions").find(|one| one["type"] == kind).unwrap_or(&Value::Null)
}

/// Joins the first names, and appends the number of the remaining names.
pub(super) fn join_names<S: AsRef<str>>(names: &[S]) -> String {
    let shown: Vec<&str> = names.iter().take(SHOWN_NAMES).map(S::as_ref).collect();
    let shown = shown.join(", ");
    match names.len().saturating_sub(SHOWN_NAMES) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Returns a number with a noun: `1 host`, `2 hosts`.
pub(super) fn count(number: usize, noun: &str) -> String {
    let suffix = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{suffix}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_of_another_type_are_empty() {
        for object in [json!(null), json!([]), json!({"metadata": 7, "status": {"conditions": {}}})]
        {
            assert_eq!(name(&object), "");
            assert_eq!(items(&object, "/status/conditions").count(), 0);
            assert_eq!(condition(&object, "Ready"), &Value::Null);
        }
        let object = json!({"status": {"conditions": [null, 7, {"type": "Ready", "status": 1}]}});
        assert_eq!(condition(&object, "Ready")["status"], 1);
    }

    #[test]
    fn noun_agrees_with_its_number() {
        assert_eq!([0, 1, 2].map(|n| count(n, "host")), ["0 hosts", "1 host", "2 hosts"]);
    }

    #[test]
    fn long_lists_of_names_are_shortened() {
        assert_eq!(join_names(&["a", "b"]), "a, b");
        assert_eq!(join_names(&["a"; 7]), "a, a, a, a, a and 2 more");
    }
}
