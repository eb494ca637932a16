//! Reads, applies and deletes single objects of requested tenants.

use berth_api::names::{CONTROLLER_FIELD_MANAGER, TENANT_LABEL};
use berth_runtime::call::with_timeout;
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::Value;

use super::service::SelfService;
use crate::api_resource::api_resource;
use crate::run::reconcile::ReconcileFailure;
use crate::self_service::objects::object_differs;

/// Returns the kind of RoleBindings.
pub(super) fn role_bindings() -> ApiResource {
    api_resource("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings")
}

/// Returns the kind of ServiceAccounts.
pub(super) fn service_accounts() -> ApiResource {
    api_resource("", "v1", "ServiceAccount", "serviceaccounts")
}

/// Returns the kind of ResourceQuotas.
pub(super) fn resource_quotas() -> ApiResource {
    api_resource("", "v1", "ResourceQuota", "resourcequotas")
}

impl SelfService {
    pub(super) fn api(&self, resource: &ApiResource, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.context.client.clone(), namespace, resource)
    }

    /// Applies an object in a namespace of a tenant if it differs from the actual object. Returns the actual object.
    pub(super) async fn ensure_object(
        &self,
        resource: &ApiResource,
        desired: &Value,
    ) -> Result<DynamicObject, ReconcileFailure> {
        let text = |field: &str| desired["metadata"][field].as_str().unwrap_or_default();
        let (namespace, name) = (text("namespace"), text("name"));
        let api = self.api(resource, namespace);
        let describe = |verb: &str| format!("{verb} {} {namespace}/{name}", resource.kind);
        let found = with_timeout(api.get_opt(name)).await;
        let found = found.map_err(ReconcileFailure::with_request(describe("get")))?;
        if let Some(actual) = found {
            let value = serde_json::to_value(&actual).unwrap_or_default();
            // An object with the label of a tenant belongs to the reconciler of tenants.
            if actual.labels().contains_key(TENANT_LABEL) || !object_differs(desired, &value) {
                return Ok(actual);
            }
        }
        let params = PatchParams::apply(CONTROLLER_FIELD_MANAGER).force();
        let written = with_timeout(api.patch(name, &params, &Patch::Apply(desired))).await;
        let written = written.map_err(ReconcileFailure::with_request(describe("apply")))?;
        self.context.metrics.count_write(&resource.kind);
        Ok(written)
    }

    /// Returns true if an object exists.
    pub(super) async fn object_exists(
        &self,
        resource: &ApiResource,
        namespace: &str,
        name: &str,
    ) -> Result<bool, ReconcileFailure> {
        let found = with_timeout(self.api(resource, namespace).get_metadata_opt(name)).await;
        let request = format!("get {} {namespace}/{name}", resource.kind);
        found.map(|found| found.is_some()).map_err(ReconcileFailure::with_request(request))
    }

    /// Deletes an object. An object that does not exist is not an error.
    pub(super) async fn delete_object(
        &self,
        resource: &ApiResource,
        namespace: &str,
        name: &str,
    ) -> Result<(), ReconcileFailure> {
        let api = self.api(resource, namespace);
        match with_timeout(api.delete(name, &DeleteParams::default())).await {
            Ok(_) => Ok(()),
            Err(error) if error.status_code() == Some(404) => Ok(()),
            Err(error) => {
                let request = format!("delete {} {namespace}/{name}", resource.kind);
                Err(ReconcileFailure::with_request(request)(error))
            }
        }
    }
}
