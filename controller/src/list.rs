//! Lists objects of the API server, page by page.

use berth_runtime::call::{CallError, with_timeout};
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::core::Request;
use kube::{Client, Resource as _};
use serde_json::Value;

/// Number of objects per page of a list: a page of 500 pods is about two megabytes.
pub(crate) const PAGE_SIZE: u32 = 500;

/// Lists the objects of a kind, and passes each to `visit`, without its managed fields. `namespace` is empty for all
/// namespaces. Returns false if there are more than `max_pages` pages.
///
/// The objects are JSON, because their fields may have any type.
pub(crate) async fn list_objects(
    client: &Client,
    resource: &ApiResource,
    namespace: &str,
    label_selector: Option<&str>,
    max_pages: usize,
    mut visit: impl FnMut(Value),
) -> Result<bool, CallError> {
    let request = request_builder(resource, namespace);
    let mut parameters = ListParams::default().limit(PAGE_SIZE);
    parameters.label_selector = label_selector.map(str::to_owned);
    for _ in 0..max_pages {
        let list = request.list(&parameters).map_err(kube::Error::BuildRequest)?;
        let mut page = with_timeout(client.request::<Value>(list)).await?;
        if let Some(Value::Array(items)) = page.pointer_mut("/items").map(Value::take) {
            items.into_iter().map(without_managed_fields).for_each(&mut visit);
        }
        match page.pointer("/metadata/continue").and_then(Value::as_str) {
            Some(token) if !token.is_empty() => parameters = parameters.continue_token(token),
            _ => return Ok(true),
        }
    }
    Ok(false)
}

/// Returns true if the list took so long that the API server has discarded its version, between two pages. The pages that
/// were received belong to no list, and the list must be repeated.
pub(crate) fn is_expired(error: &CallError) -> bool {
    error.status().is_some_and(|status| status.code == 410)
}

/// Checks that the objects of a kind can be listed, with a request for one of them.
///
/// # Errors
/// Returns the error of the request.
pub(crate) async fn probe_list(
    client: &Client,
    resource: &ApiResource,
    namespace: &str,
    label_selector: Option<&str>,
) -> Result<(), CallError> {
    let mut parameters = ListParams::default().limit(1);
    parameters.label_selector = label_selector.map(str::to_owned);
    let list = request_builder(resource, namespace).list(&parameters);
    let list = list.map_err(kube::Error::BuildRequest)?;
    with_timeout(client.request::<Value>(list)).await.map(drop)
}

/// Returns a builder of requests for a kind. `namespace` is empty for all namespaces, and for objects without one.
pub(crate) fn request_builder(resource: &ApiResource, namespace: &str) -> Request {
    let namespace = Some(namespace).filter(|namespace| !namespace.is_empty());
    Request::new(DynamicObject::url_path(resource, namespace))
}

fn without_managed_fields(mut object: Value) -> Value {
    if let Some(metadata) = object.pointer_mut("/metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    object
}
