//! Chooses the VLAN or VNI of a tenant.
//!
//! A chosen number is only a proposal. The creation of the VlanClaim is the lock, because the API server accepts each
//! name only once. Therefore the known claims may be stale: the caller adds the name of a refused claim to
//! [`ClaimState::refused_names`] and calls [`choose_id`] again, which returns the next candidate.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::{ConditionReason, InfraConfigSpec, VlanClaim, VlanClaimSpec, VlanId};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;

use super::fault::Fault;
use super::network_id::NetworkId;
use super::shared_segment;
use berth_kubevirt_render::stable_hash::stable_hash;

/// Default of `spec.vlanQuarantineSeconds` of InfraConfig, in seconds.
const DEFAULT_QUARANTINE_SECONDS: u32 = 3600;

/// Request of a tenant for a VLAN or VNI.
#[derive(Clone, Copy, Debug)]
pub struct IdRequest<'a> {
    /// Name of the TenantCluster.
    pub tenant: &'a str,
    /// UID of the TenantCluster.
    pub uid: &'a str,
    /// Name of the tenant's host network.
    pub network: &'a str,
    /// True if the frames of the network's tenants are separated by VNIs instead of VLANs.
    pub uses_vnis: bool,
    /// VLAN or VNI that the spec of the tenant requests; no other number is acceptable.
    pub requested_id: Option<NetworkId>,
    /// VLAN or VNI in the status of the tenant, which its machines may already use.
    pub recorded_id: Option<NetworkId>,
}

/// State on which the choice depends: pools, and VLANs and VNIs in use.
#[derive(Clone, Copy, Debug)]
pub struct ClaimState<'a> {
    /// InfraConfig, which contains the pools and the duration of the quarantine.
    pub config: &'a InfraConfigSpec,
    /// All existing VlanClaims.
    pub claims: &'a [Arc<VlanClaim>],
    /// Names of claims that exist on the API server, but that `claims` may lack.
    pub refused_names: &'a BTreeSet<String>,
    /// VLANs and VNIs on the same network that are in use by NetworkAttachmentDefinitions of other users, each with the
    /// name of the NetworkAttachmentDefinition.
    pub foreign_ids: &'a BTreeMap<NetworkId, String>,
}

/// Result of [`choose_id`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum IdChoice<'a> {
    /// The tenant already has this claim.
    KeepClaim(NetworkId),
    /// Take over a claim in quarantine that belonged to an earlier TenantCluster of the same name.
    TakeOver(NetworkId, &'a VlanClaim),
    /// Create a claim to this VLAN or VNI.
    Create(NetworkId),
}

/// Returns the duration of the quarantine: the time after the deletion of a tenant during which its VLAN or VNI is not
/// allocated to other tenants.
#[must_use]
pub fn quarantine_duration(config: &InfraConfigSpec) -> SignedDuration {
    SignedDuration::from_secs(
        config.vlan_quarantine_seconds.unwrap_or(DEFAULT_QUARANTINE_SECONDS).into(),
    )
}

/// Returns the end of a claim's quarantine; `None` if the claim is not in quarantine.
#[must_use]
pub fn quarantine_end(claim: &VlanClaim, config: &InfraConfigSpec) -> Option<Timestamp> {
    let released = claim.status.as_ref()?.released_at.as_ref()?.0;
    Some(released.checked_add(quarantine_duration(config)).unwrap_or(Timestamp::MAX))
}

/// Chooses a VLAN or VNI for a tenant.
///
/// # Errors
/// Returns a fault if no number of the pool is free, or if the requested number is not free. In the second case, the fault
/// names the user of the number.
pub fn choose_id<'a>(request: IdRequest<'_>, state: ClaimState<'a>) -> Result<IdChoice<'a>, Fault> {
    if let Some(id) = claimed_id(request, state.claims) {
        return match request.requested_id {
            Some(fixed) if fixed != id => Err(Fault::new(
                ConditionReason::NetworkIdImmutable,
                format!(
                    "spec.network requests {fixed}, but the tenant has {id}: delete the tenant and create it again"
                ),
            )),
            _ => Ok(IdChoice::KeepClaim(id)),
        };
    }
    check_requested_id(request)?;
    if let Some((id, claim)) = find_released_claim(request, state) {
        return Ok(IdChoice::TakeOver(id, claim));
    }
    let taken = ids_in_use(request, state);
    let contested = shared_segment::contested_vlans(state.config, request.network);
    if let Some(fixed) = request.requested_id {
        if let Some(other) = fixed.vlan().and_then(|vlan| contested.get(&vlan)) {
            let message = format!(
                "spec.network requests {fixed} on {}, which is also in the pool of network \
                 {other}, and both networks may share a segment: change InfraConfig's spec.vlanPools, or declare the \
                 networks in different spec.segments",
                request.network
            );
            return Err(Fault::new(ConditionReason::PoolsOverlap, message));
        }
        return match taken.get(&fixed) {
            None => Ok(IdChoice::Create(fixed)),
            Some(current_use) => {
                let message = format!(
                    "spec.network requests {fixed} on {}, which {current_use}: request another \
                     number",
                    request.network
                );
                Err(Fault::new(ConditionReason::NetworkIdInUse, message))
            }
        };
    }
    let pool = IdPool::for_request(state.config, request)?;
    let before = request.recorded_id.filter(|id| pool.contains(*id));
    // The tenant has no claim any more, so its earlier VLAN may belong to another tenant by now. If this VLAN is free,
    // it is chosen first, because the tenant's VMs use it.
    let is_contested = |id: &NetworkId| id.vlan().is_some_and(|vlan| contested.contains_key(&vlan));
    let preferred = pool.ids_by_preference(request).filter(|id| !is_contested(id));
    let mut ids = before.into_iter().chain(preferred);
    match ids.find(|id| !taken.contains_key(id)) {
        Some(id) => Ok(IdChoice::Create(id)),
        None => Err(exhausted_pool_fault(request, &pool, &taken, &contested)),
    }
}

/// Returns the VLAN or VNI of the tenant's claims. A tenant may have several claims if two controllers created claims
/// at the same time. The number in the status takes precedence; without it, the lowest number is returned, so that all
/// controllers choose the same one.
#[must_use]
pub fn claimed_id(request: IdRequest<'_>, claims: &[Arc<VlanClaim>]) -> Option<NetworkId> {
    let is_own = |claim: &VlanClaim| {
        claim.spec.tenant_uid == request.uid && claim.spec.network == request.network
    };
    let ids = || {
        let own = claims.iter().map(Arc::as_ref).filter(|claim| is_own(claim));
        own.filter_map(NetworkId::from_claim).filter(|id| id.is_vni() == request.uses_vnis)
    };
    request.recorded_id.filter(|before| ids().any(|id| id == *before)).or_else(|| ids().min())
}

fn check_requested_id(request: IdRequest<'_>) -> Result<(), Fault> {
    let invalid = |message| Err(Fault::new(ConditionReason::InvalidNetworkId, message));
    match request.requested_id {
        Some(NetworkId::Vlan(vlan)) if !vlan.is_allowed_for_tenants() => invalid(
            "spec.network.vlan: VLAN 1 is the default VLAN of switches and bridges; request \
             another VLAN"
                .to_owned(),
        ),
        Some(NetworkId::Vni(0 | 16_777_216..)) => {
            invalid("spec.network.vni: must be from 1 to 16777215".to_owned())
        }
        Some(id) if id.is_vni() != request.uses_vnis => invalid(format!(
            "spec.network requests {id}, but tenants of network {} have {}",
            request.network,
            if request.uses_vnis { "VNIs" } else { "VLANs" }
        )),
        _ => Ok(()),
    }
}

/// Returns the claim of an earlier TenantCluster of the same name that is in quarantine. The tenant may take over this
/// claim, because the quarantine only protects other tenants.
fn find_released_claim<'a>(
    request: IdRequest<'_>,
    state: ClaimState<'a>,
) -> Option<(NetworkId, &'a VlanClaim)> {
    let all = state.claims.iter().map(Arc::as_ref).filter(|claim| {
        claim.spec.tenant == request.tenant
            && claim.spec.network == request.network
            // A claim that is not in quarantine may belong to a newer TenantCluster of this name that the store of this
            // controller lacks.
            && quarantine_end(claim, state.config).is_some()
    });
    let all = all.filter_map(|claim| Some((NetworkId::from_claim(claim)?, claim)));
    let shared_ids = ids_on_shared_segment(request, state);
    all.filter(|(id, claim)| {
        id.is_vni() == request.uses_vnis
            && request.requested_id.is_none_or(|fixed| fixed == *id)
            && !state.refused_names.contains(&claim.name_any())
            && !state.foreign_ids.contains_key(id)
            && !shared_ids.contains_key(id)
    })
    .min_by_key(|(id, _)| (Some(*id) != request.recorded_id, *id))
}

/// User of a VLAN or VNI that is not free. The text completes a sentence, such as "requests VLAN 7 on trunk, which
/// tenant abc has".
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum IdInUse {
    #[error("tenant {0} has")]
    Tenant(String),
    #[error("tenant {0} released, and which is in quarantine until {1}")]
    Quarantine(String, Timestamp),
    #[error("{0} uses")]
    Foreign(String),
    #[error("another controller has just claimed")]
    Refused,
}

impl IdInUse {
    fn from_claim(claim: &VlanClaim, tenant: String, state: ClaimState<'_>) -> Self {
        match quarantine_end(claim, state.config) {
            Some(until) => Self::Quarantine(tenant, until),
            None => Self::Tenant(tenant),
        }
    }
}

/// Returns the VLANs and VNIs of other tenants on the other networks that may share a segment with this network.
fn ids_on_shared_segment(
    request: IdRequest<'_>,
    state: ClaimState<'_>,
) -> BTreeMap<NetworkId, IdInUse> {
    let mut all = BTreeMap::new();
    for claim in state.claims.iter().map(Arc::as_ref) {
        let VlanClaimSpec { network, tenant, tenant_uid, .. } = &claim.spec;
        if let Some(id) = NetworkId::from_claim(claim)
            && tenant_uid != request.uid
            && shared_segment::may_share_segment(state.config, network, request.network)
        {
            let tenant = format!("{tenant} (on network {network})");
            all.insert(id, IdInUse::from_claim(claim, tenant, state));
        }
    }
    all
}

fn ids_in_use(request: IdRequest<'_>, state: ClaimState<'_>) -> BTreeMap<NetworkId, IdInUse> {
    let mut all: BTreeMap<NetworkId, IdInUse> = state
        .foreign_ids
        .iter()
        .map(|(id, name)| (*id, IdInUse::Foreign(format!("NetworkAttachmentDefinition {name}"))))
        .collect();
    all.extend(ids_on_shared_segment(request, state));
    for claim in state.claims.iter().map(Arc::as_ref) {
        let Some(id) =
            NetworkId::from_claim(claim).filter(|_| claim.spec.network == request.network)
        else {
            continue;
        };
        all.insert(id, IdInUse::from_claim(claim, claim.spec.tenant.clone(), state));
    }
    let parse_id = |name: &String| {
        let id = name.strip_prefix(request.network)?.strip_prefix('-')?;
        match id.strip_prefix("vni-") {
            Some(vni) => vni.parse().ok().map(NetworkId::Vni),
            None => id.parse().ok().map(NetworkId::Vlan),
        }
    };
    for id in state.refused_names.iter().filter_map(parse_id) {
        all.entry(id).or_insert(IdInUse::Refused);
    }
    all
}

fn exhausted_pool_fault(
    request: IdRequest<'_>,
    pool: &IdPool,
    taken: &BTreeMap<NetworkId, IdInUse>,
    contested: &BTreeMap<VlanId, String>,
) -> Fault {
    let (mut tenants, mut foreign, mut quarantined) = (0_u32, 0_u32, 0_u32);
    let mut first_release: Option<Timestamp> = None;
    let is_contested = |id: &NetworkId| id.vlan().is_some_and(|vlan| contested.contains_key(&vlan));
    for (_, current_use) in taken.iter().filter(|(id, _)| pool.contains(**id) && !is_contested(id))
    {
        match current_use {
            IdInUse::Tenant(_) | IdInUse::Refused => tenants = tenants.saturating_add(1),
            IdInUse::Foreign(_) => foreign = foreign.saturating_add(1),
            IdInUse::Quarantine(_, until) => {
                quarantined = quarantined.saturating_add(1);
                first_release = Some(first_release.map_or(*until, |first| first.min(*until)));
            }
        }
    }
    let quarantine_note =
        first_release.map_or_else(String::new, |until| format!(", the first until {until}"));
    let others: BTreeSet<&str> = contested.values().map(String::as_str).collect();
    let contested_note = if contested.is_empty() {
        String::new()
    } else {
        let others = others.into_iter().collect::<Vec<_>>().join(", ");
        format!(
            ", {} are also in the pools of networks that may share a segment ({others})",
            contested.len()
        )
    };
    let message = format!(
        "network {}: all {} {} of {} are in use: {tenants} by tenants, {quarantined} in \
         quarantine{quarantine_note}, {foreign} by \
         NetworkAttachmentDefinitions of other users{contested_note}; extend {}",
        request.network,
        pool.len(),
        if request.uses_vnis { "VNIs" } else { "VLANs" },
        pool.ranges_text,
        pool.field,
    );
    Fault::new(ConditionReason::PoolExhausted, message)
}

/// Pool of VLANs or VNIs from which the tenants of a network get their numbers.
#[derive(Debug)]
struct IdPool {
    ids: PoolIds,
    ranges_text: String,
    field: &'static str,
}

#[derive(Debug)]
enum PoolIds {
    Vlans(Vec<VlanId>),
    Vnis(berth_api::VniRange),
}

impl IdPool {
    fn for_request(config: &InfraConfigSpec, request: IdRequest<'_>) -> Result<Self, Fault> {
        let none = |field: &str| {
            let network = request.network;
            let message = format!("InfraConfig default: {field} has no pool for network {network}");
            Fault::new(ConditionReason::NoPool, message)
        };
        if request.uses_vnis {
            let field = "spec.vniRange";
            let range = config.vni_range.ok_or_else(|| none(field))?;
            return Ok(Self { ids: PoolIds::Vnis(range), ranges_text: range.to_string(), field });
        }
        let field = "spec.vlanPools";
        let mut ids = BTreeSet::new();
        let mut texts = Vec::new();
        for pool in config.vlan_pools.iter().filter(|pool| pool.network == request.network) {
            for ranges in &pool.ranges {
                ids.extend(ranges.ids().iter().filter(|id| id.is_allowed_for_tenants()));
                texts.push(ranges.ids().to_string());
            }
        }
        if ids.is_empty() {
            return Err(none(field));
        }
        let ids = PoolIds::Vlans(ids.into_iter().collect());
        Ok(Self { ids, ranges_text: texts.join(","), field })
    }

    fn len(&self) -> usize {
        match &self.ids {
            PoolIds::Vlans(ids) => ids.len(),
            PoolIds::Vnis(range) => usize::try_from(range.count()).unwrap_or(usize::MAX),
        }
    }

    fn nth(&self, index: usize) -> Option<NetworkId> {
        match &self.ids {
            PoolIds::Vlans(ids) => ids.get(index).copied().map(NetworkId::Vlan),
            PoolIds::Vnis(range) => {
                u32::try_from(index).ok().and_then(|place| range.get(place)).map(NetworkId::Vni)
            }
        }
    }

    fn contains(&self, id: NetworkId) -> bool {
        match (&self.ids, id) {
            (PoolIds::Vlans(ids), NetworkId::Vlan(id)) => ids.binary_search(&id).is_ok(),
            (PoolIds::Vnis(range), NetworkId::Vni(id)) => range.contains(id),
            _ => false,
        }
    }

    /// Returns all numbers of the pool, starting with the one that the hash of the tenant's name determines. Thus a
    /// tenant that is created again gets the same number as before if it is free, and two tenants that are created at
    /// the same time seldom request the same number.
    fn ids_by_preference(&self, request: IdRequest<'_>) -> impl Iterator<Item = NetworkId> {
        let len = self.len();
        let hash = hash_strings(&[request.tenant, request.network]);
        let count = u64::try_from(len).unwrap_or(u64::MAX).max(1);
        let start = usize::try_from(hash.checked_rem(count).unwrap_or(0)).unwrap_or(0);
        (start..len).chain(0..start.min(len)).filter_map(|place| self.nth(place))
    }
}

/// Returns a hash of a sequence of strings. Different sequences whose concatenation is equal, such as "ab", "c" and
/// "a", "bc", have different hashes.
pub(super) fn hash_strings(parts: &[&str]) -> u64 {
    stable_hash(parts.iter().flat_map(|part| part.bytes().chain([0])))
}

#[cfg(test)]
#[path = "claims_tests.rs"]
mod tests;
