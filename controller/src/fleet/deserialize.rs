//! Deserialization of objects whose fields are known to Kubernetes or Berth.

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::kinds::string_at;
use berth_api::Problem;

/// Deserializes an object, or returns a problem with the invalid field. Only an invalid object is deserialized a
/// second time to find the path of the field, because tracking the path costs more than deserializing.
pub(crate) fn deserialize_object<T: DeserializeOwned>(
    kind: &str,
    location: &str,
    object: &Value,
) -> Result<T, Problem> {
    T::deserialize(object).or_else(|_| {
        serde_path_to_error::deserialize(object).map_err(|error| {
            let name = string_at(object, "/metadata/name");
            let object_name = if name.is_empty() {
                format!("{kind} in {location}")
            } else {
                format!("{kind} {name}")
            };
            let field = error.path().to_string();
            Problem::new(object_name, field, "", error.inner().to_string()).into_fatal("left out")
        })
    })
}
