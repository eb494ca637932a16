//! Garbage collection of the VlanClaims that no tenant needs any more: a claim is put into quarantine, and deleted
//! after the quarantine.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::VlanClaim;
use k8s_openapi::jiff::Timestamp;

use super::network_id::NetworkId;

/// A TenantCluster that exists, possibly with a deletion timestamp.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveTenant {
    /// Name of the tenant's host network, and the VLAN or VNI in the tenant's status; `None` if the status contains
    /// neither.
    pub assigned_id: Option<(String, NetworkId)>,
}

/// Action that is due on a VlanClaim or PrefixClaim. Before it takes the action, the caller must read the tenant from
/// the API server and compute the action again, because a store may lack the newest tenants and the newest status of a
/// tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimAction {
    /// Start the quarantine of the claim.
    Release,
    /// End the quarantine of the claim, because its tenant uses the claim. This is necessary if the controller was
    /// stopped while the tenant was taking over the claim.
    Reclaim,
    /// Delete the claim, because its quarantine has ended.
    Delete,
}

/// Returns the actions that are due now, each with its claim, and the time at which the next action is due. The keys
/// of `live_tenants` are UIDs. `quarantine_end_of` returns the end of the quarantine of a released claim.
#[must_use]
pub fn due_actions<'a>(
    claims: &'a [Arc<VlanClaim>],
    live_tenants: &BTreeMap<String, LiveTenant>,
    quarantine_end_of: impl Fn(&VlanClaim) -> Option<Timestamp>,
    now: Timestamp,
) -> (Vec<(&'a VlanClaim, ClaimAction)>, Option<Timestamp>) {
    let mut claim_actions = Vec::new();
    let mut next: Option<Timestamp> = None;
    for claim in claims.iter().map(Arc::as_ref) {
        let tenant = live_tenants.get(&claim.spec.tenant_uid);
        match next_action(claim, tenant, quarantine_end_of(claim)) {
            Some((action, due)) if due <= now => claim_actions.push((claim, action)),
            Some((_, due)) => next = Some(next.map_or(due, |next| next.min(due))),
            None => {}
        }
    }
    (claim_actions, next)
}

/// Returns the next action on a claim, and the time at which it is due. `tenant` is the TenantCluster with the UID in
/// the claim; `None` if this TenantCluster does not exist.
#[must_use]
pub fn next_action(
    claim: &VlanClaim,
    tenant: Option<&LiveTenant>,
    quarantine_end: Option<Timestamp>,
) -> Option<(ClaimAction, Timestamp)> {
    // If the tenant's status contains no VLAN or VNI, the tenant may still need any of its claims.
    let is_needed = match tenant.map(|tenant| tenant.assigned_id.as_ref()) {
        None => false,
        Some(None) => return None,
        Some(Some((network, id))) => {
            *network == claim.spec.network && Some(*id) == NetworkId::from_claim(claim)
        }
    };
    claim_action(is_needed, quarantine_end)
}

/// Returns the next action on a claim whose quarantine ends at this time, and the time at which it is due.
#[must_use]
pub const fn claim_action(
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
