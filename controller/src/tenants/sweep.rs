//! What becomes of claims whose tenant does not need them any more: quarantine, then the end.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::{InfraConfigSpec, VlanClaim};
use k8s_openapi::jiff::Timestamp;

use super::claims::quarantine_ends;
use super::ids::NetworkId;

/// A TenantCluster that exists, be it in deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alive {
    /// Its name.
    pub name: String,
    /// Its host network and the id that its status says it has there.
    pub has: Option<(String, NetworkId)>,
}

/// What to do with one claim.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sweep<'a> {
    /// Its quarantine begins. The caller asks the server first whether the tenant is really gone: a list that is a little
    /// old does not know the newest.
    Release(&'a VlanClaim),
    /// It was released, but its tenant has it: a takeover that was cut short.
    Keep(&'a VlanClaim),
    /// Its quarantine is over.
    Delete(&'a VlanClaim),
}

/// What there is to do now, and when there is more to do.
#[must_use]
pub fn sweep<'a>(
    claims: &'a [Arc<VlanClaim>],
    alive: &BTreeMap<String, Alive>,
    config: &InfraConfigSpec,
    now: Timestamp,
) -> (Vec<Sweep<'a>>, Option<Timestamp>) {
    let mut todo = Vec::new();
    let mut next: Option<Timestamp> = None;
    for claim in claims.iter().map(Arc::as_ref) {
        let id = NetworkId::of_claim(claim);
        // A tenant whose status does not say yet what it has may have any of its claims.
        let needed = alive.get(&claim.spec.tenant_uid).map(|tenant| {
            tenant
                .has
                .as_ref()
                .map(|(network, has)| *network == claim.spec.network && Some(*has) == id)
        });
        match (quarantine_ends(claim, config), needed) {
            (None, None | Some(Some(false))) => todo.push(Sweep::Release(claim)),
            (Some(_), Some(Some(true))) => todo.push(Sweep::Keep(claim)),
            (Some(end), None | Some(Some(false))) if end <= now => {
                todo.push(Sweep::Delete(claim));
            }
            (Some(end), None | Some(Some(false))) => {
                next = Some(next.map_or(end, |next| next.min(end)));
            }
            (None, Some(Some(true))) | (_, Some(None)) => {}
        }
    }
    (todo, next)
}
