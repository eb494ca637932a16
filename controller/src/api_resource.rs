//! Kinds of the API server that no type describes.

use kube::api::{ApiResource, GroupVersionKind};

/// Returns a kind from its API group, version, kind and plural.
pub(crate) fn api_resource(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}
