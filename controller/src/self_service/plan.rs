//! Plans the grants of one TenantQuota.
//!
//! The grants are the list in the status of the quota. A request that is not granted yet, or whose spec has changed, is
//! decided in the order of creation, so that of several requests for the last resources the oldest is granted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::{
    ApprovalDecision, ApprovalMode, ConditionReason, PrefixPool, QuotaAmounts, TenantGrant,
    TenantQuota, TenantRequest,
};
use kube::ResourceExt as _;

use super::assignment::{NamespaceLabels, selects};
use super::demand::{FlavorSizes, demand};
use super::limits::{check_amounts, check_values};
use crate::tenants::fault::Fault;

/// Maximum number of requests of a namespace that are decided and not granted. Without a limit, a user could create so many
/// requests that their decisions delay those of all others.
pub const MAX_UNDECIDED: usize = 32;

/// Facts on which the grants of a quota depend, in addition to the quota and its requests.
#[derive(Clone, Copy, Debug)]
pub struct PlanFacts<'a> {
    pub namespaces: &'a NamespaceLabels,
    pub sizes: &'a FlavorSizes,
    /// Pools of the InfraConfig.
    pub pools: &'a [PrefixPool],
    /// UIDs of the requests whose tenant's name is in use, and the reason.
    pub names_in_use: &'a BTreeMap<String, Fault>,
    /// UIDs of the requests whose machines and volumes fit their reduced grants ([`super::usage`]).
    pub settled: &'a BTreeSet<String>,
}

/// Grants of a quota, and the reasons why specs of requests are not granted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuotaPlan {
    /// All grants, those of the quota first, then new ones in the order of the decisions.
    pub grants: Vec<TenantGrant>,
    /// Reasons why the current spec of a request is not granted, by the UID of the request.
    pub refusals: BTreeMap<String, Fault>,
}

/// Plans the grants of a quota. `requests` are those that are assigned to the quota; one that is being deleted keeps its
/// grant, and gets no new one.
#[must_use]
pub fn plan_quota(
    quota: &TenantQuota,
    grants: Vec<TenantGrant>,
    requests: &[Arc<TenantRequest>],
    facts: PlanFacts<'_>,
) -> QuotaPlan {
    let mut plan = QuotaPlan { grants, refusals: BTreeMap::new() };
    for grant in plan.grants.iter_mut().filter(|grant| facts.settled.contains(&grant.uid)) {
        if let Some(amounts) = grant.reduced_amounts.take() {
            grant.amounts = amounts;
        }
    }
    let mut pending: Vec<&Arc<TenantRequest>> = requests
        .iter()
        .filter(|request| request.metadata.deletion_timestamp.is_none())
        .filter(|request| !plan.has_granted_current_spec(request))
        .collect();
    pending.sort_by_key(|request| (request.creation_timestamp(), request.uid()));
    let mut undecided: BTreeMap<String, usize> = BTreeMap::new();
    for request in pending {
        let others = undecided.entry(request.namespace().unwrap_or_default()).or_default();
        let decision = if *others < MAX_UNDECIDED {
            decide(quota, &plan.grants, request, facts)
        } else {
            Err(too_many_requests())
        };
        *others += usize::from(decision.is_err());
        match decision {
            Ok(grant) => match plan.grants.iter_mut().find(|one| one.uid == grant.uid) {
                Some(known) => *known = grant,
                None => plan.grants.push(grant),
            },
            Err(fault) => {
                plan.refusals.insert(request.uid().unwrap_or_default(), fault);
            }
        }
    }
    plan
}

impl QuotaPlan {
    /// Returns the grant of a request.
    #[must_use]
    pub fn grant_of(&self, request: &TenantRequest) -> Option<&TenantGrant> {
        let uid = request.uid()?;
        self.grants.iter().find(|one| one.uid == uid)
    }

    fn has_granted_current_spec(&self, request: &TenantRequest) -> bool {
        self.grant_of(request)
            .is_some_and(|grant| Some(grant.generation) == request.metadata.generation)
    }
}

/// Returns the sum of grants.
#[must_use]
pub fn sum<'g>(grants: impl IntoIterator<Item = &'g TenantGrant>) -> QuotaAmounts {
    let amounts = grants.into_iter().map(|grant| grant.amounts);
    amounts.fold(QuotaAmounts::default(), QuotaAmounts::saturating_add)
}

/// Returns the grant of the current spec of a request, or the reason why it is refused. Faults of the request itself are
/// reported first, so that no approver decides about a request that cannot be granted.
fn decide(
    quota: &TenantQuota,
    grants: &[TenantGrant],
    request: &TenantRequest,
    facts: PlanFacts<'_>,
) -> Result<TenantGrant, Fault> {
    let uid = request.uid().unwrap_or_default();
    let namespace = request.namespace().unwrap_or_default();
    let granted = grants.iter().find(|one| one.uid == uid);
    let tenant = request.tenant_name();
    let resources = request.spec.resources();
    if !selects(quota, &namespace, facts.namespaces) {
        let message = format!(
            "TenantQuota {} does not select namespace {namespace} any more",
            quota.name_any()
        );
        return Err(Fault::new(ConditionReason::QuotaNotFound, message));
    }
    if let Some(granted) = granted {
        check_immutable(granted, request)?;
    }
    check_name(tenant)?;
    let limits = &quota.spec.limits;
    check_values(limits, facts.pools, &resources)?;
    let amounts = demand(&resources, facts.sizes)?;
    let is_taken = |grant: &TenantGrant| grant.tenant == tenant && grant.uid != uid;
    if let Some(fault) = facts.names_in_use.get(&uid).filter(|_| granted.is_none()) {
        return Err(fault.clone());
    }
    if grants.iter().any(is_taken) {
        return Err(name_in_use(tenant, "another TenantRequest has it"));
    }
    check_approval(quota, request)?;
    let others = sum(grants.iter().filter(|one| one.uid != uid));
    // The machines and volumes of an earlier grant may exist: otherwise a user could create them, reduce the request, and use
    // the same resources in another tenant.
    let before = granted.map(|grant| grant.amounts).unwrap_or_default();
    let counted = amounts.larger_of_each(before);
    check_amounts(limits, others, before, counted)?;
    Ok(TenantGrant {
        uid,
        namespace,
        name: request.name_any(),
        tenant: tenant.to_owned(),
        generation: request.metadata.generation.unwrap_or_default(),
        resources,
        amounts: counted,
        reduced_amounts: (counted != amounts).then_some(amounts),
    })
}

fn too_many_requests() -> Fault {
    let message = format!(
        "the namespace has {MAX_UNDECIDED} older TenantRequests that are not granted: delete some of them"
    );
    Fault::new(ConditionReason::TooManyRequests, message)
}

/// Returns the fault of a request whose tenant's name is in use.
#[must_use]
pub fn name_in_use(tenant: &str, problem: &str) -> Fault {
    let message = format!(
        "the name {tenant} is in use: {problem}; create a TenantRequest with another tenantName"
    );
    Fault::new(ConditionReason::TenantNameInUse, message)
}

/// Checks the name of a tenant. API servers before 1.25 do not enforce the rule of TenantClusters.
fn check_name(tenant: &str) -> Result<(), Fault> {
    let is_valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_name = (1..=55).contains(&tenant.len())
        && tenant.chars().all(is_valid)
        && !tenant.starts_with('-')
        && !tenant.ends_with('-');
    if is_name {
        return Ok(());
    }
    let message = format!(
        "tenantName: `{}` is not a DNS label of at most 55 characters",
        berth_api::excerpt(tenant)
    );
    Err(Fault::new(ConditionReason::InvalidSpec, message))
}

/// Checks that the fields that cannot be changed are those of the grant. API servers before 1.25 do not enforce the rules of
/// the CRD.
fn check_immutable(granted: &TenantGrant, request: &TenantRequest) -> Result<(), Fault> {
    let network = |resources: &berth_api::TenantResources| {
        resources.network.as_ref().map(|network| network.name.clone())
    };
    let pools = |resources: &berth_api::TenantResources| {
        let pool = |prefix: &Option<berth_api::RequestedPrefix>| {
            prefix.as_ref().map(|prefix| prefix.pool.clone())
        };
        resources.network.as_ref().map(|network| (pool(&network.ipv4), pool(&network.ipv6)))
    };
    let field = if granted.tenant != request.tenant_name() {
        "tenantName"
    } else if network(&granted.resources) != network(&request.spec.resources()) {
        "network.name"
    } else if pools(&granted.resources) != pools(&request.spec.resources()) {
        // Each change would occupy a prefix of another pool, and the old prefix stays in quarantine.
        "network.ipv4.pool or network.ipv6.pool"
    } else {
        return Ok(());
    };
    let message = format!("{field} cannot be changed: create another TenantRequest");
    Err(Fault::new(ConditionReason::InvalidSpec, message))
}

fn check_approval(quota: &TenantQuota, request: &TenantRequest) -> Result<(), Fault> {
    let approval = request.current_approval();
    match approval.map(|approval| approval.decision) {
        Some(ApprovalDecision::Approved) => Ok(()),
        Some(ApprovalDecision::Denied) => {
            let note = approval.and_then(|approval| approval.message.as_deref());
            let message = format!("denied: {}", note.unwrap_or("no reason is given"));
            Err(Fault::new(ConditionReason::ApprovalDenied, message))
        }
        None if quota.spec.approval == ApprovalMode::Automatic => Ok(()),
        None => {
            let message = format!(
                "an approver of TenantQuota {} has not approved generation {}",
                quota.name_any(),
                request.metadata.generation.unwrap_or_default()
            );
            Err(Fault::new(ConditionReason::WaitingForApproval, message))
        }
    }
}
