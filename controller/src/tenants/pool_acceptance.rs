//! Decides whether a tenant gets the pool of load balancer addresses that it requests.
//!
//! An accepted request blocks the requests of other tenants. A refused request blocks none, but its tenant keeps its
//! current pool. So all tenants whose pools are related are decided together, older tenants first. If tenants
//! exchange their pools, they wait for each other in a cycle: the youngest of them releases its addresses first.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::{AddressRange, TenantCluster};
use kube::ResourceExt as _;

use super::pool_precedence::{PoolRequest, age_key, refusal};
use super::pool_use::PoolUse;

/// Pools and requests of all tenants.
#[derive(Clone, Copy)]
pub(super) struct PoolState<'a> {
    /// All tenants.
    pub(super) tenants: &'a [Arc<TenantCluster>],
    /// Pools in the cluster.
    pub(super) pool_use: &'a PoolUse,
    /// Returns false if a pool cannot be applied, even if no other tenant requests its addresses.
    pub(super) may_apply: &'a dyn Fn(PoolRequest<'_>) -> bool,
}

/// Decision about the pool of a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PoolDecision {
    /// The tenant gets the pool.
    Accepted,
    /// The tenant gets the pool when other tenants, which wait for this tenant, have released addresses of it.
    Waits {
        /// Ranges of its pool that it still requests. It releases its other ranges.
        ranges: Vec<AddressRange>,
        /// Names of the other tenants.
        others: Vec<String>,
    },
    /// The tenant keeps its previous pool, with the reasons.
    Refused(Vec<String>),
}

/// Requested pool of a tenant, and its pool in the cluster.
struct PoolClaim<'a> {
    /// The requested pool, without ranges if it cannot be applied.
    request: PoolRequest<'a>,
    can_apply: bool,
    /// Ranges in the cluster.
    applied: Vec<AddressRange>,
}

impl<'a> PoolClaim<'a> {
    fn applied_request(&self) -> PoolRequest<'_> {
        PoolRequest { tenant: self.request.tenant, ranges: &self.applied }
    }

    /// Returns the ranges in the cluster that stay whether the request is accepted or not.
    fn kept_ranges(&self) -> Vec<AddressRange> {
        if !self.can_apply {
            return self.applied.clone();
        }
        let pairs = self.applied.iter().flat_map(|one| {
            self.request.ranges.iter().filter_map(move |other| one.intersection(*other))
        });
        pairs.collect()
    }

    fn overlaps(&self, other: &Self) -> bool {
        let own = || self.request.ranges.iter().chain(&self.applied);
        let mut theirs = other.request.ranges.iter().chain(&other.applied);
        theirs.any(|one| own().any(|range| range.overlaps(*one)))
    }

    /// Returns true if the pool of another tenant has addresses that this tenant requests.
    fn waits_for(&self, other: &Self) -> bool {
        let mut applied = other.applied.iter();
        applied.any(|one| self.request.ranges.iter().any(|range| range.overlaps(*one)))
    }

    fn name(&self) -> String {
        self.request.tenant.name_any()
    }

    fn new(request: PoolRequest<'a>, applied: Vec<AddressRange>) -> Self {
        Self { request, can_apply: true, applied }
    }
}

/// Decides about the pool of a tenant. The pool must be valid.
#[must_use]
pub(super) fn decide(own: PoolRequest<'_>, state: PoolState<'_>) -> PoolDecision {
    let claims = related_claims(own, state);
    let own_name = own.tenant.name_any();
    let accepted = accepted_claims(&claims, state.pool_use);
    let mut all = claims.iter().enumerate();
    let Some((own_index, claim)) = all.find(|(_, one)| one.name() == own_name) else {
        return PoolDecision::Accepted;
    };
    let others = claims.iter().enumerate().filter(|(index, _)| *index != own_index);
    if accepted.contains(&own_index) {
        if !is_youngest_of_cycle(&claims, &accepted, own_index) {
            return PoolDecision::Accepted;
        }
        let others = others.filter(|(_, other)| claim.waits_for(other));
        let others = others.map(|(_, other)| other.name()).collect();
        return PoolDecision::Waits { ranges: claim.kept_ranges(), others };
    }
    let reasons = others.filter_map(|(index, other)| {
        let kept = other.kept_ranges();
        let kept = PoolRequest { tenant: other.request.tenant, ranges: &kept };
        let refused = refusal(claim.request, kept, state.pool_use);
        refused.or_else(|| {
            if !accepted.contains(&index) {
                return refusal(claim.request, other.applied_request(), state.pool_use);
            }
            refusal(claim.request, other.request, state.pool_use)
                .or_else(|| refusal_of_older_tenant(claim.request, other.request))
        })
    });
    let mut reasons: Vec<String> = reasons.collect();
    if reasons.is_empty() {
        reasons.push("the pools of other tenants must change first".to_owned());
    }
    PoolDecision::Refused(reasons)
}

/// Returns the reason why a tenant is refused although it is older than an accepted tenant.
fn refusal_of_older_tenant(own: PoolRequest<'_>, other: PoolRequest<'_>) -> Option<String> {
    let mut pairs = own.ranges.iter().flat_map(|one| other.ranges.iter().map(move |it| (one, it)));
    let (range, theirs) = pairs.find(|(range, theirs)| range.overlaps(**theirs))?;
    let name = other.tenant.name_any();
    Some(format!("`{range}` overlaps `{theirs}` of TenantCluster {name}, whose pool changes first"))
}

/// Returns the tenant and the tenants whose decisions may affect its own, older tenants first.
fn related_claims<'a>(own: PoolRequest<'a>, state: PoolState<'a>) -> Vec<PoolClaim<'a>> {
    let mut applied: BTreeMap<&str, Vec<AddressRange>> = BTreeMap::new();
    for pool in &state.pool_use.pools {
        applied.entry(pool.tenant.as_str()).or_default().extend(&pool.ranges);
    }
    let own_name = own.tenant.name_any();
    let mut rest: Vec<PoolClaim<'a>> = Vec::new();
    for tenant in state.tenants {
        let pool = tenant.spec.exposure.as_ref().and_then(|one| one.load_balancers.as_ref());
        let name = tenant.name_any();
        if let Some(pool) = pool.filter(|_| name != own_name) {
            let request = PoolRequest { tenant, ranges: &pool.addresses };
            rest.push(PoolClaim::new(request, applied.remove(name.as_str()).unwrap_or_default()));
        }
    }
    let own_applied = applied.remove(own_name.as_str()).unwrap_or_default();
    let (mut queue, mut related) = (vec![PoolClaim::new(own, own_applied)], Vec::new());
    while let Some(claim) = queue.pop() {
        for mut other in std::mem::take(&mut rest) {
            // Only related pools are examined, because each is compared with all Nodes.
            if claim.overlaps(&other) && other.can_apply && !(state.may_apply)(other.request) {
                other.can_apply = false;
                other.request.ranges = &[];
            }
            let list = if claim.overlaps(&other) { &mut queue } else { &mut rest };
            list.push(other);
        }
        related.push(claim);
    }
    related.sort_by_key(|claim| age_key(claim.request.tenant));
    related
}

/// Returns the indices of the tenants that get their pools.
fn accepted_claims(claims: &[PoolClaim<'_>], pool_use: &PoolUse) -> BTreeSet<usize> {
    let kept: Vec<Vec<AddressRange>> = claims.iter().map(PoolClaim::kept_ranges).collect();
    let has_kept = |index: usize, claim: &PoolClaim<'_>| {
        let mut others = claims.iter().zip(&kept).enumerate().filter(|(other, _)| *other != index);
        others.any(|(_, (other, ranges))| {
            let kept = PoolRequest { tenant: other.request.tenant, ranges };
            refusal(claim.request, kept, pool_use).is_some()
        })
    };
    let all = claims.iter().enumerate();
    let refused = all.filter(|(index, claim)| !claim.can_apply || has_kept(*index, claim));
    let mut refused: BTreeSet<usize> = refused.map(|(index, _)| index).collect();
    loop {
        let mut accepted: BTreeSet<usize> = BTreeSet::new();
        for (index, claim) in claims.iter().enumerate() {
            let is_taken = claims.iter().enumerate().any(|(other, one)| {
                accepted.contains(&other) && refusal(claim.request, one.request, pool_use).is_some()
            });
            if !is_taken && !refused.contains(&index) {
                accepted.insert(index);
            }
        }
        // A tenant that is not accepted keeps its whole pool.
        let is_blocked = |claim: &PoolClaim<'_>| {
            let mut others = claims.iter().enumerate().filter(|(one, _)| !accepted.contains(one));
            others.any(|(_, one)| refusal(claim.request, one.applied_request(), pool_use).is_some())
        };
        let all = claims.iter().enumerate();
        let blocked = all.filter(|(index, claim)| accepted.contains(index) && is_blocked(claim));
        let blocked: Vec<usize> = blocked.map(|(index, _)| index).collect();
        if blocked.is_empty() {
            return accepted;
        }
        refused.extend(blocked);
    }
}

/// Returns true if accepted tenants wait for each other in a cycle of which this tenant is the youngest. The indices
/// are sorted by age.
fn is_youngest_of_cycle(claims: &[PoolClaim<'_>], accepted: &BTreeSet<usize>, own: usize) -> bool {
    let (mut visited, mut stack) = (BTreeSet::new(), vec![own]);
    while let Some(index) = stack.pop() {
        let Some(claim) = claims.get(index) else { continue };
        for (next, other) in claims.iter().enumerate() {
            if next == index || !accepted.contains(&next) || !claim.waits_for(other) {
                continue;
            }
            if next == own {
                return true;
            }
            if next < own && visited.insert(next) {
                stack.push(next);
            }
        }
    }
    false
}
