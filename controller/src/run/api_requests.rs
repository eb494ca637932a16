//! Helpers for API requests that several reconcilers share: resource kinds, parameters, and conversion of errors.

use std::time::Duration;

use berth_api::names::CONTROLLER_FIELD_MANAGER;
pub(super) use berth_runtime::call::none_if_not_found;
use berth_runtime::call::{is_conflict, retry_after};
use berth_runtime::reconcile::ReconcileError;
use kube::api::{ApiResource, PatchParams, PostParams};

use crate::api_resource::api_resource;

/// Returns the kind of the KubeVirt object, which has KubeVirt's configuration.
pub(super) fn kubevirt_resource() -> ApiResource {
    api_resource("kubevirt.io", "v1", "KubeVirt", "kubevirts")
}

/// Returns the parameters of a create or replace, with the controller as the field manager.
pub(super) fn post_params() -> PostParams {
    PostParams { field_manager: Some(CONTROLLER_FIELD_MANAGER.to_owned()), ..PostParams::default() }
}

/// Returns the parameters of a patch other than an apply, with the controller as the field manager.
pub(super) fn patch_params() -> PatchParams {
    PatchParams {
        field_manager: Some(CONTROLLER_FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    }
}

/// A failed request: verb and object of the request, and the error that the API server returned. A retry may succeed.
#[derive(Debug, thiserror::Error)]
#[error("{request}: {error}")]
pub(super) struct RequestError {
    request: String,
    error: kube::Error,
}

impl RequestError {
    /// Returns true if the API server has answered the request, so that it may accept requests for other objects.
    pub(super) const fn is_answer(&self) -> bool {
        matches!(self.error, kube::Error::Api(_))
    }

    /// Returns the request with the code and the reason of the error, for a condition. The server's message is omitted: it
    /// can have another text for each request, such as the port of a failed connection to a webhook. Each change of a
    /// condition triggers a reconcile, which would not wait for the backoff.
    pub(super) fn summary(&self) -> String {
        match &self.error {
            kube::Error::Api(status) => {
                format!("{}: {} ({})", self.request, status.reason, status.code)
            }
            _ => format!("{}: the API server did not answer", self.request),
        }
    }
}

impl ReconcileError for RequestError {
    fn retry_after(&self) -> Duration {
        retry_after(&self.error)
    }

    fn is_conflict(&self) -> bool {
        is_conflict(&self.error)
    }
}

/// Adds the verb and the object of the request to an error.
pub(super) fn with_request<T>(
    request: impl FnOnce() -> String,
    result: kube::Result<T>,
) -> Result<T, RequestError> {
    result.map_err(|error| RequestError { request: request(), error })
}

/// Error of a read that RBAC does not permit. The server's message names the verb, the user and the namespace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot be read, because an RBAC permission is missing (docs/security.md): {0}")]
pub(super) struct Forbidden(String);

/// Returns a missing permission (403) as `Ok(Err(_))`, so that the caller can handle it separately from other errors.
pub(super) fn catch_forbidden<T>(result: kube::Result<T>) -> kube::Result<Result<T, Forbidden>> {
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(kube::Error::Api(status)) if status.code == 403 => {
            Ok(Err(Forbidden(status.message.clone())))
        }
        Err(error) => Err(error),
    }
}
