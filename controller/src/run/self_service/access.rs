//! Access of a requester to the namespace of the tenant: limits, permissions, shared instance types, and the kubeconfig.

use berth_api::names::TENANT_USER;
use berth_api::{ConditionReason, IssuedKubeconfig, TenantCluster, TenantGrant, TenantRequest};
use berth_runtime::call::with_timeout;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use serde_json::Value;

use super::facts::{INSTANCETYPE_API, spec_of};
use super::objects::{resource_quotas, role_bindings, service_accounts};
use super::service::SelfService;
use super::tenant::TenantNamespace;
use crate::api_resource::api_resource;
use crate::run::reconcile::ReconcileFailure;
use crate::self_service::flavor::built_in_size;
use crate::self_service::objects::{resource_quota, role_binding, service_account, shared_copy};
use crate::tenants::fault::Fault;

/// Maximum number of preferences that are copied from the shared namespace.
const MAX_PREFERENCES: u32 = 64;

impl SelfService {
    /// Ensures the requester's access to the tenant's namespace, and the kubeconfig. The ResourceQuota is applied before the
    /// permissions, so that it is in effect when the requester can create machines.
    pub(super) async fn ensure_access(
        &self,
        request: &TenantRequest,
        grant: &TenantGrant,
        token_seconds: u32,
    ) -> Result<Result<IssuedKubeconfig, Fault>, ReconcileFailure> {
        let tenant = grant.tenant.as_str();
        let namespace = TenantCluster::namespace_of(tenant);
        match self.find_namespace(tenant).await? {
            TenantNamespace::Owned => {}
            TenantNamespace::Absent | TenantNamespace::Terminating => {
                let message = format!("namespace {namespace} does not exist yet");
                return Ok(Err(Fault::new(ConditionReason::KubeconfigPending, message)));
            }
            TenantNamespace::NotOwned => {
                let message =
                    format!("namespace {namespace} was not created by Berth for this tenant");
                return Ok(Err(Fault::new(ConditionReason::NotOwned, message)));
            }
        }
        let classes = self.read_storage_classes().await?;
        self.ensure_object(&resource_quotas(), &resource_quota(grant, &classes)).await?;
        self.copy_shared(grant).await?;
        let account = self.ensure_object(&service_accounts(), &service_account(tenant)).await?;
        self.ensure_object(&role_bindings(), &role_binding(tenant)).await?;
        let account_uid = account.uid().unwrap_or_default();
        self.ensure_kubeconfig(request, tenant, &account_uid, token_seconds).await
    }

    /// Restores the permissions of the requester, who needs them to delete machines.
    pub(super) async fn restore_access(&self, tenant: &str) -> Result<(), ReconcileFailure> {
        self.ensure_object(&role_bindings(), &role_binding(tenant)).await.map(drop)
    }

    /// Deletes the permissions of the requester.
    pub(super) async fn revoke_access(&self, tenant: &str) -> Result<(), ReconcileFailure> {
        let namespace = TenantCluster::namespace_of(tenant);
        self.delete_object(&role_bindings(), &namespace, TENANT_USER).await
    }

    async fn read_storage_classes(&self) -> Result<Vec<String>, ReconcileFailure> {
        let api: Api<StorageClass> = Api::all(self.context.client.clone());
        let classes = with_timeout(api.list_metadata(&ListParams::default())).await;
        let request = "list StorageClasses";
        let classes = classes.map_err(ReconcileFailure::with_request(request))?;
        Ok(classes.items.iter().map(|one| one.name_any()).collect())
    }

    /// Copies the granted instance types and all preferences of the shared namespace to the tenant's namespace.
    async fn copy_shared(&self, grant: &TenantGrant) -> Result<(), ReconcileFailure> {
        let Some(shared) = self.shared_namespace() else { return Ok(()) };
        let kind = "VirtualMachineInstancetype";
        let flavors = grant.resources.machines.flavors.iter();
        for name in flavors.filter(|name| built_in_size(name).is_none()) {
            if let Some(flavor) = self.read_shared(kind, name).await? {
                self.ensure_copy(kind, grant, &shared, name, &spec_of(&flavor)).await?;
            }
        }
        let kind = "VirtualMachinePreference";
        let (group, version) = INSTANCETYPE_API;
        let resource = api_resource(group, version, kind, "virtualmachinepreferences");
        let params = ListParams::default().limit(MAX_PREFERENCES);
        let preferences = match with_timeout(self.api(&resource, &shared).list(&params)).await {
            Ok(preferences) => preferences.items,
            // The kind is not installed.
            Err(error) if error.status_code() == Some(404) => Vec::new(),
            Err(error) => {
                let request = format!("list {kind}s in {shared}");
                return Err(ReconcileFailure::with_request(request)(error));
            }
        };
        for preference in preferences {
            let name = preference.name_any();
            self.ensure_copy(kind, grant, &shared, &name, &spec_of(&preference)).await?;
        }
        Ok(())
    }

    async fn ensure_copy(
        &self,
        kind: &str,
        grant: &TenantGrant,
        shared: &str,
        name: &str,
        spec: &Value,
    ) -> Result<(), ReconcileFailure> {
        let plural = format!("{}s", kind.to_lowercase());
        let resource = api_resource(INSTANCETYPE_API.0, INSTANCETYPE_API.1, kind, &plural);
        let copy = shared_copy(kind, &grant.tenant, shared, name, spec);
        self.ensure_object(&resource, &copy).await.map(drop)
    }
}
