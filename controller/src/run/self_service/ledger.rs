//! Grants of a TenantQuota: reads them, plans them, and writes them.
//!
//! The status of the quota is read from the API server, not from a store, and is written with its resource version. So if two
//! controllers grant requests at the same time, the API server accepts the first write, and the other controller plans again.

use std::sync::Arc;

use berth_api::{TenantGrant, TenantQuota, TenantRequest};
use berth_runtime::call::with_timeout;
use kube::{Api, ResourceExt as _};

use super::deletion::has_finalizer;
use super::service::SelfService;
use crate::run::apply::ApplyTarget;
use crate::run::clock::now_in_seconds;
use crate::run::reconcile::ReconcileFailure;
use crate::self_service::assignment::assigned_quota;
use crate::self_service::objects::{recorded_grant, request_uid};
use crate::self_service::plan::{PlanFacts, plan_quota};
use crate::self_service::status::quota_status;
use crate::tenants::fault::Fault;

/// Decision about a request.
pub(super) struct Decision {
    /// Quota and grant of the request.
    pub(super) grant: Option<(Arc<TenantQuota>, TenantGrant)>,
    /// Reason why the current spec is not granted.
    pub(super) refusal: Option<Fault>,
}

impl SelfService {
    /// Reconciles a quota: plans the grants of all its requests, and writes its status.
    pub(super) async fn reconcile_quota(
        &self,
        quota: &TenantQuota,
    ) -> Result<(), ReconcileFailure> {
        let name = quota.name_any();
        let _ledger = self.ledger.lock().await;
        let quotas = self.read_quotas().await?;
        if let Some(quota) = quotas.iter().find(|one| one.name_any() == name) {
            self.plan_and_write(quota, &quotas, None).await?;
        }
        Ok(())
    }

    /// Decides about a request. If the store shows that its current spec is granted, sends no request to the API server.
    pub(super) async fn decide(
        &self,
        request: &Arc<TenantRequest>,
    ) -> Result<Decision, ReconcileFailure> {
        let uid = request.uid().unwrap_or_default();
        let is_current = |grant: &&TenantGrant| {
            grant.uid == uid && Some(grant.generation) == request.metadata.generation
        };
        for quota in self.context.tenant_quotas.all() {
            if let Some(grant) = quota.grants().iter().find(is_current) {
                let grant = grant.clone();
                if self.owns_tenant_or_none(&grant) {
                    return Ok(Decision { grant: Some((quota, grant)), refusal: None });
                }
            }
        }
        let _ledger = self.ledger.lock().await;
        let quotas = self.read_quotas().await?;
        let namespaces = self.read_namespaces(&quotas, std::slice::from_ref(request)).await?;
        match assigned_quota(request, &quotas, &namespaces) {
            Ok(quota) => self.plan_and_write(&quota, &quotas, Some(request)).await,
            Err(fault) => Ok(Decision { grant: None, refusal: Some(fault) }),
        }
    }

    /// Removes the grant of a request that is finalized.
    pub(super) async fn release(&self, request: &TenantRequest) -> Result<(), ReconcileFailure> {
        let uid = request.uid().unwrap_or_default();
        let _ledger = self.ledger.lock().await;
        for quota in self.read_quotas().await? {
            let mut grants = quota.grants().to_vec();
            grants.retain(|grant| grant.uid != uid);
            if grants.len() < quota.grants().len() {
                self.write_grants(&quota, grants).await?;
            }
        }
        Ok(())
    }

    /// Returns the grants of a request in all quotas of the store.
    pub(super) fn known_grants(&self, uid: &str) -> Vec<TenantGrant> {
        let quotas = self.context.tenant_quotas.all();
        let grants = quotas.iter().flat_map(|quota| quota.grants().to_vec());
        grants.filter(|grant| grant.uid == uid).collect()
    }

    /// Reads the current version of all quotas. For a quota that cannot be parsed, its last valid version has the last known
    /// grants, and the server refuses a write of it.
    async fn read_quotas(&self) -> Result<Vec<Arc<TenantQuota>>, ReconcileFailure> {
        let api: Api<TenantQuota> = Api::all(self.context.client.clone());
        let mut all = Vec::new();
        for known in self.context.tenant_quotas.all() {
            let name = known.name_any();
            match with_timeout(api.get_opt(&name)).await {
                Ok(Some(quota)) => all.push(Arc::new(quota)),
                Ok(None) => {}
                Err(error) if error.status().is_none() && self.is_malformed(&name) => {
                    all.push(known);
                }
                Err(error) => {
                    let request = format!("get TenantQuota {name}");
                    return Err(ReconcileFailure::with_request(request)(error));
                }
            }
        }
        Ok(all)
    }

    fn is_malformed(&self, name: &str) -> bool {
        let malformed = self.context.watch_health.malformed_objects();
        malformed.names::<TenantQuota>().contains(name)
    }

    /// Plans the grants of a quota, and writes them if they differ. Returns the decision about `request`.
    async fn plan_and_write(
        &self,
        quota: &Arc<TenantQuota>,
        quotas: &[Arc<TenantQuota>],
        request: Option<&Arc<TenantRequest>>,
    ) -> Result<Decision, ReconcileFailure> {
        let mut requests = self.context.tenant_requests.all();
        if let Some(request) = request {
            // The version in the store may be newer than the one of this reconcile; a later reconcile handles it.
            requests.retain(|one| one.uid() != request.uid());
            requests.push(Arc::clone(request));
        }
        let namespaces = self.read_namespaces(quotas, &requests).await?;
        requests.retain(|one| {
            let assigned = assigned_quota(one, quotas, &namespaces);
            assigned.is_ok_and(|assigned| assigned.uid() == quota.uid())
        });
        let grants = self.current_grants(quota, &requests).await?;
        // A request without the finalizer may be deleted before its grant is written, which nothing would release.
        requests.retain(|one| has_finalizer(one) || is_same(request, one));
        let sizes = self.read_sizes(quota, &requests).await?;
        let names_in_use = self.names_in_use(quotas, &requests);
        let config = self.context.config();
        let facts = PlanFacts {
            namespaces: &namespaces,
            sizes: &sizes,
            pools: &config.spec.address_pools,
            names_in_use: &names_in_use,
        };
        let plan = plan_quota(quota, grants, &requests, facts);
        self.write_grants(quota, plan.grants.clone()).await?;
        let grant = request.and_then(|request| plan.grant_of(request));
        let uid = request.and_then(|request| request.uid()).unwrap_or_default();
        Ok(Decision {
            grant: grant.map(|grant| (Arc::clone(quota), grant.clone())),
            refusal: plan.refusals.get(&uid).cloned(),
        })
    }

    /// Returns the grants in the status of a quota, without those of which neither the request nor the tenant exists, and with
    /// those that only the TenantCluster records, because the status was lost.
    async fn current_grants(
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
            // The store may have a TenantCluster that was deleted a moment ago.
            let current = self.read_tenant(&record.grant.tenant).await?;
            if let Some(record) = current.as_ref().and_then(recorded_grant) {
                tracing::warn!(quota = %record.quota, tenant = %record.grant.tenant, "restored a grant from its TenantCluster");
                grants.push(record.grant);
            }
        }
        for grant in quota.grants() {
            if self.is_grant_valid(grant, requests).await? {
                grants.push(grant.clone());
            } else {
                let quota = quota.name_any();
                tracing::info!(%quota, tenant = %grant.tenant, request = %grant.uid, "removed an orphaned grant");
            }
        }
        Ok(grants)
    }

    /// Returns true if the request or the tenant of a grant exists. A grant whose name belongs to the TenantCluster of another
    /// user is not valid: nothing was created for it.
    async fn is_grant_valid(
        &self,
        grant: &TenantGrant,
        requests: &[Arc<TenantRequest>],
    ) -> Result<bool, ReconcileFailure> {
        let is_stored = requests.iter().any(|one| one.uid().as_ref() == Some(&grant.uid));
        if is_stored && self.owns_tenant_or_none(grant) {
            return Ok(true);
        }
        // The stores may be stale, for example after a change of the leader.
        if let Some(tenant) = self.read_tenant(&grant.tenant).await? {
            return Ok(request_uid(&tenant) == Some(grant.uid.as_str()));
        }
        let api: Api<TenantRequest> =
            Api::namespaced(self.context.client.clone(), &grant.namespace);
        let found = with_timeout(api.get_metadata_opt(&grant.name)).await;
        let request = format!("get TenantRequest {}/{}", grant.namespace, grant.name);
        let found = found.map_err(ReconcileFailure::with_request(request))?;
        Ok(found.is_some_and(|found| found.metadata.uid.as_ref() == Some(&grant.uid)))
    }

    /// Returns false if the store has a TenantCluster with the name in a grant that was not created for its request.
    fn owns_tenant_or_none(&self, grant: &TenantGrant) -> bool {
        let tenant = self.context.tenants.get(&grant.tenant);
        tenant.is_none_or(|tenant| request_uid(&tenant) == Some(grant.uid.as_str()))
    }

    async fn write_grants(
        &self,
        quota: &TenantQuota,
        grants: Vec<TenantGrant>,
    ) -> Result<(), ReconcileFailure> {
        let desired = quota_status(quota, grants, &now_in_seconds());
        if quota.status.as_ref() == Some(&desired) {
            return Ok(());
        }
        let target = ApplyTarget::from_object(quota).with_version_of(quota);
        let body = serde_json::to_value(&desired).unwrap_or_default();
        let written = self.context.writer.apply_status(&target, body).await;
        let request = format!("apply status of TenantQuota {}", quota.name_any());
        written.map(drop).map_err(ReconcileFailure::with_request(request))
    }
}

/// Returns true if `request` is the request that is reconciled. The reconcile has added its finalizer.
fn is_same(reconciled: Option<&Arc<TenantRequest>>, request: &TenantRequest) -> bool {
    reconciled.is_some_and(|reconciled| reconciled.uid() == request.uid())
}
