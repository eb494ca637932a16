//! Owner of an object.

use serde_json::Value;

/// Returns the owner reference with `controller: true` of an object; `None` if it has none.
#[must_use]
pub fn controller_reference(object: &Value) -> Option<&Value> {
    let metadata = object.get("metadata");
    let owners = metadata.and_then(|metadata| metadata.get("ownerReferences")?.as_array());
    owners.into_iter().flatten().find(|owner| owner["controller"] == true)
}
