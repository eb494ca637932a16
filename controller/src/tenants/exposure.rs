//! Plans the exposure of a tenant: validates its pool of load balancer addresses, and renders the objects of MetalLB and
//! of the cloud controller manager.
//!
//! If a part is invalid, its existing objects stay as they are, so that a mistake does not take addresses from Services.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use berth_api::{
    AddressRange, ConditionReason, Exposure, InfraConfigSpec, LoadBalancers, SecretRef,
    TenantCluster,
};
use kube::ResourceExt as _;

use super::cluster::ClusterFacts;
use super::fault::{Fault, join_names_limited};
use super::kubeconfig_secret::KubeconfigSecret;
use super::objects::cloud_controller_manager::{
    CLOUD_CONTROLLER_MANAGER, cloud_controller_manager_objects,
};
use super::objects::{DesiredObject, ObjectKind, load_balancer_pool_objects};

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
    /// True if existing objects of MetalLB stay, because the pool is invalid.
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
    let ExposureInput { tenant, config, .. } = input;
    let Some(exposure) = &tenant.spec.exposure else { return DesiredExposure::default() };
    let mut desired = DesiredExposure { is_requested: true, ..DesiredExposure::default() };
    if let Some(requested) = &exposure.load_balancers {
        match check_pool(input, requested) {
            Ok(()) => {
                desired.objects.extend(load_balancer_pool_objects(tenant, requested, config));
            }
            Err(fault) => {
                desired.faults.push(fault);
                desired.retains_pool = true;
            }
        }
    }
    match manager_objects(tenant, exposure) {
        Ok(objects) => desired.objects.extend(objects),
        Err(fault) => {
            desired.faults.push(fault);
            desired.retains_manager = true;
        }
    }
    desired
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
    let ExposureInput { tenant, tenants, cluster, .. } = input;
    let addresses = &requested.addresses;
    let problem = if addresses.is_empty() {
        Some("has no entry; list the addresses of the tenant's load balancers".to_owned())
    } else {
        addresses.iter().enumerate().find_map(|(index, range)| {
            let earlier = addresses.get(..index).unwrap_or_default();
            unusable_reason(*range, earlier, cluster)
                .map(|why| format!("[{index}]: `{range}` {why}"))
        })
    };
    let field = "spec.exposure.loadBalancers.addresses";
    if let Some(problem) = problem {
        let separator = if problem.starts_with('[') { "" } else { " " };
        let message = format!("{field}{separator}{problem}");
        return Err(Fault::new(ConditionReason::InvalidExposure, message));
    }
    let overlaps: Vec<String> = tenants
        .iter()
        .filter(|other| other.name_any() != tenant.name_any())
        .filter_map(|other| overlapping_ranges(addresses, other))
        .collect();
    if overlaps.is_empty() {
        return Ok(());
    }
    let message = format!(
        "{field}: {}; Berth changes neither pool until they are disjoint",
        join_names_limited(&overlaps)
    );
    Err(Fault::new(ConditionReason::LoadBalancerPoolsOverlap, message))
}

fn overlapping_ranges(addresses: &[AddressRange], other: &TenantCluster) -> Option<String> {
    let pool = other.spec.exposure.as_ref()?.load_balancers.as_ref()?;
    let mut pairs = addresses.iter().flat_map(|own| pool.addresses.iter().map(move |it| (own, it)));
    let (own, theirs) = pairs.find(|(own, theirs)| own.overlaps(**theirs))?;
    Some(format!("`{own}` overlaps `{theirs}` of TenantCluster {}", other.name_any()))
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
