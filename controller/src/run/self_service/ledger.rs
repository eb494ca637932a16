//! Grants of a TenantQuota: reads them, plans them, and writes them. Only the reconcile of a quota plans: reconciles of requests read
//! the result, so that the number of requests does not determine the number of plans.
//!
//! The status of the quota is read from the API server, not from a store, and is written with its resource version. So if two
//! controllers grant requests at the same time, the API server accepts the first write, and the other controller plans again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use berth_api::{ConditionReason, TenantGrant, TenantQuota, TenantRequest};
use berth_runtime::call::with_timeout;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt as _};

use super::current_grants::CurrentGrants;
use super::deletion::has_finalizer;
use super::failure::without_failure;
use super::service::{PlannedDecision, SelfService};
use crate::run::apply::ApplyTarget;
use crate::run::clock::now_in_seconds;
use crate::run::reconcile::ReconcileFailure;
use crate::self_service::assignment::{NamespaceLabels, assigned_quota};
use crate::self_service::plan::{PlanFacts, QuotaPlan, plan_quota};
use crate::self_service::status::{last_refusal, quota_status};
use crate::tenants::fault::Fault;

/// Minimum time between two plans of a quota, so that a user who writes requests does not occupy the controller.
const MIN_PLAN_INTERVAL: Duration = Duration::from_secs(1);
/// Delay before the next plan if a fact may change without an event: a namespace may get a label, an instance type may be
/// created, and a quarantine may end. It doubles with each plan with the same decisions, up to the resync.
const REPLAN_DELAY: Duration = Duration::from_secs(30);
/// Delay before the first comparison of a reduced grant with the tenant's machines. It doubles as [`REPLAN_DELAY`] does.
const REDUCTION_DELAY: Duration = Duration::from_secs(10);
/// Delay between the two comparisons that find that a tenant fits its reduced grant. With jitter, it is longer than a call.
const FITTING_DELAY: Duration = Duration::from_secs(30);

/// Decision about a request.
pub(super) struct Decision {
    /// Quota and grant of the request.
    pub(super) grant: Option<(Arc<TenantQuota>, TenantGrant)>,
    /// Reason why the current spec is not granted.
    pub(super) refusal: Option<Fault>,
}

impl SelfService {
    /// Reconciles a quota: plans the grants of all its requests, and writes its status. Only this function plans. Returns the
    /// delay before the next plan.
    pub(super) async fn reconcile_quota(
        &self,
        quota: &TenantQuota,
    ) -> Result<Duration, ReconcileFailure> {
        let name = quota.name_any();
        let elapsed = self.last_plan(&name).map(|last| last.elapsed());
        if let Some(elapsed) = elapsed.filter(|elapsed| *elapsed < MIN_PLAN_INTERVAL) {
            return Ok(MIN_PLAN_INTERVAL.saturating_sub(elapsed));
        }
        let _ledger = self.ledger.lock().await;
        let quotas = self.read_quotas().await?;
        match quotas.iter().find(|one| one.name_any() == name) {
            Some(quota) => self.plan_and_write(quota, &quotas).await,
            None => Ok(self.context.resync),
        }
    }

    /// Returns the decision about a request, from the stores and the last plan of its quota. If there is no plan of the current
    /// spec and approval, triggers one, which triggers the request.
    pub(super) async fn decide(
        &self,
        request: &Arc<TenantRequest>,
    ) -> Result<Decision, ReconcileFailure> {
        let uid = request.uid().unwrap_or_default();
        let quotas = self.context.tenant_quotas.all();
        let granted = quotas.iter().find_map(|quota| {
            let grant = quota.grants().iter().find(|grant| grant.uid == uid)?;
            Some((Arc::clone(quota), grant.clone()))
        });
        let has_grant = granted.is_some();
        let grant = granted.filter(|(_, grant)| self.owns_tenant_or_none(grant));
        let is_current = |(_, grant): &(Arc<TenantQuota>, TenantGrant)| {
            Some(grant.generation) == request.metadata.generation
        };
        if grant.as_ref().is_some_and(is_current) {
            return Ok(Decision { grant, refusal: None });
        }
        let namespaces = if has_grant {
            NamespaceLabels::new()
        } else {
            self.read_namespaces(&quotas, std::slice::from_ref(request)).await?
        };
        let quota = match assigned_quota(request, &quotas, &namespaces) {
            Ok(quota) => quota,
            Err(fault) => return Ok(Decision { grant, refusal: Some(fault) }),
        };
        let refusal = match self.planned(&quota.name_any(), request) {
            PlannedDecision::Refused(fault) => fault,
            PlannedDecision::Granted => last_refusal(request),
            PlannedDecision::NotPlanned => {
                self.trigger_quota(ObjectRef::from_obj(quota.as_ref()));
                last_refusal(request)
            }
        };
        Ok(Decision { grant, refusal: Some(refusal) })
    }

    /// Removes the grant of a request that is finalized.
    pub(super) async fn release(&self, request: &TenantRequest) -> Result<(), ReconcileFailure> {
        let uid = request.uid().unwrap_or_default();
        // A request that was never granted needs no lock. If the store does not have its grant yet, the next plan removes the
        // grant, because neither the request nor a tenant exists.
        if self.known_grants(&uid).is_empty() {
            return Ok(());
        }
        let _ledger = self.ledger.lock().await;
        for quota in self.read_quotas().await? {
            if !quota.grants().iter().any(|grant| grant.uid == uid) {
                continue;
            }
            let (own, mut grants): (Vec<_>, Vec<_>) =
                quota.grants().iter().cloned().partition(|grant| grant.uid == uid);
            grants.extend(own.iter().filter_map(|grant| self.quarantined_grant(&quota, grant)));
            let orphans = self.last_orphans(&quota.name_any());
            self.write_grants(&quota, grants, &orphans).await?;
        }
        Ok(())
    }

    /// Returns the grants of a request in all quotas of the store.
    pub(super) fn known_grants(&self, uid: &str) -> Vec<TenantGrant> {
        let quotas = self.context.tenant_quotas.all();
        let grants = quotas.iter().flat_map(|quota| quota.grants());
        grants.filter(|grant| grant.uid == uid).cloned().collect()
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

    /// Plans the grants of a quota, and writes them if they differ. Returns the delay before the next plan.
    async fn plan_and_write(
        &self,
        quota: &Arc<TenantQuota>,
        quotas: &[Arc<TenantQuota>],
    ) -> Result<Duration, ReconcileFailure> {
        let mut requests = self.context.tenant_requests.all();
        let namespaces = self.read_namespaces(quotas, &requests).await?;
        requests.retain(|one| {
            let assigned = assigned_quota(one, quotas, &namespaces);
            assigned.is_ok_and(|assigned| assigned.uid() == quota.uid())
        });
        let CurrentGrants { grants, orphans } = self.current_grants(quota, &requests).await?;
        let sizes = self.read_sizes(quota, &requests).await?;
        let names_in_use = self.names_in_use(quotas, &requests);
        let settled = self.settled_grants(&grants).await;
        let config = self.context.config();
        let facts = PlanFacts {
            namespaces: &namespaces,
            sizes: &sizes,
            pools: &config.spec.address_pools,
            names_in_use: &names_in_use,
            settled: &settled,
        };
        let earlier: BTreeSet<String> = grants.iter().map(|grant| grant.uid.clone()).collect();
        let mut plan = plan_quota(quota, grants, &requests, facts);
        let is_complete = self.ensure_finalizers(&earlier, &mut plan, &mut requests).await;
        let messages: Vec<String> = orphans.iter().map(|orphan| orphan.message.clone()).collect();
        self.write_grants(quota, plan.grants.clone(), &messages).await?;
        let repetitions = self.record_plan(&quota.name_any(), &plan, &requests, messages);
        if !is_complete {
            return Ok(MIN_PLAN_INTERVAL);
        }
        let delay = self.replan_delay(&plan, repetitions);
        Ok(orphans.iter().map(|orphan| orphan.delay).fold(delay, Duration::min))
    }

    /// Returns the delay before the next plan of a quota, of which `repetitions` had the same decisions.
    fn replan_delay(&self, plan: &QuotaPlan, repetitions: u32) -> Duration {
        // Approvals and changes of the quota trigger a plan.
        let waits_for_event = |fault: &Fault| {
            matches!(
                fault.reason,
                ConditionReason::WaitingForApproval | ConditionReason::ApprovalDenied
            )
        };
        let has_reductions = plan.grants.iter().any(|grant| grant.reduced_amounts.is_some());
        let delay = match has_reductions {
            true if self.reductions.is_any_fitting(&plan.grants) => return FITTING_DELAY,
            true => REDUCTION_DELAY,
            false if plan.refusals.values().all(waits_for_event) => return self.context.resync,
            false => REPLAN_DELAY,
        };
        let delay = delay.saturating_mul(2_u32.saturating_pow(repetitions));
        delay.min(self.context.resync)
    }

    /// Ensures the finalizers of granted requests: a request without it may be deleted before its grant is written, which nothing
    /// would release. A request that another client has written or deleted at the same time is removed from the plan, and one whose
    /// finalizer cannot be written is refused; but not those of `earlier` grants, whose tenants exist. Returns true if no request
    /// was removed.
    async fn ensure_finalizers(
        &self,
        earlier: &BTreeSet<String>,
        plan: &mut QuotaPlan,
        requests: &mut Vec<Arc<TenantRequest>>,
    ) -> bool {
        let (mut changed, mut refused) = (BTreeSet::new(), BTreeMap::new());
        for request in requests.iter().filter(|one| plan.grant_of(one).is_some()) {
            if request.metadata.deletion_timestamp.is_some() || has_finalizer(request) {
                continue;
            }
            let uid = request.uid().unwrap_or_default();
            let refusal = finalizer_refusal(self.ensure_finalizer(request).await);
            if earlier.contains(&uid) {
                continue;
            }
            match refusal {
                None => {}
                Some(FinalizerRefusal::Changed) => {
                    changed.insert(uid);
                }
                Some(FinalizerRefusal::Failed(fault)) => {
                    tracing::debug!(request = %uid, error = %fault, "failed to add the finalizer of a request");
                    refused.insert(uid, fault);
                }
            }
        }
        let is_changed = |uid: Option<&String>| uid.is_some_and(|uid| changed.contains(uid));
        plan.grants.retain(|one| !changed.contains(&one.uid) && !refused.contains_key(&one.uid));
        plan.refusals.extend(refused);
        requests.retain(|request| !is_changed(request.metadata.uid.as_ref()));
        changed.is_empty()
    }

    async fn write_grants(
        &self,
        quota: &TenantQuota,
        grants: Vec<TenantGrant>,
        orphans: &[String],
    ) -> Result<(), ReconcileFailure> {
        let desired = quota_status(quota, grants, orphans, &now_in_seconds());
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

/// Reason why a request has no finalizer.
#[derive(Debug, PartialEq, Eq)]
enum FinalizerRefusal {
    /// Another client has written or deleted the request since it was read. The store soon has its current version.
    Changed,
    /// The API server refuses the finalizer, or does not answer.
    Failed(Fault),
}

/// Returns the reason why the finalizer was not written; `None` if the request has it. A write returns false if the request does
/// not exist.
fn finalizer_refusal(written: Result<bool, ReconcileFailure>) -> Option<FinalizerRefusal> {
    match written {
        Ok(true) => None,
        Ok(false) => Some(FinalizerRefusal::Changed),
        Err(ReconcileFailure::RequestFailed(_, error)) if error.status_code() == Some(409) => {
            Some(FinalizerRefusal::Changed)
        }
        Err(failure) => {
            let (result, _) = without_failure::<()>(Err(failure));
            result.err().map(FinalizerRefusal::Failed)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_conflict_is_planned_again_at_once() {
        let failed = |code: u16| {
            let status = kube::core::Status { code, ..kube::core::Status::failure("no", "No") };
            let error = kube::Error::Api(Box::new(status)).into();
            finalizer_refusal(Err(ReconcileFailure::RequestFailed("patch".to_owned(), error)))
        };
        assert_eq!(finalizer_refusal(Ok(true)), None);
        assert_eq!(finalizer_refusal(Ok(false)), Some(FinalizerRefusal::Changed));
        assert_eq!(failed(409), Some(FinalizerRefusal::Changed));
        for code in [403, 422, 500] {
            let refusal = failed(code);
            assert!(matches!(refusal, Some(FinalizerRefusal::Failed(_))), "{code}: {refusal:?}");
        }
    }
}
