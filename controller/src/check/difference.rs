//! Compares an object in the cluster with the same object in this release.

use serde_json::Value;

/// Returns the path of the first field of `desired` that `actual` lacks or has with another value.
///
/// Additional fields of `actual` are ignored, because API servers set defaults. Numbers are compared by value, and
/// strings with each sequence of white space as one space, because different encoders write them differently.
/// Fields whose names are in `ignored` are not compared.
pub(super) fn first_difference(
    desired: &Value,
    actual: &Value,
    ignored: &[&str],
) -> Option<String> {
    let mut path = String::new();
    differs(desired, actual, ignored, &mut path).then(|| path.trim_start_matches('.').to_owned())
}

/// Returns true if the values differ. Appends the path of the difference to `path`.
fn differs(desired: &Value, actual: &Value, ignored: &[&str], path: &mut String) -> bool {
    match (desired, actual) {
        (Value::Object(desired), Value::Object(actual)) => desired
            .iter()
            .filter(|(key, _)| !ignored.contains(&key.as_str()))
            .any(|(key, value)| {
                let length = path.len();
                path.push('.');
                path.push_str(key);
                let is_different =
                    differs(value, actual.get(key).unwrap_or(&Value::Null), ignored, path);
                if !is_different {
                    path.truncate(length);
                }
                is_different
            }),
        (Value::Array(desired), Value::Array(actual)) => {
            desired.len() != actual.len()
                || desired.iter().zip(actual).enumerate().any(|(index, (desired, actual))| {
                    let length = path.len();
                    path.push_str(&format!("[{index}]"));
                    let is_different = differs(desired, actual, ignored, path);
                    if !is_different {
                        path.truncate(length);
                    }
                    is_different
                })
        }
        (Value::Number(desired), Value::Number(actual)) => desired.as_f64() != actual.as_f64(),
        (Value::String(desired), Value::String(actual)) => {
            !desired.split_whitespace().eq(actual.split_whitespace())
        }
        (desired, Value::Null) => !is_empty(desired),
        (desired, actual) => desired != actual,
    }
}

/// Returns true for empty values, which API servers omit.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Bool(true) | Value::Number(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn first_difference_is_named_by_its_path() {
        let desired = json!({"a": {"b": [1, {"c": "x  y\n"}]}, "d": false, "e": 3});
        for (actual, path) in [
            (json!({"a": {"b": [1.0, {"c": "x y", "more": 1}]}, "e": 3.0}), None),
            (json!({"a": {"b": [1, {"c": "x z"}]}, "e": 3}), Some("a.b[1].c")),
            (json!({"a": {"b": [1]}, "e": 3}), Some("a.b")),
            (json!({"a": {"b": [1, {"c": "x y"}]}, "e": 4}), Some("e")),
            (json!({"a": 7, "e": 3}), Some("a")),
            (json!(null), Some("")),
        ] {
            assert_eq!(first_difference(&desired, &actual, &[]).as_deref(), path, "{actual}");
        }
        assert_eq!(first_difference(&desired, &json!({"d": 1, "e": 3}), &["a", "d"]), None);
    }
}
