//! Grants that a quota has now: those in its status and in TenantClusters, without those that nothing uses any more.

use std::collections::BTreeSet;
use std::sync::Arc;

use berth_api::{TenantGrant, TenantQuota, TenantRequest};
use berth_runtime::call::with_timeout;
use kube::{Api, ResourceExt as _};

use super::deletion::{DeletionProgress, in_use_fault};
use super::service::SelfService;
use crate::run::reconcile::ReconcileFailure;
use crate::self_service::objects::{recorded_grant, request_uid};
use crate::self_service::quarantine::{ClaimOwner, quarantined_grant};

/// Grants of a quota, and descriptions of those whose requests do not exist.
pub(super) struct CurrentGrants {
    pub(super) grants: Vec<TenantGrant>,
    pub(super) orphans: Vec<String>,
}

/// State of a grant.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GrantState {
    /// The request exists.
    Valid,
    /// The TenantCluster of the request exists, and the request does not: its finalizer was removed.
    Orphaned,
    /// Neither exists, or the name belongs to the TenantCluster of another user, so that nothing was created for the grant.
    Invalid,
}

impl SelfService {
    /// Returns the grants in the status of a quota, without those of which neither the request nor the tenant exists, and with
    /// those that only the TenantCluster records, because the status was lost. Continues the deletion of the tenants whose
    /// requests do not exist.
    pub(super) async fn current_grants(
        &self,
        quota: &TenantQuota,
        requests: &[Arc<TenantRequest>],
    ) -> Result<CurrentGrants, ReconcileFailure> {
        let (mut grants, mut orphans) = (Vec::new(), Vec::new());
        for tenant in self.context.tenants.all() {
            let Some(record) = recorded_grant(&tenant) else { continue };
            let is_known = quota.grants().iter().any(|grant| grant.uid == record.grant.uid);
            if is_known || record.quota != quota.name_any() {
                continue;
            }
            // The store may have a TenantCluster that was deleted a moment ago.
            let current = self.read_tenant(&record.grant.tenant).await?;
            if let Some(record) = current.as_ref().and_then(recorded_grant) {
                tracing::warn!(quota = %record.quota, tenant = %record.grant.tenant, "restored a grant from its TenantCluster");
                grants.push(record.grant);
            }
        }
        for grant in quota.grants() {
            let quarantined = self.quarantined_grant(quota, grant);
            // The tenant and its request were deleted: nothing is read again until the quarantine has ended.
            if quarantined.as_ref() == Some(grant) {
                grants.push(grant.clone());
                continue;
            }
            match self.grant_state(grant, requests).await? {
                GrantState::Valid => {
                    grants.push(grant.clone());
                    continue;
                }
                GrantState::Orphaned => {
                    if let Some(progress) = self.delete_orphan(grant).await? {
                        orphans.push(progress);
                        grants.push(grant.clone());
                        continue;
                    }
                }
                GrantState::Invalid => {}
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

    /// Continues the deletion of a tenant whose request does not exist, with the steps of a request that is being deleted. Returns
    /// the progress; `None` if the tenant does not exist any more.
    async fn delete_orphan(&self, grant: &TenantGrant) -> Result<Option<String>, ReconcileFailure> {
        let TenantGrant { namespace, name, tenant, uid, .. } = grant;
        let progress = match self.delete_tenant_of(uid, &BTreeSet::from([tenant.clone()])).await? {
            DeletionProgress::InUse(tenant, names) => in_use_fault(&tenant, &names),
            DeletionProgress::Waiting(fault) => fault,
            DeletionProgress::Complete => {
                self.remove_kubeconfig(namespace, tenant).await?;
                tracing::info!(tenant, request = %uid, "deleted the tenant of a request that does not exist");
                return Ok(None);
            }
        };
        tracing::warn!(tenant, request = %uid, progress = %progress.message, "the request of a tenant does not exist");
        Ok(Some(format!(
            "TenantRequest {namespace}/{name} of tenant {tenant} does not exist, and its tenant is deleted: {}",
            progress.message
        )))
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
        let owns_tenant =
            tenant.as_ref().map(|tenant| request_uid(tenant) == Some(grant.uid.as_str()));
        if owns_tenant == Some(false) {
            return Ok(GrantState::Invalid);
        }
        let api: Api<TenantRequest> =
            Api::namespaced(self.context.client.clone(), &grant.namespace);
        let found = with_timeout(api.get_metadata_opt(&grant.name)).await;
        let request = format!("get TenantRequest {}/{}", grant.namespace, grant.name);
        let found = found.map_err(ReconcileFailure::with_request(request))?;
        let exists = found.is_some_and(|found| found.metadata.uid.as_ref() == Some(&grant.uid));
        Ok(match (exists, owns_tenant) {
            (true, _) => GrantState::Valid,
            (false, Some(true)) => GrantState::Orphaned,
            (false, _) => GrantState::Invalid,
        })
    }

    /// Returns false if the store has a TenantCluster with the name in a grant that was not created for its request.
    pub(super) fn owns_tenant_or_none(&self, grant: &TenantGrant) -> bool {
        let tenant = self.context.tenants.get(&grant.tenant);
        tenant.is_none_or(|tenant| request_uid(&tenant) == Some(grant.uid.as_str()))
    }
}
