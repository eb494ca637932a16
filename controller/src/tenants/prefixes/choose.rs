//! Chooses the prefix of a tenant's network.

use std::sync::Arc;

use berth_api::{
    ConditionReason, InfraConfigSpec, PrefixClaim, PrefixClaimSpec, PrefixPool, TenantCluster,
};
use ipnet::IpNet;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;

use super::pool::{ValidPrefixPool, conflicting_pools, is_routed, overlap};
use super::release::quarantine_end;
use super::request::PrefixRequest;
use crate::managed_by::{is_created_by_berth, tenant_labels};
use crate::tenants::addresses::family::Family;
use crate::tenants::addresses::resolved::PoolSource;
use crate::tenants::claims::hash_strings;
use crate::tenants::fault::Fault;

/// State on which the choice depends.
#[derive(Clone, Copy, Debug)]
pub struct PrefixState<'a> {
    /// InfraConfig, which contains the pools and the duration of the quarantine.
    pub config: &'a InfraConfigSpec,
    /// All existing PrefixClaims.
    pub claims: &'a [Arc<PrefixClaim>],
    pub tenants: &'a [Arc<TenantCluster>],
}

/// Result of [`choose_prefix`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PrefixChoice<'a> {
    /// The network uses this prefix without a claim, because the prefix is not routed.
    Unclaimed(IpNet),
    /// The tenant already has this claim.
    KeepClaim(&'a PrefixClaim),
    /// Take over the claim of an earlier TenantCluster of the same name. Before this, the caller must read the
    /// TenantCluster from the API server: only if it has the UID of the request, the claim cannot already belong to a
    /// later TenantCluster.
    TakeOver(&'a PrefixClaim),
    /// Create a claim to this prefix.
    Create(IpNet),
}

/// User of a prefix. The text completes a sentence, such as "overlaps 10.0.0.0/24, which tenant abc has".
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum PrefixUse {
    #[error("tenant {0} has")]
    Tenant(String),
    #[error("tenant {0} released, and which is in quarantine until {1}")]
    Quarantine(String, Timestamp),
    #[error("is the cidr of tenant {0}")]
    Cidr(String),
}

/// Chooses the prefix of a tenant's network. A tenant retains its prefix, even if the pool was changed or removed.
///
/// # Errors
/// Returns a fault if no prefix is free. Also returns a fault if the tenant's prefix overlaps that of another tenant,
/// which the fault names.
pub fn choose_prefix<'a>(
    request: PrefixRequest<'_>,
    state: PrefixState<'a>,
) -> Result<PrefixChoice<'a>, Fault> {
    let (mut own, mut earlier) = (Vec::new(), Vec::new());
    for claim in state.claims.iter().map(Arc::as_ref).filter(|claim| is_claim_for(claim, request)) {
        if claim.spec.tenant_uid == request.uid {
            own.push(claim);
        } else if is_created_by_berth(claim.labels()) {
            earlier.push(claim);
        }
    }
    // If two controllers have created claims for the tenant at the same time, both controllers choose the same claim.
    let order =
        |claim: &&'a PrefixClaim| (Some(claim.spec.prefix) != request.recorded, claim.spec.prefix);
    if let Some(claim) = own.into_iter().min_by_key(order) {
        return Ok(PrefixChoice::KeepClaim(claim));
    }
    if let Some(claim) = earlier.into_iter().min_by_key(order) {
        return Ok(PrefixChoice::TakeOver(claim));
    }
    let pools = &state.config.address_pools;
    let name = match request.source {
        PoolSource::FromPool(name) => name,
        PoolSource::Cidr(cidr) => {
            return if overlaps_routed(cidr, request, state) {
                claim_fixed(cidr.trunc(), request, state)
            } else {
                Ok(PrefixChoice::Unclaimed(cidr))
            };
        }
    };
    let pool = pools.iter().find(|pool| pool.name == name);
    match (request.recorded, pool) {
        // The network has a prefix but no claim: the claim was lost, or the pool became routed after the network got
        // the prefix.
        (Some(prefix), Some(pool)) if is_routed(pool) => claim_fixed(prefix, request, state),
        (Some(prefix), _) => Ok(PrefixChoice::Unclaimed(prefix)),
        (None, Some(pool)) => choose_from_pool(pool, request, state),
        (None, None) => {
            let message = format!(
                "{}: InfraConfig default: spec.addressPools has no pool `{name}`",
                request.field()
            );
            Err(Fault::new(ConditionReason::NoPool, message))
        }
    }
}

/// Returns true if two claims exclude each other. After the caller has created a claim, it compares this claim with all
/// claims in the API server, and deletes its own claim if another claim excludes it.
#[must_use]
pub fn is_conflict(claim: &PrefixClaim, other: &PrefixClaim) -> bool {
    claim.spec.tenant != other.spec.tenant && overlap(&claim.spec.prefix, &other.spec.prefix)
}

/// Returns a new claim for this request, which locks the prefix.
#[must_use]
pub fn new_claim(prefix: IpNet, request: PrefixRequest<'_>) -> PrefixClaim {
    let pool = match request.source {
        PoolSource::Cidr(_) => None,
        PoolSource::FromPool(name) => Some(name.to_owned()),
    };
    let spec = PrefixClaimSpec {
        prefix,
        pool,
        tenant: request.tenant.to_owned(),
        tenant_uid: request.uid.to_owned(),
    };
    let mut claim = PrefixClaim::new(&PrefixClaim::name_for(prefix), spec);
    claim.metadata.labels = Some(tenant_labels(request.tenant));
    claim
}

/// Returns a claim in place of a malformed claim with the name of this prefix, so that the prefix counts as in use by
/// an unknown tenant.
#[must_use]
pub fn malformed_claim(prefix: IpNet) -> PrefixClaim {
    let name = PrefixClaim::name_for(prefix);
    // No TenantCluster can have this name.
    let tenant = format!("(malformed PrefixClaim {name})");
    PrefixClaim::new(
        &name,
        PrefixClaimSpec { prefix, pool: None, tenant, tenant_uid: String::new() },
    )
}

/// Returns true if a claim was created for this request, or for the same request of an earlier TenantCluster of the
/// same name.
fn is_claim_for(claim: &PrefixClaim, request: PrefixRequest<'_>) -> bool {
    let spec = &claim.spec;
    let is_source = match request.source {
        PoolSource::Cidr(cidr) => spec.prefix == cidr.trunc(),
        PoolSource::FromPool(name) => spec.pool.as_deref() == Some(name),
    };
    spec.tenant == request.tenant && is_source && Family::of(spec.prefix.addr()) == request.family
}

/// Returns true if a network overlaps a routed pool, or the prefix that another tenant has from a routed pool. Such a
/// prefix stays routed even if its pool is removed or gets another `cidr`.
fn overlaps_routed(cidr: IpNet, request: PrefixRequest<'_>, state: PrefixState<'_>) -> bool {
    let pools = &state.config.address_pools;
    let is_routed_claim = |claim: &PrefixClaim| {
        let Some(name) = &claim.spec.pool else { return false };
        pools.iter().find(|pool| pool.name == *name).is_none_or(is_routed)
    };
    pools.iter().any(|pool| is_routed(pool) && overlap(&pool.cidr, &cidr))
        || state.claims.iter().map(Arc::as_ref).any(|claim| {
            claim.spec.tenant != request.tenant
                && overlap(&claim.spec.prefix, &cidr)
                && is_routed_claim(claim)
        })
}

/// Returns the choice for a network whose prefix cannot be changed. Only claims are compared: of two networks with the
/// same prefix, the network whose claim is created first gets the prefix.
fn claim_fixed<'a>(
    prefix: IpNet,
    request: PrefixRequest<'_>,
    state: PrefixState<'_>,
) -> Result<PrefixChoice<'a>, Fault> {
    let mut claims = state.claims.iter().filter(|claim| claim.spec.tenant != request.tenant);
    let Some(claim) = claims.find(|claim| overlap(&claim.spec.prefix, &prefix)) else {
        return Ok(PrefixChoice::Create(prefix));
    };
    let message = format!(
        "{}: {prefix} overlaps {}, which {}, and prefixes in this range are routed: no machine is created; use \
         another prefix, and replace the machines that have addresses",
        request.field(),
        claim.spec.prefix,
        prefix_use_of_claim(claim, state)
    );
    Err(Fault::new(ConditionReason::PrefixInUse, message))
}

fn choose_from_pool<'a>(
    pool: &PrefixPool,
    request: PrefixRequest<'_>,
    state: PrefixState<'_>,
) -> Result<PrefixChoice<'a>, Fault> {
    let valid = ValidPrefixPool::new(pool)?;
    let (field, name) = (request.field(), &pool.name);
    if valid.family != request.family {
        let message =
            format!("{field}: pool `{name}` has {} addresses: {}", valid.family.name(), pool.cidr);
        return Err(Fault::new(ConditionReason::InvalidAddressPool, message));
    }
    if let Some(other) = conflicting_pools(state.config, pool).next() {
        let message = format!(
            "{field}: pool `{name}` ({}) overlaps pool `{}` ({}), and prefixes of one of them are routed: make \
             InfraConfig's spec.addressPools disjoint",
            pool.cidr, other.name, other.cidr
        );
        return Err(Fault::new(ConditionReason::PoolsOverlap, message));
    }
    if !is_routed(pool) {
        let first = valid.prefix(0).unwrap_or(valid.cidr);
        return Ok(PrefixChoice::Unclaimed(first));
    }
    let used: Vec<(IpNet, PrefixUse)> =
        prefixes_in_use(request, state).filter(|(net, _)| overlap(net, &valid.cidr)).collect();
    // The search starts at a prefix that depends on the tenant's name: a tenant that is created again gets the same
    // prefix if it is free, and two tenants that are created at the same time seldom choose the same prefix.
    let start = hash_strings(&[request.tenant, name]);
    match valid.first_free_prefix(start, used.iter().map(|(net, _)| *net)) {
        Some(prefix) => Ok(PrefixChoice::Create(prefix)),
        None => Err(exhausted_fault(&field, &valid, &used)),
    }
}

/// Returns all prefixes that a new prefix must not overlap.
fn prefixes_in_use<'s>(
    request: PrefixRequest<'s>,
    state: PrefixState<'s>,
) -> impl Iterator<Item = (IpNet, PrefixUse)> + 's {
    let claims = state
        .claims
        .iter()
        .map(move |claim| (claim.spec.prefix, prefix_use_of_claim(claim, state)));
    let others = state.tenants.iter().filter(move |tenant| tenant.name_any() != request.tenant);
    let of_tenants = others.flat_map(|tenant| {
        let name = tenant.name_any();
        let network = tenant.spec.network.as_ref();
        let specs = network.into_iter().flat_map(|network| [&network.ipv4, &network.ipv6]);
        let cidrs: Vec<IpNet> = specs.flatten().filter_map(|spec| spec.cidr).collect();
        let prefixes = tenant.status.iter().flat_map(|status| &status.prefixes);
        let prefixes = prefixes.map(|prefix| (prefix.cidr, PrefixUse::Tenant(name.clone())));
        let prefixes: Vec<(IpNet, PrefixUse)> = prefixes.collect();
        let cidrs = cidrs.into_iter().map(move |cidr| (cidr, PrefixUse::Cidr(name.clone())));
        prefixes.into_iter().chain(cidrs)
    });
    claims.chain(of_tenants)
}

fn prefix_use_of_claim(claim: &PrefixClaim, state: PrefixState<'_>) -> PrefixUse {
    let tenant = claim.spec.tenant.clone();
    match quarantine_end(claim, state.config) {
        Some(until) => PrefixUse::Quarantine(tenant, until),
        None => PrefixUse::Tenant(tenant),
    }
}

fn exhausted_fault(field: &str, pool: &ValidPrefixPool<'_>, used: &[(IpNet, PrefixUse)]) -> Fault {
    let count = |is_counted: fn(&PrefixUse) -> bool| {
        let mut nets: Vec<&IpNet> =
            used.iter().filter(|(_, user)| is_counted(user)).map(|(net, _)| net).collect();
        nets.sort();
        nets.dedup();
        nets.len()
    };
    let until = used.iter().filter_map(|(_, user)| match user {
        PrefixUse::Quarantine(_, until) => Some(*until),
        PrefixUse::Tenant(_) | PrefixUse::Cidr(_) => None,
    });
    let until = until.min().map_or_else(String::new, |until| format!(", the first until {until}"));
    let message = format!(
        "{field}: no prefix of length {} is free in pool `{}` ({}): {} are in use by tenants, {} in \
         quarantine{until}, and {} are the cidr of a tenant; extend InfraConfig's spec.addressPools",
        pool.spec.prefix_length,
        pool.spec.name,
        pool.spec.cidr,
        count(|user| matches!(user, PrefixUse::Tenant(_))),
        count(|user| matches!(user, PrefixUse::Quarantine(..))),
        count(|user| matches!(user, PrefixUse::Cidr(_))),
    );
    Fault::new(ConditionReason::PoolExhausted, message)
}

#[cfg(test)]
pub(super) mod test_helpers {
    use berth_api::{PrefixClaimStatus, Time};

    use super::*;

    /// Returns a claim of the TenantCluster with UID `u-<tenant>`. If a second is given, the claim was released at this
    /// Unix time, and is in quarantine.
    pub(in super::super) fn claim(
        prefix: &str,
        pool: Option<&str>,
        tenant: &str,
        released: Option<i64>,
    ) -> PrefixClaim {
        let prefix: IpNet = prefix.parse().unwrap();
        let source = pool.map_or(PoolSource::Cidr(prefix), PoolSource::FromPool);
        let (uid, family) = (format!("u-{tenant}"), Family::of(prefix.addr()));
        let request = PrefixRequest { tenant, uid: &uid, family, source, recorded: None };
        let mut claim = new_claim(prefix, request);
        let released_at = released.map(|second| Time(Timestamp::from_second(second).unwrap()));
        claim.status = released.map(|_| PrefixClaimStatus { released_at });
        claim
    }
}

#[cfg(test)]
#[path = "choose_tests.rs"]
mod tests;
