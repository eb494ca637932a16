//! Access of a requester to the namespace of the tenant: limits, permissions, shared instance types, and the kubeconfig.

use berth_api::names::{TENANT_USER, TENANT_USER_SECRETS, TENANT_USER_VOLUMES};
use berth_api::{
    ConditionReason, IssuedKubeconfig, TenantCluster, TenantGrant, TenantQuota, TenantRequest,
};
use berth_runtime::call::with_timeout;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{DynamicObject, ListParams};
use kube::{Api, ResourceExt as _};
use serde_json::Value;

use super::facts::{INSTANCETYPE_API, spec_of};
use super::objects::{resource_quotas, role_bindings, service_accounts};
use super::service::SelfService;
use super::tenant::TenantNamespace;
use crate::api_resource::api_resource;
use crate::run::reconcile::ReconcileFailure;
use crate::self_service::flavor::built_in_size;
use crate::self_service::objects::{
    RESOURCE_QUOTA, resource_quota, role_binding, service_account, shared_copy,
};
use crate::tenants::fault::Fault;
use crate::tenants::objects::csi_access::CSI_NAME;
use crate::tenants::objects::is_built_in_preference;

/// Maximum number of preferences that are copied from the shared namespace.
const MAX_PREFERENCES: u32 = 64;
/// RoleBindings of the requester, and of the tenant's CSI driver.
const ACCESS_BINDINGS: [&str; 4] =
    [TENANT_USER, TENANT_USER_VOLUMES, TENANT_USER_SECRETS, CSI_NAME];
/// ClusterRoles that requesters have only with the policy of the same name.
const RESTRICTED_ROLES: [&str; 2] = [TENANT_USER_VOLUMES, TENANT_USER_SECRETS];
/// Kinds of a policy that restricts requesters, and of its binding.
const POLICY_KINDS: [(&str, &str); 2] = [
    ("ValidatingAdmissionPolicy", "validatingadmissionpolicies"),
    ("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings"),
];

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
        self.ensure_bindings(tenant).await?;
        let account_uid = account.uid().unwrap_or_default();
        self.ensure_kubeconfig(request, tenant, &account_uid, token_seconds).await
    }

    /// Ensures the kubeconfig of a tenant whose grant is not known or cannot be applied, or which is being deleted, and restores
    /// the requester's permissions. A requester who never had permissions gets none.
    pub(super) async fn renew_kubeconfig(
        &self,
        request: &TenantRequest,
        tenant: &str,
    ) -> Result<Result<IssuedKubeconfig, Fault>, ReconcileFailure> {
        let namespace = TenantCluster::namespace_of(tenant);
        let has_limits = self.find_namespace(tenant).await? == TenantNamespace::Owned
            && self.object_exists(&resource_quotas(), &namespace, RESOURCE_QUOTA).await?;
        if !has_limits {
            let message = format!(
                "the requester has no permissions in namespace {namespace}: an administrator deletes the objects there"
            );
            return Ok(Err(Fault::new(ConditionReason::KubeconfigPending, message)));
        }
        let account = self.ensure_object(&service_accounts(), &service_account(tenant)).await?;
        self.ensure_bindings(tenant).await?;
        let seconds = self.token_seconds(request);
        self.ensure_kubeconfig(request, tenant, &account.uid().unwrap_or_default(), seconds).await
    }

    /// Returns the life of a token in seconds, as the quota of a request determines it.
    fn token_seconds(&self, request: &TenantRequest) -> u32 {
        let quota = request.status.as_ref().and_then(|status| status.quota.as_deref());
        let quota = quota.and_then(|name| self.context.tenant_quotas.get(name));
        quota.map_or(TenantQuota::DEFAULT_TOKEN_SECONDS, |quota| quota.token_seconds())
    }

    /// Ensures the permissions of the requester. An API server before Kubernetes 1.30 has no policies. CDI runs containers that a
    /// DataVolume names, and a deletion can return a Secret: without the policy, the requester does not have the permission.
    async fn ensure_bindings(&self, tenant: &str) -> Result<(), ReconcileFailure> {
        let bindings = role_bindings();
        let namespace = TenantCluster::namespace_of(tenant);
        self.ensure_object(&bindings, &role_binding(tenant, TENANT_USER)).await?;
        for role in RESTRICTED_ROLES {
            if self.has_policy(role).await? {
                self.ensure_object(&bindings, &role_binding(tenant, role)).await?;
            } else if self.object_exists(&bindings, &namespace, role).await? {
                self.delete_object(&bindings, &namespace, role).await?;
            }
        }
        Ok(())
    }

    /// Returns true if the requester or the tenant's CSI driver has permissions in the tenant's namespace.
    pub(super) async fn has_access(&self, tenant: &str) -> Result<bool, ReconcileFailure> {
        let namespace = TenantCluster::namespace_of(tenant);
        for name in ACCESS_BINDINGS {
            if self.object_exists(&role_bindings(), &namespace, name).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Deletes the permissions of the requester and of the tenant's CSI driver.
    pub(super) async fn revoke_access(&self, tenant: &str) -> Result<(), ReconcileFailure> {
        let namespace = TenantCluster::namespace_of(tenant);
        for name in ACCESS_BINDINGS {
            self.delete_object(&role_bindings(), &namespace, name).await?;
        }
        Ok(())
    }

    /// Returns true if the API server has a policy and its binding, which have the same name.
    async fn has_policy(&self, name: &str) -> Result<bool, ReconcileFailure> {
        for (kind, plural) in POLICY_KINDS {
            let resource = api_resource("admissionregistration.k8s.io", "v1", kind, plural);
            let api: Api<DynamicObject> = Api::all_with(self.context.client.clone(), &resource);
            match with_timeout(api.get_metadata(name)).await {
                Ok(_) => {}
                // The object or the kind does not exist.
                Err(error) if error.status_code() == Some(404) => return Ok(false),
                Err(error) => {
                    let request = format!("get {kind} {name}");
                    return Err(ReconcileFailure::with_request(request)(error));
                }
            }
        }
        Ok(true)
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
        // The reconciler of tenants creates the preference with this name.
        let is_shared = |one: &DynamicObject| !is_built_in_preference(&one.name_any());
        for preference in preferences.into_iter().filter(is_shared) {
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
