//! Finalizes a request that is being deleted: takes the steps of [`crate::self_service::deletion`].

use std::collections::BTreeSet;
use std::time::Duration;

use berth_api::names::{ACCESS_REVOKED_ANNOTATION, FINALIZER};
use berth_api::{ConditionReason, TenantCluster, TenantRequest, Time};
use berth_runtime::call::with_timeout;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{DeleteParams, DynamicObject, Patch, Preconditions};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use super::failure::without_failure;
use super::issue::until_rotation;
use super::service::SelfService;
use super::tenant::TenantNamespace;
use crate::run::api_requests::patch_params;
use crate::run::clock::now_in_seconds;
use crate::run::reconcile::ReconcileFailure;
use crate::run::tenant_data::list_tenant_data;
use crate::self_service::deletion::{Access, DeletionState, DeletionStep, TenantState, next_step};
use crate::self_service::objects::request_uid;
use crate::tenants::fault::Fault;

/// Shortest delay before the next reconcile while a deletion waits.
pub(super) const RETRY_DELAY: Duration = Duration::from_secs(10);
/// Maximum number of steps in one reconcile; a complete deletion has fewer steps.
const MAX_STEPS: usize = 6;

/// Progress of the deletion of a requested tenant.
pub(super) enum DeletionProgress {
    /// Objects in the namespace of this tenant, which the second text names, prevent the deletion.
    InUse(String, String),
    /// The deletion continues in a few seconds.
    Revoking(Fault),
    /// The deletion waits, with this reason.
    Waiting(Fault),
    /// The TenantCluster does not exist any more.
    Complete,
}

impl SelfService {
    /// Continues the deletion of a request. Returns the delay before the next reconcile.
    pub(super) async fn finalize(
        &self,
        request: &TenantRequest,
    ) -> Result<Duration, ReconcileFailure> {
        if !has_finalizer(request) {
            return Ok(self.context.resync);
        }
        let uid = request.uid().unwrap_or_default();
        let issued = request.status.as_ref().and_then(|status| status.kubeconfig.clone());
        let issued = issued.ok_or_else(never_issued);
        let begin = request.metadata.deletion_timestamp.as_ref().map(|begin| begin.0);
        let retry_delay = self.deletion_delay(begin.unwrap_or_else(Timestamp::now));
        match self.delete_tenant_of(&uid, &self.tenant_names(request)).await? {
            DeletionProgress::InUse(tenant, names) => {
                // The requester needs permissions and a valid token to delete the objects.
                let (kubeconfig, failure) =
                    without_failure(self.renew_kubeconfig(request, &tenant).await);
                let delay = kubeconfig.as_ref().ok().map(until_rotation);
                let fault = in_use_fault(&tenant, &names);
                self.report_deletion(request, fault, kubeconfig).await?;
                let delay =
                    delay.map_or(retry_delay, |delay| delay.clamp(RETRY_DELAY, retry_delay));
                failure.map_or(Ok(delay), Err)
            }
            DeletionProgress::Revoking(fault) => {
                self.report_deletion(request, fault, issued).await?;
                Ok(RETRY_DELAY)
            }
            DeletionProgress::Waiting(fault) => {
                self.report_deletion(request, fault, issued).await?;
                Ok(retry_delay)
            }
            DeletionProgress::Complete => {
                let namespace = request.namespace().unwrap_or_default();
                for tenant in self.issued_names(request) {
                    self.remove_kubeconfig(&namespace, &tenant).await?;
                }
                self.release(request).await?;
                self.remove_finalizer(request).await?;
                Ok(self.context.resync)
            }
        }
    }

    /// Returns the delay before a deletion that began at `begin` is continued: each step lists the objects of the tenant, so a
    /// deletion that waits for a user is continued less and less often, up to the resync.
    pub(super) fn deletion_delay(&self, begin: Timestamp) -> Duration {
        growing_delay(Timestamp::now().duration_since(begin), self.context.resync)
    }

    /// Continues the deletion of the TenantCluster that was created for the request with a UID.
    pub(super) async fn delete_tenant_of(
        &self,
        uid: &str,
        names: &BTreeSet<String>,
    ) -> Result<DeletionProgress, ReconcileFailure> {
        for _ in 0..MAX_STEPS {
            let tenant = self.find_tenant(uid, names).await?;
            let state = match &tenant {
                None => TenantState::Absent,
                Some(tenant) if tenant.metadata.deletion_timestamp.is_some() => {
                    TenantState::Deleting
                }
                Some(_) => TenantState::Exists,
            };
            let name = tenant.as_ref().map(|one| one.name_any()).unwrap_or_default();
            let (mut in_use, mut access) = (Vec::new(), Access::Revoked);
            if let Some(tenant) = tenant.as_ref().filter(|_| state == TenantState::Exists)
                && self.find_namespace(&name).await? == TenantNamespace::Owned
            {
                // The permissions are read before the list: without permissions, nothing is created after the list. Berth
                // neither lists nor changes objects in a namespace of another user.
                access = Access::of_tenant(tenant, self.has_access(&name).await?, Timestamp::now());
                in_use = self.list_in_use(&name).await?;
            }
            match next_step(DeletionState { tenant: state, in_use: &in_use, access }) {
                DeletionStep::WaitForUser(names) => {
                    if let Some(tenant) = &tenant {
                        self.mark_revoked(tenant, None).await?;
                    }
                    return Ok(DeletionProgress::InUse(name, names));
                }
                DeletionStep::RevokeAccess => {
                    if let Some(tenant) = &tenant {
                        self.mark_revoked(tenant, Some(now_in_seconds())).await?;
                    }
                    self.revoke_access(&name).await?;
                }
                DeletionStep::WaitForRevocation => {
                    let message = format!(
                        "the permissions in namespace {} were deleted; TenantCluster {name} is deleted if no objects are \
                         created there in the next seconds",
                        TenantCluster::namespace_of(&name)
                    );
                    let fault = Fault::new(ConditionReason::DeletingTenant, message);
                    return Ok(DeletionProgress::Revoking(fault));
                }
                DeletionStep::DeleteTenant => {
                    let has_namespace = self.find_namespace(&name).await? == TenantNamespace::Owned;
                    let is_empty = !has_namespace || self.list_in_use(&name).await?.is_empty();
                    if let Some(tenant) = tenant.filter(|_| is_empty) {
                        self.delete_tenant(&tenant).await?;
                    }
                }
                DeletionStep::WaitForTenant => {
                    let message = format!(
                        "TenantCluster {name} is being deleted; its condition Ready has the reason if it stays"
                    );
                    let fault = Fault::new(ConditionReason::DeletingTenant, message);
                    return Ok(DeletionProgress::Waiting(fault));
                }
                DeletionStep::Release => return Ok(DeletionProgress::Complete),
            }
        }
        let message = "the deletion continues soon".to_owned();
        Ok(DeletionProgress::Revoking(Fault::new(ConditionReason::DeletingTenant, message)))
    }

    /// Returns the names that the TenantCluster of a request may have: those of its grants, and those of its spec and status.
    /// Only API servers before 1.25 permit to change the name in the spec.
    pub(super) fn tenant_names(&self, request: &TenantRequest) -> BTreeSet<String> {
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

    /// Returns true if the store has a TenantCluster that was created for a request.
    pub(super) fn has_tenant(&self, request: &TenantRequest) -> bool {
        let uid = request.metadata.uid.as_deref();
        uid.is_some() && self.context.tenants.all().iter().any(|one| request_uid(one) == uid)
    }

    /// Returns the names of the tenants for which the request may have a kubeconfig, also if its quota was deleted. The names that
    /// other requests have are left out.
    fn issued_names(&self, request: &TenantRequest) -> BTreeSet<String> {
        let uid = request.uid().unwrap_or_default();
        let quotas = self.context.tenant_quotas.all();
        let is_other = |name: &str| {
            let tenant = self.context.tenants.get(name);
            let mut grants = quotas.iter().flat_map(|quota| quota.grants());
            tenant.is_some_and(|tenant| request_uid(&tenant) != Some(uid.as_str()))
                || grants.any(|grant| grant.tenant == name && grant.uid != uid)
        };
        self.tenant_names(request).into_iter().filter(|name| !is_other(name)).collect()
    }

    /// Returns the TenantCluster that was created for the request with a UID, from the API server.
    pub(super) async fn find_tenant(
        &self,
        uid: &str,
        names: &BTreeSet<String>,
    ) -> Result<Option<TenantCluster>, ReconcileFailure> {
        for name in names {
            let found = self.read_tenant(name).await?;
            if let Some(tenant) = found.filter(|one| request_uid(one) == Some(uid)) {
                return Ok(Some(tenant));
            }
        }
        Ok(None)
    }

    /// Returns the objects in use in a tenant's namespace, as `Kind name`.
    async fn list_in_use(&self, tenant: &str) -> Result<Vec<String>, ReconcileFailure> {
        let listed =
            list_tenant_data(&self.context.client, &TenantCluster::namespace_of(tenant)).await;
        listed.map_err(|(request, error)| ReconcileFailure::RequestFailed(request, error))
    }

    /// Records in a TenantCluster that the permissions in its namespace are deleted, or removes the record. The reconciler of
    /// tenants creates no permissions of the CSI driver while the record exists.
    async fn mark_revoked(
        &self,
        tenant: &TenantCluster,
        since: Option<Time>,
    ) -> Result<(), ReconcileFailure> {
        if since.is_none() && !tenant.annotations().contains_key(ACCESS_REVOKED_ANNOTATION) {
            return Ok(());
        }
        let since = since.map(|since| since.0.to_string());
        let annotations = json!({ ACCESS_REVOKED_ANNOTATION: since });
        self.patch_tenant(tenant, json!({"uid": tenant.uid(), "annotations": annotations})).await
    }

    /// Patches the metadata of a TenantCluster. The patch must have its UID.
    pub(super) async fn patch_tenant(
        &self,
        tenant: &TenantCluster,
        metadata: Value,
    ) -> Result<(), ReconcileFailure> {
        let name = tenant.name_any();
        let patch = json!({ "metadata": metadata });
        let api: Api<TenantCluster> = Api::all(self.context.client.clone());
        let patched = with_timeout(api.patch(&name, &patch_params(), &Patch::Merge(patch))).await;
        let request = format!("patch TenantCluster {name}");
        patched.map(drop).map_err(ReconcileFailure::with_request(request))
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

/// Returns the fault of a tenant that is not deleted because it is in use.
pub(super) fn in_use_fault(tenant: &str, names: &str) -> Fault {
    let message = format!(
        "delete these objects in namespace {} first, with the kubeconfig or as an administrator, because a tenant in use is not \
         deleted: {names}",
        TenantCluster::namespace_of(tenant)
    );
    Fault::new(ConditionReason::MachinesRemain, message)
}

/// Returns the delay before a deletion is continued that has taken some time.
fn growing_delay(elapsed: SignedDuration, resync: Duration) -> Duration {
    let elapsed = Duration::try_from(elapsed).unwrap_or_default();
    elapsed.min(resync).max(RETRY_DELAY)
}

fn never_issued() -> Fault {
    Fault::new(ConditionReason::KubeconfigPending, "no kubeconfig was issued".to_owned())
}

/// Returns true if the controller has added its finalizer to a request. Only such a request is granted.
pub(super) fn has_finalizer(request: &TenantRequest) -> bool {
    request.finalizers().iter().any(|one| one == FINALIZER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blocked_deletion_is_continued_less_and_less_often() {
        let resync = Duration::from_secs(600);
        for (elapsed, seconds) in [(-5, 10), (0, 10), (9, 10), (60, 60), (3600, 600)] {
            let delay = growing_delay(SignedDuration::from_secs(elapsed), resync);
            assert_eq!(delay, Duration::from_secs(seconds), "{elapsed}");
        }
        // A short resync is no reason to list more often.
        let short = growing_delay(SignedDuration::from_secs(60), Duration::from_secs(1));
        assert_eq!(short, RETRY_DELAY);
    }
}
