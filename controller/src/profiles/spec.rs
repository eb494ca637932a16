//! The part of an InfraNode's spec that the controller writes: what the profile says, the tenants that the host carries,
//! and the ends of its tunnels; without what somebody else has written there otherwise.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::infra_node::{NetworkScenario, NetworkSpec};
use berth_api::names::{CLASS_LABEL, CONTROLLER, PROFILE_LABEL};
use berth_api::{Class, HostProfile, InfraNode, InfraNodeSpec, TenantCluster};
use serde_json::Value;

use super::carried::carried;
use super::choice::Choice;
use super::fleet::{Fleet, name_of};
use crate::fields::{applied_by, held_by_others};

/// Fields of which only one of several below them may be set.
const UNITS: [&str; 2] = ["reserved", "uplink"];

/// What an InfraNode is to be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The spec as far as it is ours to write.
    pub spec: Value,
    /// Whether it is to be written.
    pub differs: bool,
    /// Fields that others hold with another value, and who.
    pub overridden: BTreeMap<String, String>,
    /// Parts of the profile that cannot be followed, and why.
    pub incomplete: Vec<String>,
}

/// What the InfraNode of a Node with these labels is to be; `None` if it is none of our business: no profile selects it,
/// and none did before.
///
/// Once no profile selects it any more, or several do, it keeps what it got. Its tenants go on as they come and go: a
/// VLAN that stayed on such a host would be there still when another tenant gets it.
#[must_use]
pub fn wanted(
    fleet: &Fleet,
    labels: &BTreeMap<String, String>,
    infra_node: &InfraNode,
    tenants: &[Arc<TenantCluster>],
) -> Option<Wanted> {
    let host = infra_node.metadata.name.as_deref().unwrap_or_default();
    let entries = infra_node.metadata.managed_fields.as_deref().unwrap_or_default();
    let ours = applied_by(entries, CONTROLLER, "spec");
    let live = serde_json::to_value(&infra_node.spec).unwrap_or_default();
    let mut incomplete = Vec::new();
    let (mut spec, networks) = match fleet.choice(host) {
        Choice::One(profile) => of_profile(profile, fleet, host, &mut incomplete),
        Choice::None | Choice::Tie(_) if ours.is_empty() => return None,
        Choice::None | Choice::Tie(_) => {
            as_it_is(ours.part_of(&live), &infra_node.spec, fleet, host)
        }
    };
    let tenants = carried(tenants, labels, &networks);
    if let Some(fields) = spec.as_object_mut() {
        fields.remove("tenantNetworks");
        if !tenants.is_empty() {
            let tenants = serde_json::to_value(tenants).unwrap_or_default();
            fields.insert("tenantNetworks".to_owned(), tenants);
        }
    }
    let mut overridden = BTreeMap::new();
    for other in held_by_others(entries, CONTROLLER, "spec") {
        for path in other.keep_from(&mut spec, &live, &UNITS) {
            overridden.insert(path, other.manager.clone());
        }
    }
    let differs = ours.differs(&spec, &live);
    Some(Wanted { spec, differs, overridden, incomplete })
}

/// Host networks by name.
type Networks = BTreeMap<String, NetworkScenario>;

fn of_profile(
    profile: &HostProfile,
    fleet: &Fleet,
    host: &str,
    incomplete: &mut Vec<String>,
) -> (Value, Networks) {
    let of = &profile.spec;
    let mut resolve = |network: &NetworkSpec| {
        let mut network = network.clone();
        if let Some(vxlan) =
            network.vxlan.as_mut().filter(|_| network.scenario == NetworkScenario::Vxlan)
        {
            let (own, others) = fleet.ends(&network.name, host);
            let Some(own) = own else {
                incomplete.push(no_address(&network));
                return None;
            };
            vxlan.local_address = own;
            // Ends that the profile names are hosts that are not of this cluster.
            let named: BTreeSet<_> = vxlan.peers.iter().copied().chain(others).collect();
            vxlan.peers = named.into_iter().filter(|one| *one != own).collect();
        }
        Some(network)
    };
    let networks: Vec<NetworkSpec> = of.networks.iter().filter_map(&mut resolve).collect();
    let scenarios = networks.iter().map(|network| (network.name.clone(), network.scenario));
    let scenarios = scenarios.collect();
    let spec = InfraNodeSpec {
        profile: Some(name_of(profile)),
        cpu: of.cpu.clone(),
        hugepages: of.hugepages.clone(),
        ksm: of.ksm.clone(),
        transparent_hugepages: of.transparent_hugepages,
        networks,
        ..InfraNodeSpec::default()
    };
    (serde_json::to_value(spec).unwrap_or_default(), scenarios)
}

fn no_address(network: &NetworkSpec) -> String {
    let asked = network.tunnels().map(|vxlan| vxlan.local_address.to_string());
    let whose = match &network.uplink {
        Some(_) => "its uplink reports no address of that kind",
        None => "its Node has no InternalIP of that kind",
    };
    let name = &network.name;
    let asked = asked.unwrap_or_default();
    format!("networks[{name}]: vxlan.localAddress {asked} asks for the host's own, but {whose}")
}

/// What a host keeps that no profile speaks for; only other hosts' addresses follow.
fn as_it_is(mut spec: Value, live: &InfraNodeSpec, fleet: &Fleet, host: &str) -> (Value, Networks) {
    let mut networks = Networks::new();
    for network in spec.get_mut("networks").and_then(Value::as_array_mut).into_iter().flatten() {
        let name = network.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
        let Some(there) = live.networks.iter().find(|one| one.name == name) else { continue };
        if let Some(peers) = network.pointer_mut("/vxlan/peers") {
            let (_, others) = fleet.ends(&name, host);
            let known = there.vxlan.iter().flat_map(|vxlan| &vxlan.peers);
            // A host that is away for a moment is no reason to cut anything off here.
            let ends = if others.is_empty() { known.copied().collect() } else { others };
            *peers = serde_json::to_value(ends).unwrap_or_default();
        }
        networks.insert(name, there.scenario);
    }
    (spec, networks)
}

/// Labels of a Node whose profile is this one.
#[must_use]
pub fn labels(profile: &HostProfile) -> BTreeMap<String, String> {
    let class = match profile.spec.class {
        Class::Performance => "Performance",
        Class::Density => "Density",
        Class::Standard => "Standard",
    };
    let mut labels = BTreeMap::from([(CLASS_LABEL.to_owned(), class.to_owned())]);
    // A label holds 63 bytes, a name 253.
    let name = name_of(profile);
    if (1..=63).contains(&name.len()) {
        labels.insert(PROFILE_LABEL.to_owned(), name);
    }
    labels
}

#[cfg(test)]
#[path = "spec_tests.rs"]
mod tests;
