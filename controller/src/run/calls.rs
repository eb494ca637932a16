//! What reconcilers ask a server in the same way.

use berth_api::names::CONTROLLER;
pub(super) use berth_runtime::client::found;
use kube::api::{PatchParams, PostParams};

/// Of what is made or replaced: by the controller, which a server would not know otherwise.
pub(super) fn made_by() -> PostParams {
    PostParams { field_manager: Some(CONTROLLER.to_owned()), ..PostParams::default() }
}

/// Of what is patched otherwise than by apply.
pub(super) fn patched_by() -> PatchParams {
    PatchParams { field_manager: Some(CONTROLLER.to_owned()), ..PatchParams::default() }
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
