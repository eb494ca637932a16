//! Kinds that the server has.

use kube::Client;
use kube::api::ApiResource;

use crate::client::found;

/// Returns true if the server has a kind; a kind that a CustomResourceDefinition defines may come and go.
///
/// # Errors
/// The server's answer.
pub async fn is_served(client: &Client, resource: &ApiResource) -> kube::Result<bool> {
    let list = if resource.group.is_empty() {
        client.list_core_api_resources(&resource.version).await
    } else {
        client.list_api_group_resources(&resource.api_version).await
    };
    let list = found(list)?;
    Ok(list.is_some_and(|list| list.resources.iter().any(|one| one.name == resource.plural)))
}
