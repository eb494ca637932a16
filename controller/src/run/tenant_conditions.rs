//! Body of a write of some conditions of a TenantCluster, which several reconcilers share.

use berth_api::{Condition, TenantCluster};
use kube::ResourceExt as _;
use serde_json::{Value, json};

use crate::managed_fields::conditions_are_atomic;

/// Returns the body of the request that applies `conditions` to the status of a tenant. `owned` has the types of all
/// conditions that the caller writes.
pub(super) fn conditions_body(
    tenant: &TenantCluster,
    owned: &[&str],
    conditions: &[Condition],
) -> Value {
    let mut body = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster",
        "metadata": {"name": tenant.name_any(), "uid": tenant.uid()},
        "status": {"conditions": conditions},
    });
    if conditions_are_atomic(tenant.metadata.managed_fields.as_deref().unwrap_or_default()) {
        let existing = tenant.status.iter().flat_map(|status| &status.conditions);
        let others = existing.filter(|one| !owned.contains(&one.type_.as_str()));
        body["status"]["conditions"] = json!(others.chain(conditions).collect::<Vec<_>>());
        // The write contains conditions of other reconcilers, which must be current.
        body["metadata"]["resourceVersion"] = tenant.resource_version().into();
    }
    body
}
