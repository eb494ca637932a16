//! Tenant networks that are ready on a host, as resources. A VM whose tenant requires a ready network requests the
//! resource of this network, so kube-scheduler's rule for resources excludes all hosts on which the network is not
//! ready.
//!
//! A network is ready if the agent has reported for the current spec, and neither the network nor its VLAN has a fault.
//! Only networks with `readyHostsOnly` have a resource, so that hosts with thousands of tenants need no more memory.

use berth_api::infra_node::{NetworkStatus, TenantNetworkSpec, TenantNetworkState, TrunkState};
use berth_api::names::READY_NETWORK_PREFIX;
use berth_api::{InfraNode, InfraNodeStatus, VlanId, VlanRanges};
use berth_kubelet_admission::pod::Resources;

/// Amount of a ready network's resource on one host. Each VM requests one unit. The amount exceeds the number of ports
/// of a bridge, so it never limits the number of VMs.
const UNITS_PER_NETWORK: u64 = 100_000;

/// Adds the resources of tenant networks to the amounts of a host. `rules` contains the amounts for kube-scheduler's
/// rules, and gets only networks that are ready. `kubelet` contains the amounts for the prediction of the kubelet's
/// admission, and gets all networks: a VM whose network has a fault stays on its host.
pub(super) fn add_resources(
    infra: &InfraNode,
    status: &InfraNodeStatus,
    rules: &mut Resources,
    kubelet: &mut Resources,
) {
    let networks = infra.spec.tenant_networks.iter();
    for network in networks.filter(|network| network.ready_hosts_only == Some(true)) {
        let name = format!("{READY_NETWORK_PREFIX}{}", network.name);
        if is_ready(infra, status, network) {
            rules.extended.insert(name.clone(), UNITS_PER_NETWORK);
        } else {
            // Another component may have written a resource with this name to the status of the Node.
            rules.extended.remove(&name);
        }
        kubelet.extended.insert(name, UNITS_PER_NETWORK);
    }
}

fn is_ready(infra: &InfraNode, status: &InfraNodeStatus, network: &TenantNetworkSpec) -> bool {
    // An older report does not show whether the network works with the current spec.
    if status.observed_generation != infra.metadata.generation {
        return false;
    }
    let mut reported = status.networks.iter();
    let Some(host_network) = reported.find(|one| one.name == network.network) else { return false };
    // The report lists only a limited number of the networks that are not ready, and otherwise only counts them.
    let not_ready = u64::from(host_network.pending) + u64::from(host_network.failed);
    let named = u64::try_from(host_network.not_ready.len()).unwrap_or(u64::MAX);
    let mut faults = host_network.not_ready.iter();
    let has_fault = not_ready > named
        || faults.any(|one| one.tenant == network.name && one.state != TenantNetworkState::Ready);
    !has_fault && !network.vlan.is_some_and(|vlan| receives_vlan_from_no_host(host_network, vlan))
}

/// Returns true if other hosts carry the VLAN, but this host receives probes of the VLAN from none of them. If this
/// host receives probes from some of them, the fault is at the switch port of another host.
fn receives_vlan_from_no_host(network: &NetworkStatus, vlan: VlanId) -> bool {
    let contains = |vlans: Option<&VlanRanges>| vlans.is_some_and(|all| all.ids().contains(vlan));
    network.trunk.as_ref().is_some_and(|trunk| {
        trunk.state == TrunkState::Missing
            && contains(trunk.vlans.as_ref())
            && contains(trunk.unverified.as_ref())
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Returns the names of the networks that are resources for the rules and for the kubelet, without the prefix, if
    /// the agent reports the fields of `network`.
    fn resources(only: Value, generation: i64, network: Value) -> [Vec<String>; 2] {
        let mut reported =
            json!({"name": "trunk", "ready": 2, "pending": 0, "failed": 0, "notReady": []});
        reported.as_object_mut().unwrap().extend(network.as_object().unwrap().clone());
        let infra: InfraNode = serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "InfraNode",
            "metadata": {"name": "rack1-a", "generation": 4},
            "spec": {
                "networks": [
                    {"name": "trunk", "scenario": "VlanAwareBridge", "uplink": {"name": "eth1"}},
                ],
                "tenantNetworks": [
                    {"name": "cluster-a", "network": "trunk", "vlan": 100, "readyHostsOnly": only},
                    {"name": "cluster-b", "network": "trunk", "vlan": 101},
                ],
            },
            "status": {"observedGeneration": generation, "networks": [reported]},
        }))
        .unwrap();
        let mut amounts = [Resources::default(), Resources::default()];
        let [rules, kubelet] = &mut amounts;
        add_resources(&infra, infra.status.as_ref().unwrap(), rules, kubelet);
        amounts.map(|all| {
            let names =
                all.extended.keys().filter_map(|name| name.strip_prefix(READY_NETWORK_PREFIX));
            names.map(str::to_owned).collect()
        })
    }

    #[test]
    fn only_required_networks_have_resources() {
        assert_eq!(resources(json!(true), 4, json!({})), [["cluster-a"], ["cluster-a"]]);
        for only in [json!(false), Value::Null] {
            assert_eq!(resources(only, 4, json!({})), [[""; 0], [""; 0]]);
        }
    }

    #[test]
    fn a_network_with_a_fault_takes_no_new_vms() {
        let fault = |tenant: &str, state: &str| json!({"pending": 1, "notReady": [{"tenant": tenant, "state": state}]});
        let trunk = |state: &str, vlans: &str, unverified: Option<&str>| {
            let mut trunk = json!({"state": state, "vlans": vlans, "from": ["rack1-b"]});
            if let Some(unverified) = unverified {
                trunk["unverified"] = unverified.into();
            }
            json!({"trunk": trunk})
        };
        for (generation, network, is_ready) in [
            (3, json!({}), false),
            (4, json!({"name": "other"}), false),
            (4, fault("cluster-a", "Pending"), false),
            (4, fault("cluster-a", "Failed"), false),
            (4, fault("cluster-b", "Failed"), true),
            (4, json!({"failed": 1}), false),
            (4, json!({"trunk": {"state": "Unknown", "reason": "NoKey"}}), true),
            (4, json!({"trunk": {"state": "Unknown", "unverified": "100"}}), true),
            (4, trunk("Missing", "100", Some("99-100")), false),
            (4, trunk("Missing", "100", None), true),
            (4, trunk("Missing", "101", Some("101")), true),
        ] {
            let text = format!("{generation} {network}");
            let [rules, kubelet] = resources(json!(true), generation, network);
            assert_eq!(rules.len(), usize::from(is_ready), "{text}");
            assert_eq!(kubelet, ["cluster-a"], "{text}");
        }
    }
}
