//! GET requests to the API server, with a time limit and a limit of objects.

use berth_runtime::call::{CallError, with_timeout};
use kube::api::{ApiResource, DynamicObject, GetParams, GroupVersionKind, ListParams};
use kube::core::Request;
use kube::{Client, Resource as _};
use serde_json::Value;

use crate::check::{Read, ReadError};

/// Number of objects per page of a list.
const PAGE_SIZE: u32 = 500;
/// Largest number of pages.
const MAX_PAGES: usize = 200;
/// Largest number of objects of a list.
const MAX_OBJECTS: usize = 100_000;
/// Largest length of a name in Kubernetes.
const MAX_NAME_LENGTH: usize = 253;

/// Returns a kind from its API group, version, kind and plural.
pub(super) fn api_resource([group, version, kind, plural]: [&str; 4]) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
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
    let builder = request_builder(resource, namespace);
    let mut parameters = ListParams::default().limit(PAGE_SIZE);
    parameters.label_selector = label_selector.map(str::to_owned);
    let mut all = Vec::new();
    for _ in 0..MAX_PAGES {
        let request = builder.list(&parameters);
        let request = request.map_err(|error| ReadError::Refused(error.to_string()))?;
        let page = with_timeout(client.request::<Value>(request)).await;
        let mut page = page.map_err(read_error)?;
        if let Some(Value::Array(items)) = page.pointer_mut("/items").map(Value::take) {
            all.extend(items.into_iter().map(without_managed_fields).map(&convert));
        }
        match page.pointer("/metadata/continue").and_then(Value::as_str) {
            Some(token) if !token.is_empty() => parameters = parameters.continue_token(token),
            _ => return Ok(all),
        }
    }
    Err(ReadError::TooMany(MAX_OBJECTS))
}

fn request_builder(resource: &ApiResource, namespace: &str) -> Request {
    let namespace = Some(namespace).filter(|namespace| !namespace.is_empty());
    Request::new(DynamicObject::url_path(resource, namespace))
}

fn without_managed_fields(mut object: Value) -> Value {
    if let Some(metadata) = object.pointer_mut("/metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    object
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
