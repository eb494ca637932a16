//! Properties of a host network, derived from the hosts that have the network. The properties must be equal on all
//! hosts of a tenant.

use std::sync::Arc;

use berth_api::infra_node::NetworkScenario;
use berth_api::{ConditionReason, LinkName, TenantCluster};

use super::fault::{Fault, join_names_limited};
use super::hosts::TenantHostState;
use super::network_id::NetworkId;

/// Properties of a host network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostNetwork {
    pub name: String,
    /// Scenario of the host network, which determines how tenants are separated.
    pub scenario: NetworkScenario,
    /// The bridge that all tenants share (scenario `VlanAwareBridge`).
    pub shared_bridge: Option<LinkName>,
    /// Prefix of the names of single-tenant bridges (scenarios `BridgePerTenant` and `Vxlan`).
    pub bridge_prefix: Option<String>,
    /// Smallest MTU of all hosts; `None` if no report contains an MTU.
    pub mtu: Option<u32>,
}

impl HostNetwork {
    /// Returns true if tenants are separated by VNIs instead of VLANs.
    #[must_use]
    pub fn uses_vnis(&self) -> bool {
        self.scenario == NetworkScenario::Vxlan
    }

    /// Returns the name of a tenant's bridge on hosts; `None` if the scenario has no bridges. Agents use the same rule.
    #[must_use]
    pub fn tenant_bridge_name(&self, id: NetworkId) -> Option<String> {
        let own = || Some(format!("{}{}", self.bridge_prefix.as_ref()?, id.number()));
        self.shared_bridge.as_ref().map(ToString::to_string).or_else(own)
    }

    /// Returns a network with default bridge names.
    #[cfg(test)]
    pub(super) fn for_tests(scenario: NetworkScenario) -> Self {
        let has_shared_bridge = scenario == NetworkScenario::VlanAwareBridge;
        let has_own_bridge =
            [NetworkScenario::BridgePerTenant, NetworkScenario::Vxlan].contains(&scenario);
        Self {
            name: "trunk".to_owned(),
            scenario,
            shared_bridge: has_shared_bridge.then(|| "br-trunk".parse().unwrap()),
            bridge_prefix: has_own_bridge.then(|| "tn".to_owned()),
            mtu: Some(1500),
        }
    }
}

/// Returns the host network that a TenantCluster names in `spec.network`; `None` if it has no `spec.network`.
///
/// # Errors
/// Returns a fault if no host of the tenant has the network, or if the network has different properties on two of the
/// hosts.
pub fn resolve_host_network(
    tenant: &TenantCluster,
    hosts: &[Arc<TenantHostState>],
) -> Result<Option<HostNetwork>, Fault> {
    let Some(wanted) = &tenant.spec.network else { return Ok(None) };
    let name = &wanted.name;
    let mut found: Option<(&str, HostNetwork)> = None;
    let carriers = hosts.iter().filter(|host| host.carries(tenant));
    for (host, spec) in carriers.filter_map(|host| Some((host, host.network(name)?))) {
        let has_shared_bridge = spec.scenario == NetworkScenario::VlanAwareBridge;
        let has_own_bridge =
            [NetworkScenario::BridgePerTenant, NetworkScenario::Vxlan].contains(&spec.scenario);
        let shared_bridge = match has_shared_bridge.then(|| spec.shared_bridge()).transpose() {
            Ok(bridge) => bridge,
            // The agent of this host also reports this error.
            Err(error) => {
                let message =
                    format!("InfraNode {}: spec.networks[{name}].bridge: {error}", host.name);
                return Err(Fault::new(ConditionReason::InvalidHostNetwork, message));
            }
        };
        let one = HostNetwork {
            name: name.clone(),
            scenario: spec.scenario,
            shared_bridge,
            bridge_prefix: has_own_bridge.then(|| spec.bridge_prefix().to_owned()),
            mtu: host.mtus.get(name).copied(),
        };
        match &mut found {
            None => found = Some((&host.name, one)),
            Some((first, known)) => {
                let known_mtu = known.mtu;
                known.mtu = one.mtu;
                if *known != one {
                    let message = format!(
                        "hosts {first} and {} have network {name} with different properties ({:?} and {:?}, bridge {} and \
                         {}), so VMs could not be attached in the same way on both; configure the hosts \
                         identically, or select hosts by spec.nodeSelector",
                        host.name,
                        known.scenario,
                        one.scenario,
                        displayed_bridge(known),
                        displayed_bridge(&one),
                    );
                    return Err(Fault::new(ConditionReason::HostNetworksDiffer, message));
                }
                known.mtu = known_mtu.into_iter().chain(one.mtu).min();
            }
        }
    }
    match found {
        Some((_, network)) => Ok(Some(network)),
        None => Err(no_such_network_fault(name, tenant, hosts)),
    }
}

fn displayed_bridge(network: &HostNetwork) -> String {
    let named = network.shared_bridge.as_ref().map(ToString::to_string);
    named.or_else(|| network.bridge_prefix.clone()).unwrap_or_else(|| "none".to_owned())
}

fn no_such_network_fault(
    name: &str,
    tenant: &TenantCluster,
    hosts: &[Arc<TenantHostState>],
) -> Fault {
    let hosts_with_network: Vec<String> =
        hosts.iter().filter(|host| host.network(name).is_some()).map(|h| h.name.clone()).collect();
    let message = if hosts_with_network.is_empty() {
        let mut others: Vec<String> = hosts
            .iter()
            .flat_map(|host| host.networks.iter().map(|one| one.name.clone()))
            .collect();
        others.sort();
        others.dedup();
        let available =
            if others.is_empty() { "none".to_owned() } else { join_names_limited(&others) };
        format!("spec.network.name: no host has network {name}; available networks: {available}")
    } else {
        let selector: Vec<String> =
            tenant.spec.node_selector.iter().map(|(key, value)| format!("{key}={value}")).collect();
        format!(
            "spec.nodeSelector: no Node of a host with network {name} has the labels {}; hosts \
             with the network: {}",
            join_names_limited(&selector),
            join_names_limited(&hosts_with_network)
        )
    };
    Fault::new(ConditionReason::NoHosts, message)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Value, json};

    use super::*;

    fn host(name: &str, network: Value, mtu: Option<u32>) -> Arc<TenantHostState> {
        Arc::new(TenantHostState {
            name: name.to_owned(),
            labels: Some(BTreeMap::from([("host".to_owned(), name.to_owned())])),
            networks: vec![serde_json::from_value(network).unwrap()],
            mtus: mtu.map(|mtu| ("trunk".to_owned(), mtu)).into_iter().collect(),
            ..TenantHostState::default()
        })
    }

    fn tenant() -> TenantCluster {
        let spec = json!({"network": {"name": "trunk"}});
        TenantCluster::new("abc", serde_json::from_value(spec).unwrap())
    }

    #[test]
    fn the_smallest_mtu_of_all_hosts_is_used() {
        let same = || json!({"name": "trunk", "scenario": "VlanAwareBridge"});
        let hosts =
            [host("a", same(), Some(9000)), host("b", same(), Some(1500)), host("c", same(), None)];
        let network = resolve_host_network(&tenant(), &hosts).unwrap().unwrap();
        assert_eq!(
            (network.mtu, network.shared_bridge.unwrap().as_str()),
            (Some(1500), "br-trunk")
        );
    }

    #[test]
    fn differing_hosts_are_reported_unless_only_one_is_selected() {
        let hosts = [
            host("a", json!({"name": "trunk", "scenario": "VlanAwareBridge"}), None),
            host("b", json!({"name": "trunk", "scenario": "BridgePerTenant"}), None),
        ];
        let fault = resolve_host_network(&tenant(), &hosts).unwrap_err();
        assert_eq!(fault.reason, ConditionReason::HostNetworksDiffer);
        assert!(fault.message.contains("hosts a and b"), "{fault}");
        let mut with_selector = tenant();
        with_selector.spec.node_selector.insert("host".to_owned(), "b".to_owned());
        let network = resolve_host_network(&with_selector, &hosts).unwrap().unwrap();
        assert_eq!(
            network.tenant_bridge_name(NetworkId::Vlan(7.try_into().unwrap())).unwrap(),
            "tn7"
        );
        with_selector.spec.node_selector.insert("host".to_owned(), "c".to_owned());
        let fault = resolve_host_network(&with_selector, &hosts).unwrap_err();
        assert!(fault.message.contains("host=c; hosts with the network: a, b"), "{fault}");
        let fault = resolve_host_network(&tenant(), &[]).unwrap_err();
        assert!(fault.message.ends_with("available networks: none"), "{fault}");
    }
}
