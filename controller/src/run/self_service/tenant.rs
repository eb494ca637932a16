//! Creates and updates the TenantCluster of a grant.
//!
//! A TenantCluster is created with a POST, which the API server refuses if one of the same name exists, and is changed only with
//! the UID of the one that was created for the request. So the controller never takes over a TenantCluster of another user.

use berth_api::names::TENANT_LABEL;
use berth_api::{ConditionReason, TenantCluster, TenantGrant};
use berth_runtime::call::with_timeout;
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use serde_json::json;

use super::service::SelfService;
use crate::managed_by::is_created_by_berth;
use crate::run::api_requests::post_params;
use crate::run::apply::{ApplyTarget, FieldConflictPolicy};
use crate::run::reconcile::ReconcileFailure;
use crate::self_service::objects::{request_uid, tenant_cluster, tenant_cluster_differs};
use crate::self_service::plan::name_in_use;
use crate::tenants::fault::Fault;

impl SelfService {
    /// Reads the current version of a TenantCluster.
    pub(super) async fn read_tenant(
        &self,
        name: &str,
    ) -> Result<Option<TenantCluster>, ReconcileFailure> {
        let api: Api<TenantCluster> = Api::all(self.context.client.clone());
        let found = with_timeout(api.get_opt(name)).await;
        found.map_err(ReconcileFailure::with_request(format!("get TenantCluster {name}")))
    }

    /// Ensures that the TenantCluster of a grant exists with the granted spec. Returns it as it is known.
    pub(super) async fn ensure_tenant(
        &self,
        quota: &str,
        grant: &TenantGrant,
    ) -> Result<Result<TenantCluster, Fault>, ReconcileFailure> {
        let name = grant.tenant.as_str();
        let known = match self.context.tenants.get(name) {
            Some(stored) => Some(stored.as_ref().clone()),
            None => self.read_tenant(name).await?,
        };
        let desired = tenant_cluster(quota, grant);
        let tenant = match known {
            Some(tenant) => tenant,
            None => match self.create_tenant(grant, &desired).await? {
                Ok(created) => created,
                Err(fault) => return Ok(Err(fault)),
            },
        };
        if request_uid(&tenant) != Some(grant.uid.as_str()) {
            return Ok(Err(name_in_use(name, "another TenantCluster has it")));
        }
        if tenant.metadata.deletion_timestamp.is_some() {
            let message =
                format!("TenantCluster {name} is being deleted, and is created again afterwards");
            return Ok(Err(Fault::new(ConditionReason::TenantNotReady, message)));
        }
        if tenant_cluster_differs(&desired, &tenant) {
            // The UID is in the body, so the apply creates no other TenantCluster. The grant takes precedence over other
            // writers of the same fields: the quota counts the grant.
            let target = ApplyTarget::from_object(&tenant);
            let written =
                self.context.writer.apply(&target, desired, FieldConflictPolicy::Force).await;
            if let Err(error) = written {
                let fault = refused(&error, &format!("TenantCluster {name}"));
                let request = format!("apply TenantCluster {name}");
                return fault
                    .map(Err)
                    .ok_or_else(|| ReconcileFailure::with_request(request)(error));
            }
        }
        Ok(Ok(tenant))
    }

    /// Creates the TenantCluster with the fields that never change. An apply adds the others: a field that is created with a
    /// POST would stay when an apply no longer has it.
    async fn create_tenant(
        &self,
        grant: &TenantGrant,
        desired: &serde_json::Value,
    ) -> Result<Result<TenantCluster, Fault>, ReconcileFailure> {
        let name = grant.tenant.as_str();
        let namespace = TenantCluster::namespace_of(name);
        if self.find_namespace(name).await? == TenantNamespace::NotOwned {
            let message = format!(
                "namespace {namespace} exists and was not created by Berth for this tenant: create a TenantRequest with \
                 another tenantName"
            );
            return Ok(Err(Fault::new(ConditionReason::NotOwned, message)));
        }
        let mut spec = json!({});
        if let Some(network) = &grant.resources.network {
            spec["network"] = json!({"name": network.name});
        }
        let mut manifest = desired.clone();
        manifest["spec"] = spec;
        let request = format!("create TenantCluster {name}");
        let Ok(tenant) = serde_json::from_value::<TenantCluster>(manifest) else {
            return Err(ReconcileFailure::PrerequisiteNotMet(format!(
                "{request}: the grant is not valid"
            )));
        };
        let api: Api<TenantCluster> = Api::all(self.context.client.clone());
        match with_timeout(api.create(&post_params(), &tenant)).await {
            Ok(created) => {
                tracing::info!(tenant = name, namespace = %grant.namespace, request = %grant.name, "created the TenantCluster of a request");
                self.context.metrics.count_write("TenantCluster");
                Ok(Ok(created))
            }
            // Another client has created a TenantCluster of this name.
            Err(error) if error.status_code() == Some(409) => {
                Ok(Err(name_in_use(name, "another TenantCluster has it")))
            }
            Err(error) => match refused(&error, &format!("TenantCluster {name}")) {
                Some(fault) => Ok(Err(fault)),
                None => Err(ReconcileFailure::with_request(request)(error)),
            },
        }
    }

    /// Returns the state of a tenant's namespace.
    pub(super) async fn find_namespace(
        &self,
        tenant: &str,
    ) -> Result<TenantNamespace, ReconcileFailure> {
        let name = TenantCluster::namespace_of(tenant);
        let api: Api<Namespace> = Api::all(self.context.client.clone());
        let found = with_timeout(api.get_metadata_opt(&name)).await;
        let request = format!("get Namespace {name}");
        let found = found.map_err(ReconcileFailure::with_request(request))?;
        let Some(namespace) = found else { return Ok(TenantNamespace::Absent) };
        let labels = namespace.metadata.labels.clone().unwrap_or_default();
        if !is_created_by_berth(&labels)
            || labels.get(TENANT_LABEL).map(String::as_str) != Some(tenant)
        {
            return Ok(TenantNamespace::NotOwned);
        }
        if namespace.metadata.deletion_timestamp.is_some() {
            return Ok(TenantNamespace::Terminating);
        }
        Ok(TenantNamespace::Owned)
    }
}

/// State of a tenant's namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TenantNamespace {
    Absent,
    /// Berth created the namespace for the tenant.
    Owned,
    /// Berth created the namespace, which is being deleted.
    Terminating,
    /// Another user created the namespace.
    NotOwned,
}

/// Returns a fault if the API server refused a write in a way that a retry would not change. The message has no content of the
/// object.
pub(super) fn refused(error: &berth_runtime::call::CallError, object: &str) -> Option<Fault> {
    let status = error.status()?;
    matches!(status.code, 400 | 403 | 422).then(|| {
        let message = format!("the API server refuses {object}: {}", status.message);
        Fault::new(ConditionReason::ApplyFailed, message)
    })
}
