//! Packs the content of objects as JSON text, to save memory: parsed content takes about ten times as much memory, and
//! there are ten thousand objects.

use kube::api::DynamicObject;
use serde_json::Value;

/// Replaces the content of an object (all fields but the metadata) by its JSON text. A packed object must not be
/// serialized, for example into a request.
pub(super) fn pack_content(object: &mut DynamicObject) {
    let mut text = std::mem::take(&mut object.data).to_string();
    text.shrink_to_fit();
    object.data = Value::String(text);
}

/// Returns an object with its content parsed again. An object that is not packed is returned unchanged.
#[must_use]
pub(super) fn unpack_content(object: &DynamicObject) -> DynamicObject {
    let data = match &object.data {
        // Parsing does not fail, because the text was serialized from a value.
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
    fn an_unpacked_object_equals_the_original() {
        let object: DynamicObject = serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "A", "metadata": {"name": "a"}, "spec": {"b": [1, "x"], "c": null},
        }))
        .unwrap();
        let mut packed = object.clone();
        pack_content(&mut packed);
        assert!(packed.data.is_string());
        assert_eq!(unpack_content(&packed), object);
        assert_eq!(unpack_content(&object), object);
    }
}
