//! Discovery of the kinds that the API server serves.

use kube::Client;
use kube::api::ApiResource;

use crate::call::none_if_not_found;

/// Returns true if the API server serves a kind. The result may change at any time, because CustomResourceDefinitions
/// can be added and removed.
///
/// # Errors
///
/// Returns the error of the API server.
pub async fn is_kind_served(client: &Client, resource: &ApiResource) -> kube::Result<bool> {
    let list = if resource.group.is_empty() {
        client.list_core_api_resources(&resource.version).await
    } else {
        client.list_api_group_resources(&resource.api_version).await
    };
    let list = none_if_not_found(list)?;
    Ok(list.is_some_and(|list| list.resources.iter().any(|one| one.name == resource.plural)))
}
