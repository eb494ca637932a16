//! State of the reconcilers of TenantQuotas and TenantRequests.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use berth_api::{TenantApproval, TenantQuota, TenantRequest};
use futures::channel::mpsc::UnboundedSender;
use kube::ResourceExt as _;
use kube::runtime::reflector::ObjectRef;

use super::fitting::Reductions;
use crate::run::context::Context;
use crate::self_service::plan::QuotaPlan;
use crate::tenants::fault::Fault;

/// State of the reconcilers.
pub(super) struct SelfService {
    pub(super) context: Arc<Context>,
    /// Held while grants are planned and written: in this process, no plan starts from grants that another plan is about to
    /// change. Between processes, the resource version of the quota is the lock.
    pub(super) ledger: tokio::sync::Mutex<()>,
    /// Last plan of each quota. Reconciles of requests read it, so that no request causes a plan of its own. A new leader plans
    /// each quota once.
    plans: Mutex<BTreeMap<String, LastPlan>>,
    pub(super) reductions: Reductions,
    requests: UnboundedSender<ObjectRef<TenantRequest>>,
    quotas: UnboundedSender<ObjectRef<TenantQuota>>,
}

/// Last plan of a quota.
struct LastPlan {
    at: Instant,
    /// Number of plans with the same decisions in sequence.
    repetitions: u32,
    /// Decisions by the UID of the request.
    decisions: BTreeMap<String, Planned>,
    /// Descriptions of the grants whose requests do not exist.
    orphans: Vec<String>,
}

/// Decision of a plan, and the facts of the request on which it depends.
#[derive(Clone, PartialEq, Eq)]
struct Planned {
    generation: Option<i64>,
    approval: Option<TenantApproval>,
    refusal: Option<Fault>,
}

/// Decision of the last plan about a request.
pub(super) enum PlannedDecision {
    /// There is no plan of the current spec and approval.
    NotPlanned,
    /// The grant was written, and the store does not have it yet.
    Granted,
    Refused(Fault),
}

impl SelfService {
    pub(super) fn new(
        context: Arc<Context>,
        requests: UnboundedSender<ObjectRef<TenantRequest>>,
        quotas: UnboundedSender<ObjectRef<TenantQuota>>,
    ) -> Self {
        let (ledger, plans) = (tokio::sync::Mutex::default(), Mutex::default());
        Self { context, ledger, plans, reductions: Reductions::default(), requests, quotas }
    }

    /// Triggers a reconcile of a request.
    pub(super) fn trigger_request(&self, reference: ObjectRef<TenantRequest>) {
        self.requests.unbounded_send(reference).unwrap_or_default();
    }

    /// Triggers a plan of a quota.
    pub(super) fn trigger_quota(&self, reference: ObjectRef<TenantQuota>) {
        self.quotas.unbounded_send(reference).unwrap_or_default();
    }

    /// Returns the decision of the last plan about the current spec and approval of a request.
    pub(super) fn planned(&self, quota: &str, request: &TenantRequest) -> PlannedDecision {
        let plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let uid = request.uid().unwrap_or_default();
        let planned = plans.get(quota).and_then(|plan| plan.decisions.get(&uid));
        let is_current = |planned: &&Planned| {
            planned.generation == request.metadata.generation
                && planned.approval.as_ref() == request.current_approval()
        };
        match planned.filter(is_current).map(|planned| planned.refusal.clone()) {
            None => PlannedDecision::NotPlanned,
            Some(None) => PlannedDecision::Granted,
            Some(Some(fault)) => PlannedDecision::Refused(fault),
        }
    }

    /// Returns the time of the last plan of a quota.
    pub(super) fn last_plan(&self, quota: &str) -> Option<Instant> {
        let plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        plans.get(quota).map(|plan| plan.at)
    }

    /// Returns the descriptions of the grants whose requests did not exist at the last plan of a quota.
    pub(super) fn last_orphans(&self, quota: &str) -> Vec<String> {
        let plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        plans.get(quota).map(|plan| plan.orphans.clone()).unwrap_or_default()
    }

    /// Stores a plan, and triggers the requests that are refused for another reason than before. Granted requests are triggered
    /// when the store has their grants. Returns the number of plans with the same decisions in sequence.
    pub(super) fn record_plan(
        &self,
        quota: &str,
        plan: &QuotaPlan,
        requests: &[Arc<TenantRequest>],
        orphans: Vec<String>,
    ) -> u32 {
        let decision = |request: &Arc<TenantRequest>| {
            let uid = request.uid()?;
            let planned = Planned {
                generation: request.metadata.generation,
                approval: request.current_approval().cloned(),
                refusal: plan.refusals.get(&uid).cloned(),
            };
            Some((uid, planned))
        };
        let decisions: BTreeMap<String, Planned> = requests.iter().filter_map(decision).collect();
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let last = plans.get(quota);
        let before = last.map(|last| &last.decisions);
        let repetitions = match last {
            Some(last) if last.decisions == decisions => last.repetitions.saturating_add(1),
            _ => 0,
        };
        for request in requests {
            let uid = request.uid().unwrap_or_default();
            let now = decisions.get(&uid);
            let is_refused = now.is_some_and(|planned| planned.refusal.is_some());
            if is_refused && before.and_then(|before| before.get(&uid)) != now {
                self.trigger_request(ObjectRef::from_obj(request.as_ref()));
            }
        }
        let is_known = |orphan: &&String| last.is_some_and(|last| last.orphans.contains(orphan));
        for progress in orphans.iter().filter(|orphan| !is_known(orphan)) {
            tracing::warn!(quota, progress, "the request of a tenant does not exist");
        }
        let at = Instant::now();
        plans.insert(quota.to_owned(), LastPlan { at, repetitions, decisions, orphans });
        repetitions
    }

    /// Returns the quotas that have granted the request with a UID, or have planned it.
    pub(super) fn quotas_of(&self, uid: &str) -> Vec<Arc<TenantQuota>> {
        let plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let is_planned = |quota: &Arc<TenantQuota>| {
            plans.get(&quota.name_any()).is_some_and(|plan| plan.decisions.contains_key(uid))
        };
        let has_granted =
            |quota: &Arc<TenantQuota>| quota.grants().iter().any(|grant| grant.uid == uid);
        let all = self.context.tenant_quotas.all();
        all.into_iter().filter(|quota| has_granted(quota) || is_planned(quota)).collect()
    }
}
