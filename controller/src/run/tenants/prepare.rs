//! Step 1 of a reconcile of a tenant: ensures the finalizer, the namespace, and the controller's permission to read
//! Secrets in this namespace.

use berth_api::TenantCluster;
use berth_api::names::FINALIZER;
use kube::ResourceExt as _;
use kube::api::{Api, ApiResource, DynamicObject, Patch};
use serde_json::json;

use super::context::TenantContext;
use super::error::{Error, none_if_not_found, with_request};
use crate::managed_by::is_created_by_berth;
use crate::run::api_requests::{patch_params, post_params};
use crate::tenants::deletion::{NamespaceState, parse_lenient};
use crate::tenants::objects::csi_access::controller_role_binding;
use crate::tenants::objects::{ObjectKind, namespace_object};

impl TenantContext {
    /// Returns an untyped client for TenantClusters: typed clients fail if a response cannot be parsed, which must not
    /// prevent the deletion of a tenant.
    pub(super) fn tenants_api(&self) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), &ApiResource::erase::<TenantCluster>(&()))
    }

    /// Adds the finalizer to the tenant. This must be done before any object is created for the tenant.
    pub(super) async fn ensure_finalizer(
        &self,
        tenant: TenantCluster,
    ) -> Result<TenantCluster, Error> {
        if tenant.finalizers().iter().any(|one| one == FINALIZER) {
            return Ok(tenant);
        }
        let mut finalizers = tenant.finalizers().to_vec();
        finalizers.push(FINALIZER.to_owned());
        self.set_finalizers(&tenant, &finalizers).await
    }

    /// Sets the list of finalizers. Returns an error if another client has written the TenantCluster since it was read.
    pub(super) async fn set_finalizers(
        &self,
        tenant: &TenantCluster,
        finalizers: &[String],
    ) -> Result<TenantCluster, Error> {
        let name = tenant.name_any();
        let patch = json!({"metadata": {
            "uid": tenant.uid(), "resourceVersion": tenant.resource_version(), "finalizers": finalizers,
        }});
        let params = patch_params();
        let result = self.tenants_api().patch(&name, &params, &Patch::Merge(patch)).await;
        let what = format!("patch TenantCluster {name}");
        // If the tenant was deleted meanwhile, there is nothing to clean up, because no object was created for the
        // tenant yet.
        let patched = with_request(what, none_if_not_found(result))?;
        let patched = patched.and_then(|patched| serde_json::to_value(patched).ok());
        let patched = patched.as_ref().and_then(parse_lenient);
        patched.ok_or_else(|| Error::ChangedConcurrently(format!("TenantCluster {name}")))
    }

    /// Ensures the tenant's namespace, and the controller's RoleBinding in this namespace. Returns the state of the
    /// namespace.
    pub(super) async fn prepare_namespace(
        &self,
        tenant: &TenantCluster,
    ) -> Result<NamespaceState, Error> {
        let namespace = self.ensure_namespace(tenant).await?;
        if namespace != NamespaceState::Terminating {
            // The RoleBinding must be applied before any Secret in the namespace is read. A failure is ignored here:
            // step 6 applies the RoleBinding again, and reports a failure in the status.
            let binding = controller_role_binding(&tenant.name_any());
            drop(self.apply_object(binding, namespace == NamespaceState::Owned).await);
        }
        Ok(namespace)
    }

    /// Creates the tenant's namespace if it does not exist, and applies its labels. Returns the state of the namespace.
    async fn ensure_namespace(&self, tenant: &TenantCluster) -> Result<NamespaceState, Error> {
        let mut state = self.find_namespace(tenant).await?;
        if state == NamespaceState::Absent {
            let desired = namespace_object(tenant, true);
            let what = format!("create Namespace {}", desired.name());
            let api: Api<DynamicObject> =
                Api::all_with(self.client.clone(), &ObjectKind::Namespace.resource());
            let object = serde_json::from_value(desired.body).map_err(kube::Error::SerdeError);
            let object = with_request(what.clone(), object)?;
            // The request is a create, not an apply: an apply would adopt a namespace that a user creates at the same
            // moment.
            with_request(what, api.create(&post_params(), &object).await)?;
            state = NamespaceState::Owned;
        }
        if state != NamespaceState::Terminating {
            let desired = namespace_object(tenant, state == NamespaceState::Owned);
            if let Err(fault) = self.apply_object(desired, true).await {
                tracing::warn!(tenant = %tenant.name_any(), error = %fault, "failed to apply Namespace");
            }
        }
        Ok(state)
    }

    /// Returns the state of a tenant's namespace.
    pub(super) async fn find_namespace(
        &self,
        tenant: &TenantCluster,
    ) -> Result<NamespaceState, Error> {
        let name = TenantCluster::namespace_of(&tenant.name_any());
        let metadata = match self.cached_object(ObjectKind::Namespace, "", &name) {
            Some(cached) => Some(cached.metadata),
            None => {
                let api: Api<DynamicObject> =
                    Api::all_with(self.client.clone(), &ObjectKind::Namespace.resource());
                let read = none_if_not_found(api.get_metadata(&name).await);
                with_request(format!("get Namespace {name}"), read)?.map(|object| object.metadata)
            }
        };
        Ok(match metadata {
            None => NamespaceState::Absent,
            Some(meta) if !is_created_by_berth(&meta.labels.clone().unwrap_or_default()) => {
                NamespaceState::NotOwned
            }
            Some(meta) if meta.deletion_timestamp.is_some() => NamespaceState::Terminating,
            Some(_) => NamespaceState::Owned,
        })
    }
}
