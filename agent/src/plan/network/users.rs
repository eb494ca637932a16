//! Finds the links that a step would disconnect: ports of VMs, and links that are stacked on Berth's links.
//!
//! The planner calls [`disconnected_links`] with the observed links. `apply` calls it again before each step, with
//! links that it has just read.

use std::collections::BTreeSet;

use berth_api::{VlanId, VlanSet};

use super::op::LinkOp;
use berth_host_facts::links::{Link, LinkKind, Links};

/// Returns the names of the links that a step would disconnect. Links that are themselves changed by a step of
/// `change` are excluded.
#[must_use]
pub fn disconnected_links(op: &LinkOp, links: &Links, change: &[LinkOp]) -> BTreeSet<String> {
    let mut users = match op {
        LinkOp::Remove(name) | LinkOp::Down(name) => {
            links.find_by_name(name).map_or_else(BTreeSet::new, |link| {
                let mut users = attached_links(links, link);
                // The VLAN link or tunnel of a tenant connects the tenant's bridge to other hosts, so its removal
                // disconnects all other ports of the bridge.
                if let Some(bridge) = bridge_of(links, link) {
                    users.extend(attached_links(links, bridge));
                }
                users
            })
        }
        LinkOp::Leave { port, bridge } => links
            .find_by_name(port)
            .filter(|port| port.master.as_ref() == Some(bridge))
            .map_or_else(BTreeSet::new, |port| disconnected_by_uplink_removal(links, port)),
        // If the port is in another bridge, the kernel first removes it from that bridge.
        LinkOp::Join { port, bridge } => links
            .find_by_name(port)
            .filter(|port| port.master.as_ref() != Some(bridge))
            .map_or_else(BTreeSet::new, |port| disconnected_by_uplink_removal(links, port)),
        LinkOp::RemoveVlans { port, vlans, bridge_self: false } => links
            .find_by_name(port)
            .and_then(|port| Some(users_of_vlans(links, bridge_of(links, port)?, vlans)))
            .unwrap_or_default(),
        _ => BTreeSet::new(),
    };
    for own in change {
        users.remove(own.link().as_str());
    }
    users
}

/// Returns the ports of a bridge and the links stacked on it that are in some of these VLANs, and the VLANs of
/// each. A port whose VLANs are unknown counts as a member of all these VLANs.
pub(super) fn links_in_vlans(
    links: &Links,
    bridge: &Link,
    vlans: &VlanSet,
) -> Vec<(String, VlanSet)> {
    let carried = |link: &Link| match &link.vlans {
        Some(carried) => carried.all.intersection(vlans),
        None => vlans.clone(),
    };
    let ports = links.ports_of(&bridge.name).map(|port| (port.name.to_string(), carried(port)));
    // A link that is stacked on the bridge receives the frames of the VLANs of the bridge's own port.
    let of_bridge = carried(bridge);
    let stacked = links.links_stacked_on(&bridge.name).map(|link| {
        let is_own_vlan = |id: &VlanId| link.vlan.is_none_or(|own| own == u16::from(*id));
        (link.name.to_string(), of_bridge.iter().filter(is_own_vlan).collect())
    });
    let in_other_namespaces =
        bridge.users_in_other_namespaces.iter().map(|user| (user.clone(), of_bridge.clone()));
    let all = ports.chain(stacked).chain(in_other_namespaces);
    all.filter(|(_, carried)| !carried.is_empty()).collect()
}

fn users_of_vlans(links: &Links, bridge: &Link, vlans: &VlanSet) -> BTreeSet<String> {
    links_in_vlans(links, bridge, vlans).into_iter().map(|(name, _)| name).collect()
}

/// Returns the links of a bridge that would be disconnected if this port, which is an uplink, left the bridge.
fn disconnected_by_uplink_removal(links: &Links, port: &Link) -> BTreeSet<String> {
    let Some(bridge) = bridge_of(links, port) else { return BTreeSet::new() };
    let mut users = match &port.vlans {
        Some(vlans) if bridge.vlan_filtering == Some(true) => {
            users_of_vlans(links, bridge, &vlans.all)
        }
        _ => attached_links(links, bridge),
    };
    users.remove(port.name.as_str());
    users
}

/// Returns the ports of a link and the links stacked on it, including those in other network namespaces. A port
/// that Berth created is the VLAN link or tunnel of a tenant's bridge, and is excluded.
pub(super) fn attached_links(links: &Links, link: &Link) -> BTreeSet<String> {
    let in_this_namespace = links.ports_of(&link.name).chain(links.links_stacked_on(&link.name));
    let in_this_namespace = in_this_namespace
        .filter(|user| !user.is_created_by_berth())
        .map(|user| user.name.to_string());
    in_this_namespace.chain(link.users_in_other_namespaces.iter().cloned()).collect()
}

fn bridge_of<'a>(links: &'a Links, port: &Link) -> Option<&'a Link> {
    let master = links.find_by_name(port.master.as_ref()?)?;
    (master.kind == LinkKind::Bridge).then_some(master)
}
