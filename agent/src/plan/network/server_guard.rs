//! Selects the networks in which messages of DHCP servers and routers among VMs are dropped.
//!
//! A guest accepts the first answer to its DHCP request, so a VM that answers faster than the agent could redirect
//! the traffic of other VMs. The rules drop messages of DHCP servers and routers when a bridge forwards these
//! messages from the port of a VM, to another VM of the host or to the uplink. The agent's own answers are not
//! affected: the agent sends them on the VM's port from a packet socket, so no bridge forwards them. Messages that
//! arrive from uplinks, VLAN links and tunnels are accepted, because a router of the network may be there. The
//! agents of other hosts drop the messages that VMs of these hosts send.
//!
//! The rules match a network by its bridge, and on a shared bridge also by the VLAN of the port, so they do not
//! change when a VM starts.

use std::collections::BTreeSet;

use berth_api::{LinkName, VlanId};
use berth_host_facts::ledger::{GuardRecord, SourceRecord};

use super::desired::DesiredNetworks;
use super::desired_link::DesiredKind;
use super::names::name_key;
use crate::plan::input::Input;

/// Name of the chain for messages that only DHCP servers and routers send.
pub(crate) const GUARD_CHAIN: &str = "servers";
/// Name of the set of UDP ports of DHCP clients.
pub(crate) const CLIENT_PORT_SET: &str = "client_ports";
/// Name of the set of ICMPv6 types that only routers send.
pub(crate) const ROUTER_TYPE_SET: &str = "router_types";
/// Name of the set of guarded bridges that belong to a single tenant.
pub(crate) const BRIDGE_SET: &str = "guarded_bridges";
/// Name of the set of guarded VLANs on shared bridges.
pub(crate) const VLAN_SET: &str = "guarded_vlans";

/// UDP ports of DHCP clients, which are the destination of a server's messages. The source port is not compared,
/// because guests accept a server's message from any port. Only DHCP uses these destination ports (RFC 7610).
const CLIENT_PORTS: [u16; 2] = [68, 546];
/// ICMPv6 types of router advertisements and redirects.
const ROUTER_TYPES: [u8; 2] = [134, 137];

/// Returns the keys of the set [`CLIENT_PORT_SET`].
pub(crate) fn client_port_keys() -> impl Iterator<Item = Vec<u8>> {
    CLIENT_PORTS.into_iter().map(|port| port.to_be_bytes().to_vec())
}

/// Returns the keys of the set [`ROUTER_TYPE_SET`].
pub(crate) fn router_type_keys() -> impl Iterator<Item = Vec<u8>> {
    ROUTER_TYPES.into_iter().map(|kind| vec![kind])
}

/// Returns the key of a VLAN of a shared bridge as the kernel stores it in its registers: the bridge's name in 16
/// bytes, and the VLAN ID in host byte order, padded to 4 bytes.
pub(crate) fn vlan_key((bridge, vlan): &(LinkName, VlanId)) -> Vec<u8> {
    let mut key = name_key(bridge);
    key.extend(u16::from(*vlan).to_ne_bytes());
    key.extend([0; 2]);
    key
}

/// Returns the bridges and VLANs on which guests may not send messages of DHCP servers and routers, together with the
/// networks with source guard (`sources`). While the spec of a network has a fault (`has_faults`), the recorded bridges
/// and VLANs stay guarded. If the kernel has refused the rules, the agent tries them again only after these bridges or
/// VLANs change: the missing kernel module may have been installed in the meantime.
pub(super) fn desired_guard(
    input: Input,
    desired: &DesiredNetworks,
    sources: Vec<SourceRecord>,
    has_faults: bool,
) -> GuardRecord {
    let recorded = input.facts.ledger.filter.as_ref().map(|filter| &filter.guard);
    let mut guard = recorded.filter(|_| has_faults).cloned().unwrap_or_default();
    let guarded_names: BTreeSet<&str> = input
        .spec
        .tenant_networks
        .iter()
        .filter(|tenant| tenant.dhcp_guard == Some(true))
        .map(|tenant| tenant.name.as_str())
        .collect();
    for network in &desired.networks {
        let shared = network.scenario.shared_bridge().map(|bridge| &bridge.link.name);
        for tenant in network.tenants.iter().filter(|one| guarded_names.contains(one.name)) {
            guard.vlans.extend(shared.cloned().zip(tenant.segment.vlan()));
            let bridge =
                tenant.links.iter().find(|link| matches!(link.kind, DesiredKind::Bridge { .. }));
            guard.bridges.extend(bridge.map(|link| link.name.clone()));
        }
    }
    guard.sources = sources;
    guard.unsupported =
        recorded.is_some_and(|refused| refused.unsupported && has_same_networks(refused, &guard));
    guard
}

/// Returns true if both guards are about the same bridges and VLANs. Their leases may differ.
fn has_same_networks(one: &GuardRecord, other: &GuardRecord) -> bool {
    let places = |guard: &GuardRecord| -> Vec<_> {
        guard.sources.iter().map(|network| (network.bridge.clone(), network.vlan)).collect()
    };
    (&one.bridges, &one.vlans) == (&other.bridges, &other.vlans) && places(one) == places(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_layout_of_the_registers() {
        let vlan = VlanId::try_from(0x123).unwrap();
        let key = vlan_key(&("br-tenant".parse().unwrap(), vlan));
        assert_eq!(key.len(), 20);
        assert!(key.starts_with(b"br-tenant\0"));
        assert_eq!(key[16..18], 0x123_u16.to_ne_bytes());
        assert_eq!(client_port_keys().collect::<Vec<_>>(), [vec![0, 68], vec![2, 34]]);
        assert_eq!(router_type_keys().collect::<Vec<_>>(), [vec![134], vec![137]]);
    }
}
