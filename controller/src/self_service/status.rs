//! Statuses of TenantRequests and TenantQuotas.

use std::time::Duration;

use berth_api::names::condition::{GRANTED, KUBECONFIG_READY, READY, UP_TO_DATE};
use berth_api::{
    Condition, ConditionReason, IssuedKubeconfig, TenantGrant, TenantQuota, TenantQuotaStatus,
    TenantRequest, TenantRequestStatus, Time,
};
use kube::ResourceExt as _;

use super::assignment::parse_selector;
use super::limits::exceeded_limits;
use super::plan::sum;
use crate::profiles::{ConditionUpdate, new_condition};
use crate::tenants::fault::{Fault, join_first};

/// State of a request from which its status is computed.
#[derive(Clone, Debug)]
pub struct RequestState<'a> {
    /// Grant, and the name of its quota.
    pub grant: Option<(&'a str, &'a TenantGrant)>,
    /// Reason why the current spec is not granted.
    pub refusal: Option<Fault>,
    /// Result for the TenantCluster; a message if it is ready.
    pub tenant: Result<String, Fault>,
    /// Result for the kubeconfig.
    pub kubeconfig: Result<IssuedKubeconfig, Fault>,
    /// Kubeconfig that was issued before, which stays in the status while a new one cannot be issued.
    pub issued: Option<IssuedKubeconfig>,
    /// Reason that replaces all others while the request is being deleted.
    pub deletion: Option<Fault>,
}

/// Returns the desired status of a request, without the approval, which belongs to approvers.
#[must_use]
pub fn request_status(
    request: &TenantRequest,
    state: &RequestState<'_>,
    now: &Time,
) -> TenantRequestStatus {
    let before = request.status.as_ref().map(|status| status.conditions.as_slice());
    let before = before.unwrap_or_default();
    let generation = request.metadata.generation;
    let to_condition = |type_: &'static str, result: Result<(ConditionReason, String), Fault>| {
        let (status, reason, message) = match result {
            Ok((reason, message)) => ("True", reason, message),
            Err(Fault { reason, message }) => ("False", reason, message),
        };
        let update = ConditionUpdate { type_, status, reason, message };
        new_condition(&update, before, generation, now)
    };
    let granted = match (state.grant, &state.refusal) {
        (Some((quota, grant)), _) => {
            let message = format!("TenantQuota {quota} permits tenant {}", grant.tenant);
            Ok((ConditionReason::Granted, message))
        }
        (None, Some(fault)) => Err(fault.clone()),
        (None, None) => Err(pending()),
    };
    let up_to_date = match (state.grant, &state.refusal) {
        (_, Some(fault)) => Err(fault.clone()),
        (Some((_, grant)), None) => Ok((ConditionReason::Granted, granted_message(grant))),
        (None, None) => Err(pending()),
    };
    let tenant = state.tenant.clone().map(|message| (ConditionReason::Ready, message));
    let kubeconfig = state.kubeconfig.clone().map(|issued| {
        let message =
            format!("Secret {}, key {}, until {}", issued.secret, issued.key, issued.expires_at);
        (ConditionReason::KubeconfigIssued, message)
    });
    let ready = match &state.deletion {
        Some(fault) => Err(fault.clone()),
        None => granted
            .clone()
            .and_then(|_| up_to_date.clone())
            .and_then(|_| kubeconfig.clone())
            .and(tenant),
    };
    let conditions: Vec<Condition> = vec![
        to_condition(READY, ready),
        to_condition(GRANTED, granted),
        to_condition(UP_TO_DATE, up_to_date),
        to_condition(KUBECONFIG_READY, kubeconfig),
    ];
    TenantRequestStatus {
        observed_generation: generation,
        approval: None,
        quota: state.grant.map(|(quota, _)| quota.to_owned()),
        tenant: state.grant.map(|(_, grant)| grant.tenant.clone()),
        granted_generation: state.grant.map(|(_, grant)| grant.generation),
        granted: state.grant.map(|(_, grant)| grant.amounts),
        kubeconfig: state.kubeconfig.clone().ok().or_else(|| state.issued.clone()),
        conditions,
    }
}

fn granted_message(grant: &TenantGrant) -> String {
    let text = match grant.reduced_amounts {
        None => "the latest spec is granted",
        Some(_) => {
            "the latest spec is granted; the TenantQuota counts the amounts of an earlier spec until the machines and volumes of \
             the tenant fit the latest one"
        }
    };
    text.to_owned()
}

fn pending() -> Fault {
    Fault::new(ConditionReason::Pending, "the request has not been decided yet".to_owned())
}

/// Returns the reason why the current spec was refused before, or that it was not decided: it is reported until the next plan, so
/// that a new leader does not change the conditions.
#[must_use]
pub fn last_refusal(request: &TenantRequest) -> Fault {
    let mut conditions = request.status.iter().flat_map(|status| &status.conditions);
    let refused = conditions.find(|one| {
        one.type_ == UP_TO_DATE
            && one.status == "False"
            && one.observed_generation == request.metadata.generation
    });
    let reason = refused.and_then(|one| one.reason.parse().ok());
    match (refused, reason) {
        (Some(refused), Some(reason)) => Fault::new(reason, refused.message.clone()),
        _ => pending(),
    }
}

/// Returns the time since a condition of a request has its current status; zero if it has none.
#[must_use]
pub fn time_since_transition(request: &TenantRequest, type_: &str, now: &Time) -> Duration {
    let mut conditions = request.status.iter().flat_map(|status| &status.conditions);
    let since = conditions.find(|one| one.type_ == type_).map(|one| one.last_transition_time);
    let elapsed = since.map(|since| now.0.as_second().saturating_sub(since.0.as_second()));
    Duration::from_secs(elapsed.and_then(|elapsed| u64::try_from(elapsed).ok()).unwrap_or_default())
}

/// Returns true if the desired status differs from the observed one, apart from the approval.
#[must_use]
pub fn request_status_differs(request: &TenantRequest, desired: &TenantRequestStatus) -> bool {
    let mut actual = request.status.clone().unwrap_or_default();
    actual.approval = None;
    let sorted = |status: &TenantRequestStatus| {
        let mut conditions = status.conditions.clone();
        conditions.sort_by(|one, other| one.type_.cmp(&other.type_));
        TenantRequestStatus { conditions, ..status.clone() }
    };
    sorted(&actual) != sorted(desired)
}

/// Returns the desired status of a quota with these grants. `orphans` describes the grants whose requests do not exist.
#[must_use]
pub fn quota_status(
    quota: &TenantQuota,
    grants: Vec<TenantGrant>,
    orphans: &[String],
    now: &Time,
) -> TenantQuotaStatus {
    let used = sum(&grants);
    let exceeded = exceeded_limits(&quota.spec.limits, used);
    let selector = quota.spec.namespaces.selector.as_ref();
    let (status, reason, message) = if selector.is_some_and(|one| parse_selector(one).is_none()) {
        let message = "spec.namespaces.selector is not valid, and selects no namespace".to_owned();
        ("False", ConditionReason::InvalidSpec, message)
    } else if !orphans.is_empty() {
        let message = join_first(orphans, 4, "; ");
        ("False", ConditionReason::RequestMissing, message)
    } else if exceeded.is_empty() {
        let message = format!("{} requests are granted", grants.len());
        ("True", ConditionReason::Accepted, message)
    } else {
        let message = format!(
            "the grants exceed the limits, which were reduced; existing tenants stay: {}",
            join_first(&exceeded, 8, "; ")
        );
        ("False", ConditionReason::LimitsExceeded, message)
    };
    let before = quota.status.as_ref().map(|status| status.conditions.as_slice());
    let update = ConditionUpdate { type_: READY, status, reason, message };
    let generation = quota.metadata.generation;
    let ready = new_condition(&update, before.unwrap_or_default(), generation, now);
    TenantQuotaStatus {
        observed_generation: generation,
        used: Some(used),
        grants,
        conditions: vec![ready],
    }
}

/// Returns the reason why a tenant is not ready, from the condition Ready of its TenantCluster.
///
/// # Errors
/// Returns a fault with the message of the condition.
pub fn tenant_result(tenant: Option<&berth_api::TenantCluster>) -> Result<String, Fault> {
    let not_ready = |message: String| Fault::new(ConditionReason::TenantNotReady, message);
    let tenant =
        tenant.ok_or_else(|| not_ready("the TenantCluster does not exist yet".to_owned()))?;
    let mut conditions = tenant.status.iter().flat_map(|status| &status.conditions);
    let name = tenant.name_any();
    match conditions.find(|one| one.type_ == READY) {
        Some(ready) if ready.status == "True" => Ok(format!("TenantCluster {name} is ready")),
        Some(ready) => Err(not_ready(format!("TenantCluster {name}: {}", ready.message))),
        None => Err(not_ready(format!("TenantCluster {name} has no condition yet"))),
    }
}
