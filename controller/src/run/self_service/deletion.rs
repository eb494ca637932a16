//! Finalizes a request that is being deleted: takes the steps of [`crate::self_service::deletion`].

use std::collections::BTreeSet;
use std::time::Duration;

use berth_api::names::FINALIZER;
use berth_api::{ConditionReason, TenantCluster, TenantRequest};
use berth_runtime::call::with_timeout;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, Preconditions};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use super::service::SelfService;
use crate::api_resource::{api_resource, deployment_resource, machine_resource};
use crate::managed_by::is_created_by_berth;
use crate::run::api_requests::patch_params;
use crate::run::reconcile::ReconcileFailure;
use crate::self_service::deletion::{DeletionState, DeletionStep, TenantState, next_step};
use crate::self_service::objects::request_uid;
use crate::tenants::fault::Fault;

/// Delay before the next reconcile while a deletion waits.
const RETRY_DELAY: Duration = Duration::from_secs(10);
/// Maximum number of steps in one reconcile; a complete deletion has fewer steps.
const MAX_STEPS: usize = 6;
/// Label of volumes and images that CDI imports on a schedule. They are copies of images, not data of the tenant.
const IMPORT_CRON_LABEL: &str = "cdi.kubevirt.io/dataImportCron";

impl SelfService {
    /// Continues the deletion of a request. Returns the delay before the next reconcile.
    pub(super) async fn finalize(
        &self,
        request: &TenantRequest,
    ) -> Result<Duration, ReconcileFailure> {
        if !has_finalizer(request) {
            return Ok(self.context.resync);
        }
        for _ in 0..MAX_STEPS {
            let tenant = self.find_tenant(request).await?;
            let name = tenant.as_ref().map(|one| one.name_any()).unwrap_or_default();
            let namespace = TenantCluster::namespace_of(&name);
            let state = match &tenant {
                None => TenantState::Absent,
                Some(tenant) if tenant.metadata.deletion_timestamp.is_some() => {
                    TenantState::Deleting
                }
                Some(_) => TenantState::Exists,
            };
            let (mut in_use, mut has_access) = (Vec::new(), false);
            if state == TenantState::Exists {
                // The access is read before the list: without access, nothing is created after the list.
                has_access = self.has_access(&name).await?;
                in_use = self.list_in_use(&namespace).await?;
            }
            match next_step(DeletionState { tenant: state, in_use: &in_use, has_access }) {
                DeletionStep::WaitForUser(names) => {
                    self.ensure_bindings(&name).await?;
                    let message = format!(
                        "delete these objects in namespace {namespace} first, because a tenant in use is not deleted: {names}"
                    );
                    let fault = Fault::new(ConditionReason::MachinesRemain, message);
                    self.report_deletion(request, fault).await?;
                    return Ok(RETRY_DELAY);
                }
                DeletionStep::RevokeAccess => self.revoke_access(&name).await?,
                DeletionStep::DeleteTenant => {
                    if let Some(tenant) = &tenant {
                        self.delete_tenant(tenant).await?;
                    }
                }
                DeletionStep::WaitForTenant => {
                    let message = format!("TenantCluster {name} is being deleted");
                    let fault = Fault::new(ConditionReason::DeletingTenant, message);
                    self.report_deletion(request, fault).await?;
                    return Ok(RETRY_DELAY);
                }
                DeletionStep::Release => {
                    for tenant in self.issued_names(request) {
                        self.remove_kubeconfig(request, &tenant).await?;
                    }
                    self.release(request).await?;
                    self.remove_finalizer(request).await?;
                    return Ok(self.context.resync);
                }
            }
        }
        Ok(RETRY_DELAY)
    }

    /// Returns the names that the TenantCluster of a request may have: those of its grants, and those of its spec and status.
    /// Only API servers before 1.25 permit to change the name in the spec.
    fn tenant_names(&self, request: &TenantRequest) -> BTreeSet<String> {
        let uid = request.uid().unwrap_or_default();
        let grants = self.known_grants(&uid).into_iter().map(|grant| grant.tenant);
        let stored = self.context.tenants.all();
        let stored = stored.iter().filter(|tenant| request_uid(tenant) == Some(uid.as_str()));
        let in_status = request.status.as_ref().and_then(|status| status.tenant.clone());
        grants
            .chain(stored.map(|tenant| tenant.name_any()))
            .chain(in_status)
            .chain([request.tenant_name().to_owned()])
            .collect()
    }

    /// Returns the names of the tenants for which the request may have a kubeconfig, without those that another request of the
    /// namespace has.
    fn issued_names(&self, request: &TenantRequest) -> BTreeSet<String> {
        let uid = request.uid().unwrap_or_default();
        let grants = self.known_grants(&uid).into_iter().map(|grant| grant.tenant);
        let in_status = request.status.as_ref().and_then(|status| status.tenant.clone());
        let is_other = |name: &str| {
            let tenant = self.context.tenants.get(name);
            tenant.is_some_and(|tenant| request_uid(&tenant) != Some(uid.as_str()))
        };
        grants.chain(in_status).filter(|name| !is_other(name)).collect()
    }

    /// Returns the TenantCluster that was created for a request, from the API server.
    async fn find_tenant(
        &self,
        request: &TenantRequest,
    ) -> Result<Option<TenantCluster>, ReconcileFailure> {
        let uid = request.uid();
        for name in self.tenant_names(request) {
            let found = self.read_tenant(&name).await?;
            if let Some(tenant) = found.filter(|one| request_uid(one) == uid.as_deref()) {
                return Ok(Some(tenant));
            }
        }
        Ok(None)
    }

    /// Returns machines and volumes in a tenant's namespace, as `Kind name`.
    async fn list_in_use(&self, namespace: &str) -> Result<Vec<String>, ReconcileFailure> {
        let kinds = [
            deployment_resource(),
            machine_resource(),
            api_resource("kubevirt.io", "v1", "VirtualMachineInstance", "virtualmachineinstances"),
            api_resource("cdi.kubevirt.io", "v1beta1", "DataVolume", "datavolumes"),
            api_resource("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims"),
        ];
        let mut all = Vec::new();
        for resource in kinds {
            let api = self.api(&resource, namespace);
            let found = match with_timeout(api.list_metadata(&ListParams::default())).await {
                Ok(found) => found.items,
                // The kind is not installed.
                Err(error) if error.status_code() == Some(404) => continue,
                Err(error) => {
                    let request = format!("list {}s in {namespace}", resource.kind);
                    return Err(ReconcileFailure::with_request(request)(error));
                }
            };
            let is_volume =
                ["DataVolume", "PersistentVolumeClaim"].contains(&resource.kind.as_str());
            for object in found {
                let labels = object.metadata.labels.clone().unwrap_or_default();
                // Golden images are not data of the tenant. The claim of a DataVolume or of a machine has an owner, which
                // counts itself.
                let has_owner = !object.owner_references().is_empty();
                let is_image =
                    is_created_by_berth(&labels) || labels.contains_key(IMPORT_CRON_LABEL);
                if !is_volume || !(is_image || has_owner) {
                    all.push(format!("{} {}", resource.kind, object.name_any()));
                }
            }
        }
        Ok(all)
    }

    async fn delete_tenant(&self, tenant: &TenantCluster) -> Result<(), ReconcileFailure> {
        let name = tenant.name_any();
        let api: Api<TenantCluster> = Api::all(self.context.client.clone());
        let params = DeleteParams {
            preconditions: Some(Preconditions { uid: tenant.uid(), resource_version: None }),
            ..DeleteParams::default()
        };
        match with_timeout(api.delete(&name, &params)).await {
            Ok(_) => {
                tracing::info!(tenant = name, "deleted the TenantCluster of a request");
                Ok(())
            }
            Err(error) if error.status_code() == Some(404) => Ok(()),
            Err(error) => {
                let request = format!("delete TenantCluster {name}");
                Err(ReconcileFailure::with_request(request)(error))
            }
        }
    }

    /// Adds the finalizer, before any object is created for the request. Returns false if the request does not exist any more:
    /// nothing may be created for it, because nothing would delete it.
    pub(super) async fn ensure_finalizer(
        &self,
        request: &TenantRequest,
    ) -> Result<bool, ReconcileFailure> {
        if has_finalizer(request) {
            return Ok(true);
        }
        let mut finalizers = request.finalizers().to_vec();
        finalizers.push(FINALIZER.to_owned());
        self.set_finalizers(request, &finalizers).await
    }

    async fn remove_finalizer(&self, request: &TenantRequest) -> Result<(), ReconcileFailure> {
        let mut finalizers = request.finalizers().to_vec();
        finalizers.retain(|one| one != FINALIZER);
        self.set_finalizers(request, &finalizers).await.map(drop)
    }

    /// Sets the list of finalizers, if no other client has written the request since it was read. Returns false if the request
    /// does not exist.
    async fn set_finalizers(
        &self,
        request: &TenantRequest,
        finalizers: &[String],
    ) -> Result<bool, ReconcileFailure> {
        let (namespace, name) = (request.namespace().unwrap_or_default(), request.name_any());
        let resource = kube::api::ApiResource::erase::<TenantRequest>(&());
        let api: Api<DynamicObject> = self.api(&resource, &namespace);
        let patch = json!({"metadata": {
            "uid": request.uid(), "resourceVersion": request.resource_version(), "finalizers": finalizers,
        }});
        match with_timeout(api.patch(&name, &patch_params(), &Patch::Merge(patch))).await {
            Ok(_) => Ok(true),
            Err(error) if error.status_code() == Some(404) => Ok(false),
            Err(error) => {
                let request = format!("patch TenantRequest {namespace}/{name}");
                Err(ReconcileFailure::with_request(request)(error))
            }
        }
    }
}

/// Returns true if the controller has added its finalizer to a request. Only such a request is granted.
pub(super) fn has_finalizer(request: &TenantRequest) -> bool {
    request.finalizers().iter().any(|one| one == FINALIZER)
}
