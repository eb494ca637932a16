//! Error about an invalid object, which names the object and the field, and functions that parse objects and return
//! this error.

use std::borrow::Cow;

use serde::de::DeserializeOwned;
use serde_json::Value;

/// Error about an invalid field of an object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{object}: {field}: {message}")]
pub struct Invalid {
    /// Kind, namespace and name of the object, such as `VirtualMachine tenant-a/web-1`.
    pub object: String,
    /// Path of the field, such as `spec.template.spec.domain.cpu.cores`.
    pub field: String,
    /// The value, and why it is invalid.
    pub message: String,
}

impl Invalid {
    /// Creates an error about a field of an object.
    pub fn new(
        object: impl Into<String>,
        field: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        Self { object: object.into(), field: field.into(), message: message.into() }
    }
}

/// Returns kind, namespace and name of an object for messages. A missing kind is shown as `object`, a missing name as
/// `?`.
pub(super) fn qualified_name(object: &Value) -> String {
    let text = |value: Option<&Value>| {
        value.and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned)
    };
    let metadata = object.get("metadata");
    let kind = text(object.get("kind")).unwrap_or_else(|| "object".to_owned());
    let name = text(metadata.and_then(|m| m.get("name"))).unwrap_or_else(|| "?".to_owned());
    match text(metadata.and_then(|m| m.get("namespace"))) {
        Some(namespace) => format!("{kind} {namespace}/{name}"),
        None => format!("{kind} {name}"),
    }
}

/// Parses an object. Returns the first invalid field if parsing fails. As in an API server, a field with the value
/// `null` counts as absent.
pub(super) fn deserialize<T: DeserializeOwned>(object: &Value) -> Result<T, Invalid> {
    let object =
        if has_nulls(object) { Cow::Owned(without_nulls(object)) } else { Cow::Borrowed(object) };
    // Only an object that cannot be parsed is parsed again with the path of each field, because this is slower.
    T::deserialize(&*object).or_else(|_| {
        serde_path_to_error::deserialize(&*object).map_err(|error| {
            let field = error.path().to_string();
            Invalid::new(qualified_name(&object), field, error.into_inner().to_string())
        })
    })
}

/// Returns true if a value contains a field with the value `null`, at any depth.
fn has_nulls(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.values().any(|value| value.is_null() || has_nulls(value)),
        Value::Array(items) => items.iter().any(has_nulls),
        _ => false,
    }
}

/// Returns a copy of a value without the fields that have the value `null`, at any depth.
pub(crate) fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.iter().filter(|(_, value)| !value.is_null());
            Value::Object(kept.map(|(key, value)| (key.clone(), without_nulls(value))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(without_nulls).collect()),
        other => other.clone(),
    }
}
