//! Names of enum values in the API objects.

/// Returns the name of an enum value as the API object spells it.
pub(super) fn api_name<T: serde::Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(text)) => text,
        _ => String::new(),
    }
}
