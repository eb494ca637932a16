//! Faults of objects that users or other programs write, and deserialization that finds all of them.

use std::fmt;

use berth_api::excerpt;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// A fault of a manifest or of another object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct Fault {
    /// Path of the field: `spec.hugepages[0].zone`.
    pub field: String,
    /// Excerpt of the faulty value.
    pub value: String,
    /// The problem and the remedy.
    pub message: String,
}

impl Fault {
    /// Returns a fault of a field that has this value.
    pub fn new(field: impl Into<String>, value: impl ToString, message: impl Into<String>) -> Self {
        let value = excerpt(&value.to_string());
        Self { field: field.into(), value, message: message.into() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: `{}`: {}", self.field, self.value, self.message)
    }
}

/// Deserializes a value. Also returns its faults: unknown fields, and the reason if the value cannot be deserialized.
pub(crate) fn deserialize<T: DeserializeOwned>(
    field_path: &str,
    value: &Value,
) -> (Option<T>, Vec<Fault>) {
    let mut ignored = Vec::new();
    let mut record_ignored = |path: serde_ignored::Path<'_>| ignored.push(path.to_string());
    let mut track = serde_path_to_error::Track::new();
    let tracked = serde_path_to_error::Deserializer::new(value, &mut track);
    let result = T::deserialize(serde_ignored::Deserializer::new(tracked, &mut record_ignored));
    let mut faults: Vec<Fault> = ignored
        .iter()
        // `serde_ignored` writes an `Option` as `?` in the path.
        .map(|path| path.split('.').filter(|part| *part != "?").collect::<Vec<_>>().join("."))
        .map(|path| unknown_field(&format!("{field_path}.{path}"), value_at_path(value, &path)))
        .collect();
    match result {
        Ok(read) => (Some(read), faults),
        Err(error) => {
            let path = track.path().to_string();
            let field =
                if path == "." { field_path.to_owned() } else { format!("{field_path}.{path}") };
            let faulty_value = if path == "." { value } else { value_at_path(value, &path) };
            let message = error.to_string();
            faults.push(Fault::new(field, format_value(faulty_value), message));
            (None, faults)
        }
    }
}

/// Returns the fault of a field that the type does not have.
pub(crate) fn unknown_field(field: &str, value: &Value) -> Fault {
    Fault::new(
        field,
        format_value(value),
        "unknown field; see `berth-agent plan --help` for a sample",
    )
}

/// Returns the value at a path of names and indices: `vfio[0].id`, or `vfio.0.id` as `serde_ignored` writes it.
fn value_at_path<'a>(value: &'a Value, path: &str) -> &'a Value {
    let step = |value: &'a Value, name: &str| match value {
        Value::Array(items) => {
            name.trim_matches(['[', ']']).parse::<usize>().ok().and_then(|n| items.get(n))
        }
        other => other.get(name),
    };
    let mut parts = path.split(['.', '[']).filter(|part| !part.is_empty());
    parts.try_fold(value, step).unwrap_or(&Value::Null)
}

/// Formats a value as a user would write it in YAML.
pub(crate) fn format_value(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}
