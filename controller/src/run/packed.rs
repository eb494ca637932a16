//! Objects kept as JSON text: the content of ten thousand of them, as trees of maps, takes about ten times as much.

use kube::api::DynamicObject;
use serde_json::Value;

/// Replaces the content by its text. Metadata stays as it is. A packed object cannot be serialized.
pub(super) fn pack(object: &mut DynamicObject) {
    let mut text = std::mem::take(&mut object.data).to_string();
    text.shrink_to_fit();
    object.data = Value::String(text);
}

/// Replaces the text by the content; an object that is not packed stays as it is.
#[must_use]
pub(super) fn unpacked(object: &DynamicObject) -> DynamicObject {
    let data = match &object.data {
        // It was made of a value, so it is one.
        Value::String(text) => serde_json::from_str(text).unwrap_or_default(),
        data => data.clone(),
    };
    DynamicObject { types: object.types.clone(), metadata: object.metadata.clone(), data }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_object_comes_back_as_it_was() {
        let object: DynamicObject = serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "A", "metadata": {"name": "a"}, "spec": {"b": [1, "x"], "c": null},
        }))
        .unwrap();
        let mut packed = object.clone();
        pack(&mut packed);
        assert!(packed.data.is_string());
        assert_eq!(unpacked(&packed), object);
        assert_eq!(unpacked(&object), object);
    }
}
