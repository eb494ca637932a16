//! Decides whether a tenant gets the load balancer address pool that it requests.
//!
//! Tenants whose pools are related are decided together, older tenants first. A tenant depends on those tenants whose
//! current pools contain addresses that it requests. A tenant is accepted if it and the tenants on which it depends can
//! all get their requested pools one after the other, and if none of these pools contains an address that an accepted
//! tenant requests. A refused tenant retains its current pool, and its request does not affect other tenants.
//!
//! A pool is changed in a single step, as soon as no other pool contains its new addresses. This step does not change
//! which tenants are accepted, so no tenant loses addresses for a change that cannot be completed. Tenants that request
//! addresses of each other's pools are refused: one of them would have to release its pool first, and could then lose
//! it to another tenant.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::{AddressRange, TenantCluster};
use kube::ResourceExt as _;

use super::fault::join_names_limited;
use super::pool_precedence::{PoolRequest, age_key, refusal};
use super::pool_use::PoolUse;

/// Current pools and requested pools of all tenants.
#[derive(Clone, Copy)]
pub(super) struct PoolState<'a> {
    pub(super) tenants: &'a [Arc<TenantCluster>],
    /// Current pools in the cluster.
    pub(super) pool_use: &'a PoolUse,
    /// Returns false if a request cannot be applied for reasons other than the requests of other tenants.
    pub(super) may_apply: &'a dyn Fn(PoolRequest<'_>) -> bool,
}

/// Decision about the requested pool of a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PoolDecision {
    /// The tenant gets the requested pool now.
    Accepted,
    /// The tenant gets the requested pool after the pools of these other tenants have changed; until then, it retains
    /// its current pool.
    Waits(Vec<String>),
    /// The tenant retains its current pool, for these reasons.
    Refused(Vec<String>),
}

/// Requested pool of a tenant, and its current pool in the cluster.
struct PoolClaim<'a> {
    /// The requested pool; without ranges if it cannot be applied.
    request: PoolRequest<'a>,
    can_apply: bool,
    /// Ranges of the current pool.
    applied: Vec<AddressRange>,
}

impl<'a> PoolClaim<'a> {
    fn applied_request(&self) -> PoolRequest<'_> {
        PoolRequest { tenant: self.request.tenant, ranges: &self.applied }
    }

    fn overlaps(&self, other: &Self) -> bool {
        let theirs = [other.request.ranges, other.applied.as_slice()];
        let is_shared = |own: &[AddressRange]| theirs.iter().any(|ranges| overlap(own, ranges));
        is_shared(self.request.ranges) || is_shared(self.applied.as_slice())
    }

    /// Returns true if the current pool of the other tenant contains addresses that this tenant requests, so that it
    /// must change first.
    fn needs_change_of(&self, other: &Self) -> bool {
        overlap(self.request.ranges, &other.applied)
    }

    fn name(&self) -> String {
        self.request.tenant.name_any()
    }

    fn new(request: PoolRequest<'a>, applied: Vec<AddressRange>) -> Self {
        Self { request, can_apply: true, applied }
    }
}

/// Returns true if the two lists of ranges have a common address.
fn overlap(one: &[AddressRange], other: &[AddressRange]) -> bool {
    one.iter().any(|range| other.iter().any(|it| range.overlaps(*it)))
}

/// Decides about the requested pool of a tenant. The caller has checked that [`PoolState::may_apply`] returns true for
/// this request.
#[must_use]
pub(super) fn decide(own: PoolRequest<'_>, state: PoolState<'_>) -> PoolDecision {
    let claims = related_claims(own, state);
    let needed: Vec<BTreeSet<usize>> =
        (0..claims.len()).map(|index| needed_changes(&claims, index)).collect();
    let accepted = accepted_claims(&claims, &needed);
    let own_name = own.tenant.name_any();
    let own_index = claims.iter().position(|claim| claim.name() == own_name);
    if own_index.is_none_or(|index| accepted.contains(&index)) {
        // A tenant that has a pool, but no longer requests one, is also included.
        let pools = state.pool_use.pools.iter();
        let others = pools.filter(|pool| pool.tenant != own_name);
        let others = others.filter(|pool| overlap(own.ranges, &pool.ranges));
        let names: BTreeSet<String> = others.map(|pool| pool.tenant.clone()).collect();
        if names.is_empty() {
            return PoolDecision::Accepted;
        }
        return PoolDecision::Waits(names.into_iter().collect());
    }
    let others = claims.iter().enumerate().filter(|(index, _)| Some(*index) != own_index);
    let reasons = others.filter_map(|(index, other)| {
        if accepted.contains(&index) {
            return refusal(own, other.request, state.pool_use)
                .or_else(|| refusal_of_older_tenant(own, other.request));
        }
        refusal(own, other.applied_request(), state.pool_use)
    });
    let cycle = own_index.and_then(|index| cycle_message(&claims, &needed, index));
    let mut reasons: Vec<String> = cycle.into_iter().chain(reasons).collect();
    if reasons.is_empty() {
        reasons.push("the pools of other tenants must change first".to_owned());
    }
    PoolDecision::Refused(reasons)
}

/// If this tenant is one of several tenants that request addresses of each other's pools, returns a message that names
/// these tenants.
fn cycle_message(
    claims: &[PoolClaim<'_>],
    needed: &[BTreeSet<usize>],
    own: usize,
) -> Option<String> {
    let needs =
        |index: usize, other: usize| needed.get(index).is_some_and(|it| it.contains(&other));
    if !needs(own, own) {
        return None;
    }
    let all = claims.iter().enumerate();
    let members = all.filter(|(index, _)| needs(own, *index) && needs(*index, own));
    let names: Vec<String> = members.map(|(_, claim)| claim.name()).collect();
    Some(format!(
        "these TenantClusters request addresses of each other's pools, so one of them must first request other \
         addresses: {}",
        join_names_limited(&names)
    ))
}

/// Returns the reason why a tenant is refused although it is older than `other`, an accepted tenant with the same
/// addresses.
fn refusal_of_older_tenant(own: PoolRequest<'_>, other: PoolRequest<'_>) -> Option<String> {
    let mut pairs = own.ranges.iter().flat_map(|one| other.ranges.iter().map(move |it| (one, it)));
    let (range, theirs) = pairs.find(|(range, theirs)| range.overlaps(**theirs))?;
    let name = other.tenant.name_any();
    Some(format!(
        "`{range}` overlaps `{theirs}` of TenantCluster {name}, which gets these addresses"
    ))
}

/// Returns the claims of this tenant and of the tenants whose decisions may affect the decision about it, older tenants
/// first.
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
            // `may_apply` is called only for related pools, because it compares the ranges with the addresses of all
            // Nodes.
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

/// Returns the indices of the tenants whose pools must change before the tenant `first` gets its requested pool. The
/// result contains `first` itself if tenants request addresses of each other's pools.
fn needed_changes(claims: &[PoolClaim<'_>], first: usize) -> BTreeSet<usize> {
    let (mut needed, mut stack) = (BTreeSet::new(), vec![first]);
    while let Some(index) = stack.pop() {
        let Some(claim) = claims.get(index) else { continue };
        for (next, other) in claims.iter().enumerate() {
            if next != index && claim.needs_change_of(other) && needed.insert(next) {
                stack.push(next);
            }
        }
    }
    needed
}

/// Returns the indices of the accepted tenants. The claims are sorted by age; `needed` contains the result of
/// [`needed_changes`] for each claim.
fn accepted_claims(claims: &[PoolClaim<'_>], needed: &[BTreeSet<usize>]) -> BTreeSet<usize> {
    let mut accepted: BTreeSet<usize> = BTreeSet::new();
    for (index, needs) in needed.iter().enumerate() {
        let mut candidates = accepted.clone();
        candidates.insert(index);
        candidates.extend(needs);
        let can_change = |one: usize| {
            let (Some(claim), Some(changes)) = (claims.get(one), needed.get(one)) else {
                return false;
            };
            let others = candidates.iter().filter(|other| **other != one);
            let mut others = others.filter_map(|other| claims.get(*other));
            claim.can_apply
                && !changes.contains(&one)
                && !others.any(|other| overlap(claim.request.ranges, other.request.ranges))
        };
        if candidates.difference(&accepted).all(|one| can_change(*one)) {
            accepted = candidates;
        }
    }
    accepted
}

#[cfg(test)]
#[path = "pool_acceptance_tests.rs"]
mod tests;
