//! Grants tenants the permission to clone golden images of another namespace, and revokes it.

use std::collections::BTreeSet;

use berth_api::names::TENANT_LABEL;
use berth_api::{ConditionReason, Images};
use berth_kubevirt_render::images::clone_role_binding;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use serde_json::Value;

use super::apply::refusal;
use super::memory::ImageMemory;
use super::reconcile::ImageReconciler;
use super::stores::grant_resource;
use crate::images::desired::{DesiredImages, Grant, desired_grants};
use crate::images::key::ImageKey;
use crate::managed_by::is_created_by_berth;
use crate::run::apply::{ApplyTarget, FieldConflictPolicy};
use crate::run::reconcile::ReconcileFailure;
use crate::tenants::fault::{Fault, join_first};

/// Maximum number of refused permissions in a message.
const MAX_NAMED_GRANTS: usize = 4;

impl ImageReconciler {
    /// Returns the permissions that exist.
    pub(super) fn observe_grants(&self) -> BTreeSet<Grant> {
        self.stores.grants.all().iter().filter_map(|object| read_grant(object)).collect()
    }

    /// Grants the permissions that tenants need, and revokes those of deleted tenants and those in a namespace that has no
    /// golden images any more. The permission of a tenant without machines stays, because KubeVirt may not have created the
    /// disks of a machine yet.
    ///
    /// # Errors
    /// Returns the first failure that does not concern a single tenant.
    pub(super) async fn apply_grants(
        &self,
        desired: &DesiredImages,
        images: &Images,
        memory: &mut ImageMemory,
    ) -> Result<(), ReconcileFailure> {
        memory.refused_grants.clear();
        let exists = |tenant: &str| self.context.tenants.get(tenant).is_some();
        let observed = self.observe_grants();
        for grant in desired_grants(desired).into_iter().filter(|(_, tenant)| exists(tenant)) {
            if observed.contains(&grant) {
                continue;
            }
            let (namespace, tenant) = &grant;
            let binding = clone_role_binding(namespace, tenant);
            let name = binding["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            let target = ApplyTarget::new_target(grant_resource(), Some(namespace), &name);
            let writer = &self.context.writer;
            let Err(error) = writer.apply(&target, binding, FieldConflictPolicy::Force).await
            else {
                tracing::info!(namespace, tenant, "granted the permission to clone golden images");
                continue;
            };
            let Some(message) = refusal(&error) else {
                let request = format!("apply RoleBinding {namespace}/{name}");
                return Err(ReconcileFailure::with_request(request)(error));
            };
            memory.refused_grants.insert(grant, message);
        }
        self.revoke_grants(images).await
    }

    async fn revoke_grants(&self, images: &Images) -> Result<(), ReconcileFailure> {
        let unknown = self.context.unknown_tenants();
        for object in self.stores.grants.all() {
            let key = ImageKey::of_object(&object);
            let tenant = object.labels().get(TENANT_LABEL).map(String::as_str).unwrap_or_default();
            let is_tenant_known =
                self.context.tenants.get(tenant).is_some() || unknown.contains(tenant);
            let is_in_use = images.namespace.as_deref() == Some(key.namespace.as_str());
            let is_deleting = object.metadata.deletion_timestamp.is_some();
            let is_own = is_created_by_berth(object.labels());
            if !is_own || is_deleting || (is_tenant_known && is_in_use) {
                continue;
            }
            let deleted =
                self.delete_object(&grant_resource(), &key, object.metadata.uid.as_deref()).await;
            deleted.map_err(ReconcileFailure::with_request(format!("delete RoleBinding {key}")))?;
            tracing::info!(namespace = %key.namespace, tenant, "revoked the permission to clone golden images");
        }
        Ok(())
    }

    /// Returns the fault that the API server refuses permissions.
    pub(super) fn grant_fault(&self, memory: &ImageMemory) -> Option<Fault> {
        let refused = memory.refused_grants.iter().map(|((namespace, tenant), message)| {
            format!("of tenant {tenant} in namespace {namespace}: {message}")
        });
        let refused: Vec<String> = refused.collect();
        let message = format!(
            "permissions to clone golden images that could not be granted: {}",
            join_first(&refused, MAX_NAMED_GRANTS, "; ")
        );
        (!refused.is_empty()).then(|| Fault::new(ConditionReason::ApplyFailed, message))
    }
}

/// Returns the permission of a RoleBinding; `None` if the RoleBinding is not the one that Berth would create.
fn read_grant(object: &DynamicObject) -> Option<Grant> {
    let namespace = object.namespace()?;
    let tenant = object.labels().get(TENANT_LABEL)?.clone();
    let expected = clone_role_binding(&namespace, &tenant);
    let is_same = |field: &str| object.data.get(field) == expected.get(field);
    let has_name = expected["metadata"]["name"].as_str() == object.metadata.name.as_deref();
    (has_name && is_same("roleRef") && has_subject(object, &expected))
        .then_some((namespace, tenant))
}

fn has_subject(object: &DynamicObject, expected: &Value) -> bool {
    let subjects = object.data.get("subjects").and_then(Value::as_array);
    let subject = &expected["subjects"][0];
    // The API server may add fields.
    subjects.into_iter().flatten().any(|one| {
        ["kind", "name", "namespace"].iter().all(|field| one.get(field) == subject.get(field))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_a_complete_role_binding_is_a_permission() {
        let binding = clone_role_binding("images", "abc");
        let read = |binding: &Value| read_grant(&serde_json::from_value(binding.clone()).unwrap());
        assert_eq!(read(&binding), Some(("images".to_owned(), "abc".to_owned())));
        for (pointer, value) in [
            ("/roleRef/name", json!("view")),
            ("/subjects/0/namespace", json!("cluster-other")),
            ("/subjects", json!([])),
            ("/metadata/name", json!("other")),
            ("/metadata/labels", json!({})),
        ] {
            let mut other = binding.clone();
            *other.pointer_mut(pointer).unwrap() = value;
            assert_eq!(read(&other), None, "{pointer}");
        }
    }
}
