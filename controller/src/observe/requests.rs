//! GET requests to the API server, with a time limit and a limit of objects.

use berth_runtime::call::{CallError, with_timeout};
use kube::Client;
use kube::api::{ApiResource, GetParams};
use serde_json::Value;

use crate::api_resource::api_resource;
use crate::check::{Kind, Read, ReadError};
use crate::list::{list_objects, request_builder};

/// Largest number of pages of a list: 100,000 objects.
const MAX_PAGES: usize = 200;
/// Largest length of a name in Kubernetes.
const MAX_NAME_LENGTH: usize = 253;

/// Returns the resource of a kind.
pub(super) fn kind_resource(kind: Kind) -> ApiResource {
    let [group, version, kind, plural] = kind.resource();
    api_resource(group, version, kind, plural)
}

/// Reads an object. `namespace` is empty for objects without a namespace.
///
/// The object is returned as JSON, because its fields may have any type.
pub(super) async fn get(
    client: &Client,
    resource: &ApiResource,
    namespace: &str,
    name: &str,
) -> Read<Value> {
    // Names come from other objects and are a part of the URL.
    if !is_valid_name(name) || !(namespace.is_empty() || is_valid_name(namespace)) {
        return Err(ReadError::NotFound);
    }
    let builder = request_builder(resource, namespace);
    let request = builder.get(name, &GetParams::default());
    let request = request.map_err(|error| ReadError::Refused(error.to_string()))?;
    with_timeout(client.request::<Value>(request)).await.map_err(read_error)
}

/// Lists the objects of a kind, page by page, and converts each. `namespace` is empty for all namespaces.
pub(super) async fn list<T>(
    client: &Client,
    resource: &ApiResource,
    namespace: &str,
    label_selector: Option<&str>,
    convert: impl Fn(Value) -> T,
) -> Read<Vec<T>> {
    if !namespace.is_empty() && !is_valid_name(namespace) {
        return Err(ReadError::NotFound);
    }
    let mut all = Vec::new();
    let visit = |object| all.push(convert(object));
    let read = list_objects(client, resource, namespace, label_selector, MAX_PAGES, visit).await;
    let is_complete = read.map_err(read_error)?;
    if is_complete { Ok(all) } else { Err(ReadError::TooMany(all.len())) }
}

/// Returns true for a string that can be the name of an object.
fn is_valid_name(name: &str) -> bool {
    let is_valid =
        |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.' | ':');
    !name.is_empty()
        && name.len() <= MAX_NAME_LENGTH
        && !name.starts_with('.')
        && !name.contains("..")
        && name.chars().all(is_valid)
}

/// Returns the reason why a read failed.
pub(super) fn read_error(error: CallError) -> ReadError {
    match error.status_code() {
        Some(403) => ReadError::Forbidden(error.to_string()),
        Some(404) => ReadError::NotFound,
        Some(_) => ReadError::Refused(error.to_string()),
        None => ReadError::Unreachable(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_no_paths() {
        for name in ["rack1-a", "infranodes.berth.dev", "cluster-bank"] {
            assert!(is_valid_name(name), "{name}");
        }
        let long = "a".repeat(254);
        for name in ["", "a/b", "..", ".", "a..b", "a?b", "A", "a%2fb", "\n", long.as_str()] {
            assert!(!is_valid_name(name), "{name}");
        }
    }
}
