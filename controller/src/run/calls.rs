//! What reconcilers ask a server in the same way.

use berth_api::names::CONTROLLER;
use kube::Client;
use kube::api::{ApiResource, PatchParams, PostParams};

/// Of what is made or replaced: by the controller, which a server would not know otherwise.
pub(super) fn made_by() -> PostParams {
    PostParams { field_manager: Some(CONTROLLER.to_owned()), ..PostParams::default() }
}

/// Of what is patched otherwise than by apply.
pub(super) fn patched_by() -> PatchParams {
    PatchParams { field_manager: Some(CONTROLLER.to_owned()), ..PatchParams::default() }
}

/// What is not there is no error.
pub(super) fn found<T>(result: kube::Result<T>) -> kube::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether the server has a kind; one that is defined by a CustomResourceDefinition may come and go.
pub(super) async fn is_served(client: &Client, resource: &ApiResource) -> kube::Result<bool> {
    let list = if resource.group.is_empty() {
        client.list_core_api_resources(&resource.version).await
    } else {
        client.list_api_group_resources(&resource.api_version).await
    };
    let list = found(list)?;
    Ok(list.is_some_and(|list| list.resources.iter().any(|one| one.name == resource.plural)))
}

/// Tells apart that a right is missing: the server says which one, of whom, and where.
pub(super) fn forbidden<T>(result: kube::Result<T>) -> kube::Result<Result<T, String>> {
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(Err(format!(
            "cannot be read, as a right is missing that an administrator may grant there (docs/security.md): {}",
            status.message
        ))),
        Err(error) => Err(error),
    }
}
