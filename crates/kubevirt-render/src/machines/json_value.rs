//! Helpers for JSON values of a MachineDeployment.

use serde_json::Value;

/// Formats a string without quotes, and any other value as JSON.
pub(super) fn to_plain_string(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Returns false if a field is `{}`, `[]`, an empty string or `null`.
pub(super) fn is_set(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(map) => !map.is_empty(),
        Value::Bool(_) | Value::Number(_) => true,
    }
}
