//! Garbage collection of the VlanClaims that no tenant needs any more: a claim is put into quarantine, and deleted
//! after the quarantine.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::{InfraConfigSpec, VlanClaim};
use k8s_openapi::jiff::Timestamp;

use super::claims::quarantine_end;
use super::network_id::NetworkId;

/// A TenantCluster that exists. It may be in deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveTenant {
    /// Host network of the tenant, and the VLAN or VNI in its status; `None` if the status has neither.
    pub assigned_id: Option<(String, NetworkId)>,
}

/// Due action on one VlanClaim or PrefixClaim. Before the caller takes it, the caller must read the tenant from the API
/// server and compute the action again, because a store may lack the newest tenants and the newest states of tenants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimAction {
    /// Start the quarantine of the claim.
    Release,
    /// End the quarantine of the claim, because its tenant uses the claim. This occurs if the controller was stopped
    /// while the tenant took over the claim.
    Reclaim,
    /// Delete the claim, because its quarantine has ended.
    Delete,
}

/// Returns the actions that are due now, each with its claim, and the time at which the next action is due. The keys
/// of `live_tenants` are UIDs.
#[must_use]
pub fn due_actions<'a>(
    claims: &'a [Arc<VlanClaim>],
    live_tenants: &BTreeMap<String, LiveTenant>,
    config: &InfraConfigSpec,
    now: Timestamp,
) -> (Vec<(&'a VlanClaim, ClaimAction)>, Option<Timestamp>) {
    let mut claim_actions = Vec::new();
    let mut next: Option<Timestamp> = None;
    for claim in claims.iter().map(Arc::as_ref) {
        match next_action(claim, live_tenants.get(&claim.spec.tenant_uid), config) {
            Some((action, due)) if due <= now => claim_actions.push((claim, action)),
            Some((_, due)) => next = Some(next.map_or(due, |next| next.min(due))),
            None => {}
        }
    }
    (claim_actions, next)
}

/// Returns the next action on a claim, and the time at which it is due. `tenant` is the tenant with the UID in the
/// claim, or `None` if the tenant does not exist.
#[must_use]
pub fn next_action(
    claim: &VlanClaim,
    tenant: Option<&LiveTenant>,
    config: &InfraConfigSpec,
) -> Option<(ClaimAction, Timestamp)> {
    // A tenant without a VLAN or VNI in its status may need any of its claims.
    let is_needed = match tenant.map(|tenant| tenant.assigned_id.as_ref()) {
        None => false,
        Some(None) => return None,
        Some(Some((network, id))) => {
            *network == claim.spec.network && Some(*id) == NetworkId::from_claim(claim)
        }
    };
    claim_action(is_needed, quarantine_end(claim, config))
}

/// Returns the next action on a claim, and the time at which it is due. `quarantine_end` is the end of its quarantine;
/// `None` if it is not in quarantine.
#[must_use]
pub fn claim_action(
    is_needed: bool,
    quarantine_end: Option<Timestamp>,
) -> Option<(ClaimAction, Timestamp)> {
    match (quarantine_end, is_needed) {
        (None, true) => None,
        (None, false) => Some((ClaimAction::Release, Timestamp::MIN)),
        (Some(_), true) => Some((ClaimAction::Reclaim, Timestamp::MIN)),
        (Some(end), false) => Some((ClaimAction::Delete, end)),
    }
}
