//! Plans the exposure of a tenant: validates its pool of load balancer addresses, and renders the objects of MetalLB and
//! of the cloud controller manager.
//!
//! If a part is invalid, its existing objects stay as they are, so that a mistake does not take addresses from Services.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use berth_api::{
    AddressRange, Advertisement, ConditionReason, Exposure, InfraConfigSpec, LoadBalancers,
    SecretRef, TenantCluster,
};
use kube::ResourceExt as _;

use super::cluster::ClusterFacts;
use super::fault::{Fault, join_names_limited};
use super::kubeconfig_secret::KubeconfigSecret;
use super::objects::cloud_controller_manager::{
    CLOUD_CONTROLLER_MANAGER, cloud_controller_manager_objects,
};
use super::objects::{DesiredObject, ObjectKind, load_balancer_pool_objects};
use super::pool_precedence::{PoolRequest, refusal};
use super::pool_use::PoolUse;

/// Addresses that no Service can have: this network, loopback, link-local, multicast and reserved.
const UNUSABLE_RANGES: [&str; 7] = [
    "0.0.0.0/8",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "224.0.0.0/3",
    "::/127",
    "fe80::/10",
    "ff00::/8",
];

/// Kinds of the objects that [`plan_exposure`] renders.
pub const EXPOSURE_KINDS: [ObjectKind; 6] = [
    ObjectKind::IpAddressPool,
    ObjectKind::L2Advertisement,
    ObjectKind::ServiceAccount,
    ObjectKind::Role,
    ObjectKind::RoleBinding,
    ObjectKind::Deployment,
];

/// Input of [`plan_exposure`].
#[derive(Clone, Copy, Debug)]
pub struct ExposureInput<'a> {
    /// The tenant.
    pub tenant: &'a TenantCluster,
    /// All tenants.
    pub tenants: &'a [Arc<TenantCluster>],
    /// InfraConfig, which applies to all tenants.
    pub config: &'a InfraConfigSpec,
    /// Facts of the infra cluster.
    pub cluster: &'a ClusterFacts,
    /// Pools and Services of all tenants.
    pub pool_use: &'a PoolUse,
}

/// Desired objects for the exposure of a tenant.
#[derive(Clone, Debug, Default)]
pub struct DesiredExposure {
    /// True if the tenant requests an exposure.
    pub is_requested: bool,
    /// Objects to apply.
    pub objects: Vec<DesiredObject>,
    /// Reasons why objects cannot be rendered.
    pub faults: Vec<Fault>,
    /// True if existing objects of MetalLB stay, because the pool is invalid, or in use and no longer requested.
    retains_pool: bool,
    /// True if existing objects of the cloud controller manager stay, because its part of the spec is invalid.
    retains_manager: bool,
}

impl DesiredExposure {
    /// Returns true if an object that Berth created for the tenant is to be deleted.
    #[must_use]
    pub fn is_undesired(&self, kind: ObjectKind, namespace: &str, name: &str) -> bool {
        let is_retained = if kind.is_in_metallb_namespace() {
            self.retains_pool
        } else {
            // Other objects of these kinds belong to the CSI driver.
            self.retains_manager || name != CLOUD_CONTROLLER_MANAGER
        };
        let is_desired = |one: &DesiredObject| {
            let metadata = &one.body["metadata"];
            one.kind == kind && metadata["name"] == name && metadata["namespace"] == namespace
        };
        !is_retained && !self.objects.iter().any(is_desired)
    }
}

/// Plans the exposure of a tenant.
#[must_use]
pub fn plan_exposure(input: ExposureInput<'_>) -> DesiredExposure {
    let tenant = input.tenant;
    let exposure = tenant.spec.exposure.as_ref();
    let is_requested = exposure.is_some();
    let mut desired = DesiredExposure { is_requested, ..DesiredExposure::default() };
    plan_pool(input, exposure.and_then(|one| one.load_balancers.as_ref()), &mut desired);
    let Some(exposure) = exposure else { return desired };
    match manager_objects(tenant, exposure) {
        Ok(objects) => desired.objects.extend(objects),
        Err(fault) => {
            desired.faults.push(fault);
            desired.retains_manager = true;
        }
    }
    desired
}

/// Plans the pool. Addresses that Services have stay in it, also if they are no longer requested: see
/// [`super::pool_use`]. They are single addresses, so that no further Service gets an address of a removed range.
fn plan_pool(
    input: ExposureInput<'_>,
    requested: Option<&LoadBalancers>,
    desired: &mut DesiredExposure,
) {
    let ExposureInput { tenant, config, pool_use, .. } = input;
    if let Some(fault) = requested.and_then(|requested| check_pool(input, requested).err()) {
        desired.faults.push(fault);
        desired.retains_pool = true;
        return;
    }
    let ranges = requested.map(|requested| requested.addresses.as_slice()).unwrap_or_default();
    let kept = pool_use.kept(&tenant.name_any(), ranges);
    let mut pool = requested.cloned();
    if !kept.is_empty() {
        // Without a request, the existing advertisement stays as it is.
        desired.retains_pool = requested.is_none();
        let pool = pool.get_or_insert_with(|| LoadBalancers {
            advertise: Some(Advertisement::None),
            auto_assign: Some(false),
            ..LoadBalancers::default()
        });
        let addresses: BTreeSet<IpAddr> = kept.iter().map(|used| used.address).collect();
        pool.addresses.extend(
            addresses.into_iter().filter_map(|address| AddressRange::new(address, address)),
        );
        let names: Vec<String> = kept.into_iter().map(ToString::to_string).collect();
        let message = format!(
            "spec.exposure.loadBalancers.addresses no longer contains addresses of {}; they stay in the pool, because \
             MetalLB would refuse all changes of its pools: delete these Services, or add the addresses again",
            join_names_limited(&names)
        );
        desired.faults.push(Fault::new(ConditionReason::LoadBalancerAddressesInUse, message));
    }
    let objects = pool.iter().flat_map(|pool| load_balancer_pool_objects(tenant, pool, config));
    desired.objects.extend(objects);
}

fn manager_objects(
    tenant: &TenantCluster,
    exposure: &Exposure,
) -> Result<Vec<DesiredObject>, Fault> {
    let Some(requested) = &exposure.cloud_controller_manager else { return Ok(Vec::new()) };
    let id = tenant.name_any();
    let resolve = |reference: &SecretRef| KubeconfigSecret::resolve(&id, reference);
    match tenant.spec.kubeconfig_secret_ref.as_ref().map(resolve) {
        Some(kubeconfig) if kubeconfig.is_own() => {
            Ok(cloud_controller_manager_objects(&id, requested, &kubeconfig))
        }
        other => {
            let namespace = TenantCluster::namespace_of(&id);
            let problem = other.map_or_else(
                || "is missing".to_owned(),
                |one| format!("refers to Secret {}/{}", one.namespace, one.name),
            );
            let message = format!(
                "spec.kubeconfigSecretRef: {problem}, but spec.exposure.cloudControllerManager mounts a Secret of \
                 namespace {namespace}; copy the kubeconfig to this namespace and refer to it"
            );
            Err(Fault::new(ConditionReason::InvalidExposure, message))
        }
    }
}

/// Checks the pool of a tenant.
///
/// # Errors
/// Returns a fault if an address cannot be used, or belongs to the infra cluster or to the pool of another tenant.
fn check_pool(input: ExposureInput<'_>, requested: &LoadBalancers) -> Result<(), Fault> {
    let addresses = &requested.addresses;
    let field = "spec.exposure.loadBalancers.addresses";
    if let Some(problem) = pool_problem(addresses, input.cluster) {
        let separator = if problem.starts_with('[') { "" } else { " " };
        let message = format!("{field}{separator}{problem}");
        return Err(Fault::new(ConditionReason::InvalidExposure, message));
    }
    let refusals = refusals(input, addresses);
    if refusals.is_empty() {
        return check_kept_by_others(input, addresses);
    }
    let message = format!(
        "{field}: {}; TenantCluster {} keeps its previous pool until they are disjoint",
        join_names_limited(&refusals),
        input.tenant.name_any()
    );
    Err(Fault::new(ConditionReason::LoadBalancerPoolsOverlap, message))
}

/// Returns the problem of a pool without regard to other tenants.
fn pool_problem(addresses: &[AddressRange], cluster: &ClusterFacts) -> Option<String> {
    if addresses.is_empty() {
        return Some("has no entry; list the addresses of the tenant's load balancers".to_owned());
    }
    addresses.iter().enumerate().find_map(|(index, range)| {
        let earlier = addresses.get(..index).unwrap_or_default();
        unusable_reason(*range, earlier, cluster).map(|why| format!("[{index}]: `{range}` {why}"))
    })
}

/// Returns the reasons why other tenants have addresses of the pool.
fn refusals(input: ExposureInput<'_>, addresses: &[AddressRange]) -> Vec<String> {
    let ExposureInput { tenant, tenants, cluster, pool_use, .. } = input;
    let own_name = tenant.name_any();
    let applied: BTreeSet<&str> = pool_use.overlapping_tenants(addresses).collect();
    let others = tenants.iter().filter(|other| other.name_any() != own_name);
    let candidates = others.filter_map(|other| {
        let pool = other.spec.exposure.as_ref()?.load_balancers.as_ref()?;
        let mut requested = pool.addresses.iter();
        let is_shared = |range: &AddressRange| addresses.iter().any(|own| own.overlaps(*range));
        let is_candidate = requested.any(is_shared) || applied.contains(other.name_any().as_str());
        is_candidate.then_some((other, pool))
    });
    let own = PoolRequest { tenant, ranges: addresses };
    let of_other = candidates.filter_map(|(other, pool)| {
        // The problem is computed for few tenants only: it compares the pool with all Nodes. A pool with a problem is
        // not applied, so its tenant keeps the previous one.
        let is_invalid = pool_problem(&pool.addresses, cluster).is_some();
        let requested = PoolRequest { tenant: other, ranges: &pool.addresses };
        let refused = if is_invalid { None } else { refusal(own, requested, pool_use) };
        refused.or_else(|| {
            let name = other.name_any();
            let input = ExposureInput { tenant: other, ..input };
            let keeps_previous = is_invalid
                || applied.contains(name.as_str()) && may_be_refused(input, &pool.addresses);
            if !keeps_previous {
                return None;
            }
            let ranges: Vec<AddressRange> = pool_use.applied_ranges(&name).collect();
            refusal(own, PoolRequest { tenant: other, ranges: &ranges }, pool_use)
        })
    });
    of_other.collect()
}

/// Returns true if a tenant may have to keep its previous pool because of other tenants. If it is true although nothing
/// prevents the change, another tenant only waits until the pool has changed.
fn may_be_refused(input: ExposureInput<'_>, addresses: &[AddressRange]) -> bool {
    let ExposureInput { tenant, tenants, pool_use, .. } = input;
    let name = tenant.name_any();
    let own = PoolRequest { tenant, ranges: addresses };
    let mut others = tenants.iter().filter(|other| other.name_any() != name);
    let is_refused = others.any(|other| {
        let pool = other.spec.exposure.as_ref().and_then(|one| one.load_balancers.as_ref());
        let requested = pool.map(|pool| pool.addresses.as_slice()).unwrap_or_default();
        let other_name = other.name_any();
        let applied: Vec<AddressRange> = pool_use.applied_ranges(&other_name).collect();
        let mut both = [requested, applied.as_slice()].into_iter();
        both.any(|ranges| refusal(own, PoolRequest { tenant: other, ranges }, pool_use).is_some())
    });
    is_refused || check_kept_by_others(input, addresses).is_err()
}

/// Returns a fault if Services of other tenants still have addresses of the pool, which are therefore in their pools.
fn check_kept_by_others(input: ExposureInput<'_>, addresses: &[AddressRange]) -> Result<(), Fault> {
    let ExposureInput { tenant, tenants, pool_use, .. } = input;
    let own = tenant.name_any();
    let is_wanted = |address: IpAddr| addresses.iter().any(|range| range.contains(address));
    let candidates = pool_use.addresses.iter();
    let others = candidates.filter(|used| used.tenant != own && is_wanted(used.address));
    let kept = others.filter(|used| {
        let owner = tenants.iter().find(|one| one.name_any() == used.tenant);
        let pool = owner.and_then(|one| one.spec.exposure.as_ref()?.load_balancers.as_ref());
        pool_use.is_kept(used, pool.map(|pool| pool.addresses.as_slice()).unwrap_or_default())
    });
    let names: Vec<String> = kept.map(ToString::to_string).collect();
    if names.is_empty() {
        return Ok(());
    }
    let message = format!(
        "spec.exposure.loadBalancers.addresses contains addresses that other tenants still use: {}; delete these \
         Services, or choose other addresses",
        join_names_limited(&names)
    );
    Err(Fault::new(ConditionReason::LoadBalancerAddressesInUse, message))
}

/// Returns the reason why a range cannot be in a pool; `None` if there is no such reason. `earlier` are the ranges before
/// it in the same pool.
fn unusable_reason(
    range: AddressRange,
    earlier: &[AddressRange],
    cluster: &ClusterFacts,
) -> Option<String> {
    let parsed = UNUSABLE_RANGES.iter().filter_map(|text| text.parse::<AddressRange>().ok());
    let mut unusable = parsed.filter(|unusable| unusable.overlaps(range));
    if let Some(unusable) = unusable.next() {
        return Some(format!("contains addresses of {unusable}, which no Service can have"));
    }
    if let Some(other) = earlier.iter().find(|other| other.overlaps(range)) {
        return Some(format!("overlaps `{other}` of the same pool; merge them"));
    }
    let servers = cluster.api_server.iter().flatten();
    let own: BTreeSet<IpAddr> = cluster.nodes.iter().chain(servers).copied().collect();
    if let Some(address) = own.iter().find(|address| range.contains(**address)) {
        return Some(format!(
            "contains {address} of a Node or the API server of the infra cluster; exclude it"
        ));
    }
    let mut networks = cluster.networks.iter();
    let network = networks.find(|network| AddressRange::from(**network).overlaps(range))?;
    Some(format!("overlaps {network}, a network of pods or Services; choose other addresses"))
}

#[cfg(test)]
#[path = "exposure_tests.rs"]
mod tests;
