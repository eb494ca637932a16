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
    /// Name of the TenantCluster.
    pub name: String,
    /// Host network of the tenant, and the VLAN or VNI in its status; `None` if the status has neither.
    pub assigned_id: Option<(String, NetworkId)>,
}

/// Due action on one VlanClaim.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ClaimAction<'a> {
    /// Start the quarantine of the claim. Before that, the caller must read the tenant from the API server, because a
    /// store may lack the newest tenants.
    Release(&'a VlanClaim),
    /// End the quarantine of the claim, because its tenant uses the claim. This occurs if the controller was stopped
    /// while the tenant took over the claim.
    Reclaim(&'a VlanClaim),
    /// Delete the claim, because its quarantine has ended.
    Delete(&'a VlanClaim),
}

/// Returns the actions that are due now, and the time at which the next action is due.
#[must_use]
pub fn due_actions<'a>(
    claims: &'a [Arc<VlanClaim>],
    live_tenants: &BTreeMap<String, LiveTenant>,
    config: &InfraConfigSpec,
    now: Timestamp,
) -> (Vec<ClaimAction<'a>>, Option<Timestamp>) {
    let mut claim_actions = Vec::new();
    let mut next: Option<Timestamp> = None;
    for claim in claims.iter().map(Arc::as_ref) {
        let id = NetworkId::from_claim(claim);
        // A tenant without a VLAN or VNI in its status may need any of its claims.
        let needed = live_tenants.get(&claim.spec.tenant_uid).map(|tenant| {
            tenant
                .assigned_id
                .as_ref()
                .map(|(network, assigned)| *network == claim.spec.network && Some(*assigned) == id)
        });
        match (quarantine_end(claim, config), needed) {
            (None, None | Some(Some(false))) => claim_actions.push(ClaimAction::Release(claim)),
            (Some(_), Some(Some(true))) => claim_actions.push(ClaimAction::Reclaim(claim)),
            (Some(end), None | Some(Some(false))) if end <= now => {
                claim_actions.push(ClaimAction::Delete(claim));
            }
            (Some(end), None | Some(Some(false))) => {
                next = Some(next.map_or(end, |next| next.min(end)));
            }
            (None, Some(Some(true))) | (_, Some(None)) => {}
        }
    }
    (claim_actions, next)
}
