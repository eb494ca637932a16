//! Grants that a quota has now: those in its status and in TenantClusters, without those that nothing uses any more.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use berth_api::names::{ACCESS_REVOKED_ANNOTATION, REQUEST_MISSING_ANNOTATION};
use berth_api::{TenantCluster, TenantGrant, TenantQuota, TenantRequest};
use berth_runtime::call::with_timeout;
use k8s_openapi::jiff::Timestamp;
use kube::{Api, ResourceExt as _};
use serde_json::json;

use super::deletion::{DeletionProgress, RETRY_DELAY, in_use_fault};
use super::service::SelfService;
use crate::run::clock::now_in_seconds;
use crate::run::reconcile::ReconcileFailure;
use crate::self_service::objects::{recorded_grant, request_uid};
use crate::self_service::orphans::{
    OrphanStep, attached_grant, deletion_delay, missing_message, orphan_step, replaced_message,
};
use crate::self_service::quarantine::{ClaimOwner, quarantined_grant};

/// Grants of a quota, and those whose requests do not exist.
pub(super) struct CurrentGrants {
    pub(super) grants: Vec<TenantGrant>,
    pub(super) orphans: Vec<Orphan>,
}

/// Grant whose request does not exist.
pub(super) struct Orphan {
    /// Description of the grant and of the progress.
    pub(super) message: String,
    /// Delay before the grant is observed again.
    pub(super) delay: Duration,
}

/// State of a grant.
enum GrantState {
    /// The request exists.
    Valid,
    /// The TenantCluster of the request exists, and the request does not: its finalizer was removed, or it is not restored yet.
    Orphaned(Box<TenantCluster>),
    /// The TenantCluster of the request exists, and its name belongs to a request with this other UID, for example because the
    /// request was restored from a backup.
    Replaced(String),
    /// Neither exists, or the name belongs to the TenantCluster of another user, so that nothing was created for the grant.
    Invalid,
}

impl SelfService {
    /// Returns the grants in the status of a quota, without those of which neither the request nor the tenant exists, and with
    /// those that only the TenantCluster records, because the status was lost, or because an administrator has attached the
    /// tenant to another request. Continues the deletion of the tenants whose requests do not exist.
    pub(super) async fn current_grants(
        &self,
        quota: &TenantQuota,
        requests: &[Arc<TenantRequest>],
    ) -> Result<CurrentGrants, ReconcileFailure> {
        let (mut grants, mut orphans) = (self.recorded_grants(quota, requests).await?, Vec::new());
        let recorded = grants.clone();
        for grant in quota.grants() {
            let is_recorded = |other: &TenantGrant| {
                (&other.namespace, &other.name, &other.tenant)
                    == (&grant.namespace, &grant.name, &grant.tenant)
            };
            if recorded.iter().any(is_recorded) {
                continue;
            }
            let quarantined = self.quarantined_grant(quota, grant);
            // The tenant and its request were deleted: nothing is read again until the quarantine has ended.
            if quarantined.as_ref() == Some(grant) {
                grants.push(grant.clone());
                continue;
            }
            let orphan = match self.grant_state(grant, requests).await? {
                GrantState::Valid => {
                    self.clear_orphan_marks(&grant.tenant).await?;
                    grants.push(grant.clone());
                    continue;
                }
                GrantState::Replaced(uid) => {
                    self.clear_orphan_marks(&grant.tenant).await?;
                    let message = replaced_message(grant, &uid);
                    Some(Orphan { message, delay: self.context.resync })
                }
                GrantState::Orphaned(tenant) => self.continue_orphan(grant, &tenant).await?,
                GrantState::Invalid => None,
            };
            if let Some(orphan) = orphan {
                orphans.push(orphan);
                grants.push(grant.clone());
                continue;
            }
            if let Some(quarantined) = quarantined {
                grants.push(quarantined);
                continue;
            }
            let quota = quota.name_any();
            tracing::info!(%quota, tenant = %grant.tenant, request = %grant.uid, "removed an orphaned grant");
        }
        Ok(CurrentGrants { grants, orphans })
    }

    /// Returns the grants of a quota that only TenantClusters record.
    async fn recorded_grants(
        &self,
        quota: &TenantQuota,
        requests: &[Arc<TenantRequest>],
    ) -> Result<Vec<TenantGrant>, ReconcileFailure> {
        let mut grants = Vec::new();
        for tenant in self.context.tenants.all() {
            let Some(record) = recorded_grant(&tenant) else { continue };
            let is_known = quota.grants().iter().any(|grant| grant.uid == record.grant.uid);
            if is_known || record.quota != quota.name_any() {
                continue;
            }
            // The store may have a TenantCluster that was deleted or attached a moment ago.
            let current = self.read_tenant(&record.grant.tenant).await?;
            let Some(record) = current.as_ref().and_then(recorded_grant) else { continue };
            let is_known = quota.grants().iter().any(|grant| grant.uid == record.grant.uid);
            if is_known {
                continue;
            }
            let (quota, grant) = (record.quota, record.grant);
            tracing::warn!(%quota, tenant = %grant.tenant, request = %grant.uid, "restored a grant from its TenantCluster");
            let mut requests = requests.iter();
            let request = requests.find(|request| request.uid().as_ref() == Some(&grant.uid));
            grants.push(match request.filter(|_| grant.generation == 0) {
                Some(request) => attached_grant(grant, request),
                None => grant,
            });
        }
        Ok(grants)
    }

    /// Continues the deletion of a tenant whose request does not exist: after a delay, with the steps of a request that is being
    /// deleted. Returns the progress; `None` if the tenant does not exist any more.
    async fn continue_orphan(
        &self,
        grant: &TenantGrant,
        orphan: &TenantCluster,
    ) -> Result<Option<Orphan>, ReconcileFailure> {
        let TenantGrant { namespace, name, tenant, uid, .. } = grant;
        let now = Timestamp::now();
        let required = deletion_delay(self.context.config().spec.self_service.as_ref());
        let end = match orphan_step(orphan, required, now) {
            OrphanStep::Record => {
                let annotations =
                    json!({ REQUEST_MISSING_ANNOTATION: now_in_seconds().0.to_string() });
                let metadata = json!({"uid": orphan.uid(), "annotations": annotations});
                self.patch_tenant(orphan, metadata).await?;
                now.checked_add(required).unwrap_or(Timestamp::MAX)
            }
            OrphanStep::WaitUntil(end) => end,
            OrphanStep::Delete(begin) => {
                let delay = self.deletion_delay(begin);
                let (fault, delay) = match self
                    .delete_tenant_of(uid, &BTreeSet::from([tenant.clone()]))
                    .await?
                {
                    DeletionProgress::InUse(tenant, names) => {
                        (in_use_fault(&tenant, &names), delay)
                    }
                    DeletionProgress::Revoking(fault) => (fault, RETRY_DELAY),
                    DeletionProgress::Waiting(fault) => (fault, delay),
                    DeletionProgress::Complete => {
                        self.remove_kubeconfig(namespace, tenant).await?;
                        tracing::info!(tenant, request = %uid, "deleted the tenant of a request that does not exist");
                        return Ok(None);
                    }
                };
                let message = format!(
                    "TenantRequest {namespace}/{name} with UID {uid} of tenant {tenant} does not exist, and the tenant is deleted: \
                     {}",
                    fault.message
                );
                return Ok(Some(Orphan { message, delay }));
            }
        };
        let left = Duration::try_from(end.duration_since(now)).unwrap_or_default();
        let delay = left.clamp(Duration::from_secs(1), self.context.resync.max(RETRY_DELAY));
        Ok(Some(Orphan { message: missing_message(grant, end), delay }))
    }

    /// Removes the records of a deletion from a tenant that was an orphan and is none any more.
    async fn clear_orphan_marks(&self, tenant: &str) -> Result<(), ReconcileFailure> {
        let Some(tenant) = self.context.tenants.get(tenant) else { return Ok(()) };
        // While the TenantCluster is being deleted, the record of the revoked permissions protects new objects.
        if tenant.metadata.deletion_timestamp.is_some()
            || !tenant.annotations().contains_key(REQUEST_MISSING_ANNOTATION)
        {
            return Ok(());
        }
        let annotations =
            json!({ REQUEST_MISSING_ANNOTATION: null, ACCESS_REVOKED_ANNOTATION: null });
        // The version refuses the patch if the deletion has begun since the store was updated.
        let metadata = json!({
            "uid": tenant.uid(), "resourceVersion": tenant.resource_version(), "annotations": annotations,
        });
        self.patch_tenant(&tenant, metadata).await
    }

    /// Returns a grant that counts only the network of a deleted tenant: see [`quarantined_grant`].
    pub(super) fn quarantined_grant(
        &self,
        quota: &TenantQuota,
        grant: &TenantGrant,
    ) -> Option<TenantGrant> {
        let current = self.context.tenants.get(&grant.tenant);
        let vlans = self.context.vlan_claims.all();
        let prefixes = self.context.prefix_claims.all();
        let vlans = vlans
            .iter()
            .map(|claim| ClaimOwner { tenant: &claim.spec.tenant, uid: &claim.spec.tenant_uid });
        let prefixes = prefixes
            .iter()
            .map(|claim| ClaimOwner { tenant: &claim.spec.tenant, uid: &claim.spec.tenant_uid });
        quarantined_grant(quota, grant, current.as_deref(), vlans.chain(prefixes))
    }

    async fn grant_state(
        &self,
        grant: &TenantGrant,
        requests: &[Arc<TenantRequest>],
    ) -> Result<GrantState, ReconcileFailure> {
        let is_stored = requests.iter().any(|one| one.uid().as_ref() == Some(&grant.uid));
        if is_stored && self.owns_tenant_or_none(grant) {
            return Ok(GrantState::Valid);
        }
        // The stores may be stale, for example after a change of the leader.
        let tenant = self.read_tenant(&grant.tenant).await?;
        if tenant.as_ref().is_some_and(|tenant| request_uid(tenant) != Some(grant.uid.as_str())) {
            return Ok(GrantState::Invalid);
        }
        let api: Api<TenantRequest> =
            Api::namespaced(self.context.client.clone(), &grant.namespace);
        let found = with_timeout(api.get_metadata_opt(&grant.name)).await;
        let request = format!("get TenantRequest {}/{}", grant.namespace, grant.name);
        let found = found.map_err(ReconcileFailure::with_request(request))?;
        let found_uid = found.map(|found| found.metadata.uid.unwrap_or_default());
        Ok(match (found_uid, tenant) {
            (Some(uid), _) if uid == grant.uid => GrantState::Valid,
            (_, None) => GrantState::Invalid,
            (Some(uid), Some(_)) => GrantState::Replaced(uid),
            (None, Some(tenant)) => GrantState::Orphaned(Box::new(tenant)),
        })
    }

    /// Returns false if the store has a TenantCluster with the name in a grant that was not created for its request.
    pub(super) fn owns_tenant_or_none(&self, grant: &TenantGrant) -> bool {
        let tenant = self.context.tenants.get(&grant.tenant);
        tenant.is_none_or(|tenant| request_uid(&tenant) == Some(grant.uid.as_str()))
    }
}
