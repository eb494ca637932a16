//! Plans the exposure of a tenant's Services: validates the requested load balancer addresses, and renders the objects
//! of MetalLB and of the tenant's cloud controller manager.
//!
//! If a part of the spec is invalid, the existing objects of this part are not changed, so that a mistake takes no
//! addresses from Services.

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
use super::pool_acceptance::{PoolDecision, PoolState, decide};
use super::pool_precedence::PoolRequest;
use super::pool_use::PoolUse;

/// Ranges that no Service can use: "this network" (0.0.0.0/8), loopback, link-local, multicast and reserved addresses.
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
    pub tenant: &'a TenantCluster,
    pub tenants: &'a [Arc<TenantCluster>],
    /// InfraConfig, which applies to all tenants.
    pub config: &'a InfraConfigSpec,
    /// Facts of the infra cluster.
    pub cluster: &'a ClusterFacts,
    /// Address pools of all tenants, and addresses of their Services.
    pub pool_use: &'a PoolUse,
}

/// Desired objects that expose a tenant's Services.
#[derive(Clone, Debug, Default)]
pub struct DesiredExposure {
    /// True if the tenant's spec requests an exposure.
    pub is_requested: bool,
    /// Objects to apply.
    pub objects: Vec<DesiredObject>,
    /// Reasons why objects cannot be rendered.
    pub faults: Vec<Fault>,
    /// True if existing objects of MetalLB must not be deleted: the requested pool is invalid, or the pool is no longer
    /// requested, but still in use.
    retains_pool: bool,
    /// True if existing objects of the cloud controller manager must not be deleted, because its part of the spec is
    /// invalid.
    retains_manager: bool,
}

impl DesiredExposure {
    /// Returns true if an object that Berth created for the tenant must be deleted.
    #[must_use]
    pub fn is_undesired(&self, kind: ObjectKind, namespace: &str, name: &str) -> bool {
        let is_retained = if kind.is_in_metallb_namespace() {
            self.retains_pool
        } else {
            // All other objects of these kinds belong to the tenant's CSI driver.
            self.retains_manager || name != CLOUD_CONTROLLER_MANAGER
        };
        let is_desired = |one: &DesiredObject| {
            let metadata = &one.body["metadata"];
            one.kind == kind && metadata["name"] == name && metadata["namespace"] == namespace
        };
        !is_retained && !self.objects.iter().any(is_desired)
    }
}

/// Plans the exposure of a tenant's Services.
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

/// Plans the address pool. Addresses that Services use stay in the pool, even if they are no longer requested: see
/// [`super::pool_use`]. Such addresses are added as single addresses, so that no other Service gets an address from a
/// removed range.
fn plan_pool(
    input: ExposureInput<'_>,
    requested: Option<&LoadBalancers>,
    desired: &mut DesiredExposure,
) {
    let ExposureInput { tenant, config, pool_use, .. } = input;
    if let Some(Err(fault)) = requested.map(|requested| check_pool(input, requested)) {
        desired.faults.push(fault);
        desired.retains_pool = true;
        return;
    }
    let ranges = requested.map(|requested| requested.addresses.as_slice()).unwrap_or_default();
    let kept = pool_use.kept_addresses(&tenant.name_any(), ranges);
    let mut pool = requested.cloned();
    if !kept.is_empty() {
        // If the tenant requests no pool any more, the existing L2Advertisement is not changed.
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

/// Checks whether the requested pool of a tenant can be applied now.
///
/// # Errors
/// Returns a fault if an address cannot be used, or belongs to the infra cluster or to the pool of another tenant.
fn check_pool(input: ExposureInput<'_>, requested: &LoadBalancers) -> Result<(), Fault> {
    let ExposureInput { tenant, tenants, pool_use, cluster, .. } = input;
    let addresses = &requested.addresses;
    let field = "spec.exposure.loadBalancers.addresses";
    if let Some(problem) = pool_problem(addresses, cluster) {
        let separator = if problem.starts_with('[') { "" } else { " " };
        let message = format!("{field}{separator}{problem}");
        return Err(Fault::new(ConditionReason::InvalidExposure, message));
    }
    check_addresses_of_other_tenants(input, addresses)?;
    let may_apply = |request: PoolRequest<'_>| {
        let of_other = ExposureInput { tenant: request.tenant, ..input };
        pool_problem(request.ranges, cluster).is_none()
            && check_addresses_of_other_tenants(of_other, request.ranges).is_ok()
    };
    let state = PoolState { tenants, pool_use, may_apply: &may_apply };
    let reason = ConditionReason::LoadBalancerPoolsOverlap;
    let name = tenant.name_any();
    match decide(PoolRequest { tenant, ranges: addresses }, state) {
        PoolDecision::Accepted => Ok(()),
        PoolDecision::Waits(others) => {
            let message = format!(
                "{field} contains addresses that the pools of these TenantClusters still have: {}; TenantCluster \
                 {name} keeps its previous pool until their pools have changed",
                join_names_limited(&others)
            );
            Err(Fault::new(reason, message))
        }
        PoolDecision::Refused(reasons) => {
            let message = format!(
                "{field}: {}; TenantCluster {name} keeps its previous pool until they are disjoint",
                join_names_limited(&reasons)
            );
            Err(Fault::new(reason, message))
        }
    }
}

/// Returns the first problem of a pool that does not depend on other tenants.
fn pool_problem(addresses: &[AddressRange], cluster: &ClusterFacts) -> Option<String> {
    if addresses.is_empty() {
        return Some("has no entry; list the addresses of the tenant's load balancers".to_owned());
    }
    addresses.iter().enumerate().find_map(|(index, range)| {
        let earlier = addresses.get(..index).unwrap_or_default();
        unusable_reason(*range, earlier, cluster).map(|why| format!("[{index}]: `{range}` {why}"))
    })
}

/// Returns a fault if Services of other tenants still have addresses in `addresses`, so that these addresses stay in
/// the pools of the other tenants.
fn check_addresses_of_other_tenants(
    input: ExposureInput<'_>,
    addresses: &[AddressRange],
) -> Result<(), Fault> {
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

/// Returns the reason why a range cannot be in a pool; `None` if it can. `earlier` contains the ranges before it in the
/// same pool.
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
    let own = cluster.node_addresses.iter().chain(servers);
    if let Some(address) = own.filter(|address| range.contains(**address)).min() {
        return Some(format!(
            "contains {address}, the address of a Node or of the API server of the infra cluster; exclude it"
        ));
    }
    let mut networks = cluster.networks.iter();
    let network = networks.find(|network| AddressRange::from(**network).overlaps(range))?;
    Some(format!("overlaps {network}, a network of pods or Services; choose other addresses"))
}

#[cfg(test)]
#[path = "exposure_tests.rs"]
mod tests;
