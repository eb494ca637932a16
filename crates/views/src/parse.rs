//! Deserialization of objects whose fields are known to Kubernetes or Berth.

use berth_api::Problem;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Deserializes an object, or returns a problem with the invalid field. Only an invalid object is deserialized a
/// second time to find the path of the field, because tracking the path costs more than deserializing.
///
/// # Errors
/// Returns the problem, with the name of the object, or with `location` if it has no name.
pub fn deserialize_object<T: DeserializeOwned>(
    kind: &str,
    location: &str,
    object: &Value,
) -> Result<T, Problem> {
    T::deserialize(object).or_else(|_| {
        serde_path_to_error::deserialize(object).map_err(|error| {
            let name = object.get("metadata").and_then(|metadata| metadata.get("name")?.as_str());
            let object_name = match name.unwrap_or_default() {
                "" => format!("{kind} in {location}"),
                name => format!("{kind} {name}"),
            };
            let field = error.path().to_string();
            Problem::new(object_name, field, "", error.inner().to_string()).into_fatal("left out")
        })
    })
}
