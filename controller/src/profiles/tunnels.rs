//! Tunnel endpoints: the local VXLAN address of each host.

use std::net::IpAddr;

use berth_api::infra_node::{NetworkScenario, NetworkSpec, UplinkSelector};
use berth_api::{InfraNode, InfraNodeSpec};
use k8s_openapi::api::core::v1::Node;

/// Returns the local VXLAN address of a host for a network of its profile; `None` if no address is known yet.
///
/// The profile sets the address. If the profile sets 0.0.0.0 or ::, the function returns an address of the host: an
/// address of the uplink if the profile names an uplink, otherwise an address of the Node. An address in use is kept as
/// long as it is a candidate.
#[must_use]
pub(super) fn local_address(
    network: &NetworkSpec,
    node: &Node,
    infra_node: &InfraNode,
) -> Option<IpAddr> {
    let configured = network.vxlan_settings()?.local_address;
    if !configured.is_unspecified() {
        return Some(configured);
    }
    let candidates = match &network.uplink {
        Some(uplink) => uplink_addresses(uplink, infra_node),
        None => node_addresses(node),
    };
    let mut candidates = candidates.into_iter().filter(|one| one.is_ipv4() == configured.is_ipv4());
    let in_use = address_in_use(&infra_node.spec, &network.name);
    let in_use =
        in_use.filter(|one| one.is_ipv4() == configured.is_ipv4() && !one.is_unspecified());
    let first = candidates.next();
    match in_use {
        // If no candidate is known, which may be temporary, the address in use is kept.
        Some(one) if first.is_none() || first == Some(one) || candidates.any(|c| c == one) => {
            Some(one)
        }
        _ => first,
    }
}

/// Returns the local VXLAN address that the spec of the host's InfraNode has now.
pub(super) fn address_in_use(spec: &InfraNodeSpec, network: &str) -> Option<IpAddr> {
    let mut networks = spec.networks.iter().filter(|one| one.scenario == NetworkScenario::Vxlan);
    let network = networks.find(|one| one.name == network)?;
    network.vxlan_settings().map(|vxlan| vxlan.local_address)
}

fn node_addresses(node: &Node) -> Vec<IpAddr> {
    let addresses = node.status.iter().filter_map(|status| status.addresses.as_ref()).flatten();
    let internal = addresses.filter(|address| address.type_ == "InternalIP");
    internal.filter_map(|address| address.address.parse().ok()).collect()
}

fn uplink_addresses(selector: &UplinkSelector, infra_node: &InfraNode) -> Vec<IpAddr> {
    let uplinks = infra_node.status.iter().flat_map(|status| &status.capabilities.uplinks);
    let is_selected = |uplink: &&berth_api::infra_node::Uplink| {
        let mac = || selector.mac.as_ref().map(ToString::to_string);
        selector.name.as_ref() == Some(&uplink.name)
            || selector.pci_address.is_some() && selector.pci_address == uplink.pci_address
            || selector.mac.is_some() && mac() == uplink.mac.as_ref().map(|mac| mac.to_lowercase())
    };
    let addresses = uplinks.filter(is_selected).flat_map(|uplink| &uplink.addresses);
    let bare = |address: &String| address.split('/').next()?.parse().ok();
    addresses.filter_map(bare).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn vxlan_network(local: &str, uplink: Option<&str>) -> NetworkSpec {
        let mut network =
            json!({"name": "overlay", "scenario": "Vxlan", "vxlan": {"localAddress": local}});
        if let Some(uplink) = uplink {
            network["uplink"] = json!({"name": uplink});
        }
        serde_json::from_value(network).unwrap()
    }

    fn node(addresses: &[&str]) -> Node {
        let internal = |address: &&str| json!({"type": "InternalIP", "address": address});
        let addresses: Vec<_> = addresses.iter().map(internal).collect();
        serde_json::from_value(json!({"status": {"addresses": addresses}})).unwrap()
    }

    fn infra_node(in_use: Option<&str>, uplink: &[&str]) -> InfraNode {
        let networks: Vec<NetworkSpec> =
            in_use.iter().map(|local| vxlan_network(local, None)).collect();
        let uplinks = json!([{"name": "bond0", "kind": "Bond", "mac": "AC:1F:6B:8A:5F:C8", "addresses": uplink}]);
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "InfraNode", "metadata": {"name": "a"},
            "spec": {"networks": networks}, "status": {"capabilities": {"uplinks": uplinks}},
        }))
        .unwrap()
    }

    fn address_text(network: &NetworkSpec, node: &Node, infra: &InfraNode) -> Option<String> {
        local_address(network, node, infra).map(|address| address.to_string())
    }

    #[test]
    fn an_unspecified_address_is_resolved_to_one_of_the_host() {
        let both = node(&["10.0.0.1", "fd00::1"]);
        let none = infra_node(None, &[]);
        assert_eq!(
            address_text(&vxlan_network("10.9.9.9", None), &both, &none).unwrap(),
            "10.9.9.9"
        );
        assert_eq!(
            address_text(&vxlan_network("0.0.0.0", None), &both, &none).unwrap(),
            "10.0.0.1"
        );
        assert_eq!(address_text(&vxlan_network("::", None), &both, &none).unwrap(), "fd00::1");
        assert_eq!(address_text(&vxlan_network("::", None), &node(&["10.0.0.1"]), &none), None);
        let bond = infra_node(None, &["192.0.2.7/24", "fd00::7/64"]);
        assert_eq!(
            address_text(&vxlan_network("0.0.0.0", Some("bond0")), &both, &bond).unwrap(),
            "192.0.2.7"
        );
        assert_eq!(address_text(&vxlan_network("0.0.0.0", Some("eth9")), &both, &bond), None);
        let mut by_mac = vxlan_network("::", Some("x"));
        by_mac.uplink = serde_json::from_value(json!({"mac": "ac:1f:6b:8a:5f:c8"})).unwrap();
        assert_eq!(address_text(&by_mac, &both, &bond).unwrap(), "fd00::7");
    }

    #[test]
    fn an_address_in_use_is_kept() {
        let open = vxlan_network("0.0.0.0", None);
        let two = node(&["10.0.0.1", "10.0.0.2"]);
        assert_eq!(
            address_text(&open, &two, &infra_node(Some("10.0.0.2"), &[])).unwrap(),
            "10.0.0.2"
        );
        assert_eq!(
            address_text(&open, &two, &infra_node(Some("10.0.0.3"), &[])).unwrap(),
            "10.0.0.1"
        );
        // The Node has not reported its address yet.
        assert_eq!(
            address_text(&open, &node(&[]), &infra_node(Some("10.0.0.3"), &[])).unwrap(),
            "10.0.0.3"
        );
        assert_eq!(
            address_text(
                &vxlan_network("::", None),
                &node(&[]),
                &infra_node(Some("10.0.0.3"), &[])
            ),
            None
        );
    }
}
