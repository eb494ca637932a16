//! Resources of the API server by kind.

use berth_views::Kind;
use kube::api::{ApiResource, GroupVersionKind};

/// Returns the resource of a kind.
pub(crate) fn api_resource(kind: Kind) -> ApiResource {
    let [group, version, name, plural] = kind.resource();
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, name), plural)
}
