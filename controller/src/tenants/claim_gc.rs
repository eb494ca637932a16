//! Garbage collection of claims whose tenant no longer needs them: quarantine, then deletion.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::{InfraConfigSpec, VlanClaim};
use k8s_openapi::jiff::Timestamp;

use super::claims::quarantine_ends;
use super::ids::NetworkId;

/// A TenantCluster that exists; it may be in deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveTenant {
    /// Name of the TenantCluster.
    pub name: String,
    /// Host network of the tenant, and the VLAN or VNI in its status.
    pub has: Option<(String, NetworkId)>,
}

/// Action on one claim.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ClaimAction<'a> {
    /// Start the quarantine of the claim. The caller first reads the tenant from the API server, because a store
    /// may lack the newest tenants.
    Release(&'a VlanClaim),
    /// End the quarantine of the claim, because its tenant uses the claim: the controller stopped during a
    /// takeover.
    Reclaim(&'a VlanClaim),
    /// Delete the claim, because its quarantine has ended.
    Delete(&'a VlanClaim),
}

/// Returns the actions that are due, and the time of the next action.
#[must_use]
pub fn actions<'a>(
    claims: &'a [Arc<VlanClaim>],
    alive: &BTreeMap<String, LiveTenant>,
    config: &InfraConfigSpec,
    now: Timestamp,
) -> (Vec<ClaimAction<'a>>, Option<Timestamp>) {
    let mut todo = Vec::new();
    let mut next: Option<Timestamp> = None;
    for claim in claims.iter().map(Arc::as_ref) {
        let id = NetworkId::from_claim(claim);
        // A tenant without a VLAN or VNI in its status may need any of its claims.
        let needed = alive.get(&claim.spec.tenant_uid).map(|tenant| {
            tenant
                .has
                .as_ref()
                .map(|(network, has)| *network == claim.spec.network && Some(*has) == id)
        });
        match (quarantine_ends(claim, config), needed) {
            (None, None | Some(Some(false))) => todo.push(ClaimAction::Release(claim)),
            (Some(_), Some(Some(true))) => todo.push(ClaimAction::Reclaim(claim)),
            (Some(end), None | Some(Some(false))) if end <= now => {
                todo.push(ClaimAction::Delete(claim));
            }
            (Some(end), None | Some(Some(false))) => {
                next = Some(next.map_or(end, |next| next.min(end)));
            }
            (None, Some(Some(true))) | (_, Some(None)) => {}
        }
    }
    (todo, next)
}
