//! The part of an InfraNode's spec that the controller applies: the fields of the profile, the tenant networks of the
//! host, and its tunnel endpoints, without the fields that another manager owns with a different value.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::infra_node::{NetworkScenario, NetworkSpec};
use berth_api::names::{CLASS_LABEL, CONTROLLER_FIELD_MANAGER, PROFILE_LABEL};
use berth_api::{Class, HostProfile, InfraNode, InfraNodeSpec, TenantCluster};
use serde_json::Value;

use super::resolved::{ResolvedProfiles, profile_name};
use super::selection::Selection;
use super::tenant_networks::{add_unknown_tenants, tenant_networks};
use crate::managed_fields::{fields_applied_by, other_field_owners};

/// Fields of which only one of several alternative subfields may be set.
const EXCLUSIVE_FIELDS: [&str; 2] = ["reserved", "uplink"];

/// Desired state of an InfraNode.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DesiredInfraNode {
    /// Fields of the spec that the controller applies.
    pub spec: Value,
    /// True if applying `spec` would change the InfraNode.
    pub is_different: bool,
    /// Fields of the profile that another manager owns with a different value, each with the manager.
    pub overridden: BTreeMap<String, String>,
    /// Parts of the profile that cannot be applied, each with the reason.
    pub incomplete: Vec<String>,
}

/// Returns the desired state of an InfraNode whose Node has these labels; `None` if no profile selects the Node now,
/// and none selected it before.
///
/// When no profile or several profiles select the Node, the InfraNode keeps its spec, except for tenant networks: if
/// the VLAN of a removed tenant remained on the host, the host would connect that tenant's VMs to the next tenant
/// that gets the VLAN. `unknown_tenants` are the names of the tenants whose TenantClusters could not be parsed since
/// the controller started: the host keeps their networks.
#[must_use]
pub fn desired_infra_node(
    resolved: &ResolvedProfiles,
    labels: &BTreeMap<String, String>,
    infra_node: &InfraNode,
    tenants: &[Arc<TenantCluster>],
    unknown_tenants: &BTreeSet<String>,
) -> Option<DesiredInfraNode> {
    let host = infra_node.metadata.name.as_deref().unwrap_or_default();
    let entries = infra_node.metadata.managed_fields.as_deref().unwrap_or_default();
    let ours = fields_applied_by(entries, CONTROLLER_FIELD_MANAGER, "spec");
    let live = serde_json::to_value(&infra_node.spec).unwrap_or_default();
    let mut incomplete = Vec::new();
    let (mut spec, networks) = match resolved.selection(host) {
        Selection::One(profile) => profile_spec(profile, resolved, host, &mut incomplete),
        Selection::None | Selection::Tie(_) if ours.is_empty() => return None,
        Selection::None | Selection::Tie(_) => {
            spec_with_refreshed_peers(ours.extract(&live), &infra_node.spec, resolved, host)
        }
    };
    let mut tenants = tenant_networks(tenants, labels, &networks);
    add_unknown_tenants(&mut tenants, unknown_tenants, &infra_node.spec.tenant_networks, &networks);
    if let Some(fields) = spec.as_object_mut() {
        fields.remove("tenantNetworks");
        if !tenants.is_empty() {
            let tenants = serde_json::to_value(tenants).unwrap_or_default();
            fields.insert("tenantNetworks".to_owned(), tenants);
        }
    }
    let mut overridden = BTreeMap::new();
    for other in other_field_owners(entries, CONTROLLER_FIELD_MANAGER, "spec") {
        for path in other.remove_owned(&mut spec, &live, &EXCLUSIVE_FIELDS) {
            overridden.insert(path, other.manager.clone());
        }
    }
    let differs = ours.differs(&spec, &live);
    Some(DesiredInfraNode { spec, is_different: differs, overridden, incomplete })
}

/// Scenario of each host network, by the name of the network.
type NetworkScenarios = BTreeMap<String, NetworkScenario>;

fn profile_spec(
    profile: &HostProfile,
    resolved: &ResolvedProfiles,
    host: &str,
    incomplete: &mut Vec<String>,
) -> (Value, NetworkScenarios) {
    let profile_spec = &profile.spec;
    let mut resolve = |network: &NetworkSpec| {
        let mut network = network.clone();
        if let Some(vxlan) =
            network.vxlan.as_mut().filter(|_| network.scenario == NetworkScenario::Vxlan)
        {
            let (own, others) = resolved.tunnel_endpoints(&network.name, host);
            let Some(own) = own else {
                incomplete.push(missing_address_message(&network));
                return None;
            };
            vxlan.local_address = own;
            // The peers in the profile are hosts outside this cluster.
            let peers: BTreeSet<_> = vxlan.peers.iter().copied().chain(others).collect();
            vxlan.peers = peers.into_iter().filter(|one| *one != own).collect();
        }
        Some(network)
    };
    let networks: Vec<NetworkSpec> =
        profile_spec.networks.iter().filter_map(&mut resolve).collect();
    let scenarios = networks.iter().map(|network| (network.name.clone(), network.scenario));
    let scenarios = scenarios.collect();
    let spec = InfraNodeSpec {
        profile: Some(profile_name(profile)),
        cpu: profile_spec.cpu.clone(),
        hugepages: profile_spec.hugepages.clone(),
        ksm: profile_spec.ksm.clone(),
        transparent_hugepages: profile_spec.transparent_hugepages,
        devices: profile_spec.devices.clone(),
        networks,
        ..InfraNodeSpec::default()
    };
    (serde_json::to_value(spec).unwrap_or_default(), scenarios)
}

fn missing_address_message(network: &NetworkSpec) -> String {
    let configured = network.vxlan_settings().map(|vxlan| vxlan.local_address.to_string());
    let problem = match &network.uplink {
        Some(_) => "the uplink has no address of this family",
        None => "the Node has no InternalIP of this family",
    };
    let name = &network.name;
    let configured = configured.unwrap_or_default();
    format!(
        "networks[{name}]: vxlan.localAddress {configured} stands for an address of the host, but \
         {problem}"
    )
}

/// Returns the current spec of a host to which no profile applies, with the current tunnel endpoints of the other
/// hosts as peers.
fn spec_with_refreshed_peers(
    mut spec: Value,
    live: &InfraNodeSpec,
    resolved: &ResolvedProfiles,
    host: &str,
) -> (Value, NetworkScenarios) {
    let mut networks = NetworkScenarios::new();
    for network in spec.get_mut("networks").and_then(Value::as_array_mut).into_iter().flatten() {
        let name = network.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
        let Some(live_network) = live.networks.iter().find(|one| one.name == name) else {
            continue;
        };
        if let Some(peers) = network.pointer_mut("/vxlan/peers") {
            let (_, others) = resolved.tunnel_endpoints(&name, host);
            let known = live_network.vxlan.iter().flat_map(|vxlan| &vxlan.peers);
            // If no other host's endpoint is known, which may be temporary, the current peers remain.
            let endpoints = if others.is_empty() { known.copied().collect() } else { others };
            *peers = serde_json::to_value(endpoints).unwrap_or_default();
        }
        networks.insert(name, live_network.scenario);
    }
    (spec, networks)
}

/// Returns the labels that a profile sets on its Nodes.
#[must_use]
pub fn profile_labels(profile: &HostProfile) -> BTreeMap<String, String> {
    let class = match profile.spec.class {
        Class::Performance => "Performance",
        Class::Density => "Density",
        Class::Standard => "Standard",
    };
    let mut labels = BTreeMap::from([(CLASS_LABEL.to_owned(), class.to_owned())]);
    // The label with the profile's name is left out if the name is too long: a label value has at most 63 bytes, and
    // a name at most 253 bytes.
    let name = profile_name(profile);
    if (1..=63).contains(&name.len()) {
        labels.insert(PROFILE_LABEL.to_owned(), name);
    }
    labels
}

#[cfg(test)]
#[path = "spec_tests.rs"]
mod tests;
