//! Compares desired links with observed links.

use std::collections::BTreeSet;
use std::sync::Arc;

use berth_api::{LinkName, MacAddress};

use super::desired_link::{DesiredKind, DesiredLink};
use super::difference::Difference;
use super::mismatch::Mismatch;
use super::names::{LINK_GROUP, link_owner};
use super::op::LinkOp;
use super::refusal::UnusableLink;
use berth_host_facts::links::{Link, LinkKind, Links};

/// Value of the sysctl `arp_ignore`: the link answers no ARP requests. A tenant's link has no address, and must not
/// answer for addresses of the host.
pub(crate) const ARP_IGNORE_ALL: i32 = 8;
/// Value of the sysctl `rp_filter`: drops packets whose source address the host would not reach through this link.
pub(crate) const RP_FILTER_STRICT: i32 = 1;

impl DesiredLink {
    /// Returns a short description of the link for a plan.
    pub(super) fn describe(&self) -> String {
        let mtu = self.mtu;
        match &self.kind {
            DesiredKind::Bridge { vlan_aware: true, .. } => format!("VLAN-aware bridge, MTU {mtu}"),
            DesiredKind::Bridge { .. } => format!("bridge, MTU {mtu}"),
            DesiredKind::Vlan { parent, id } => format!("VLAN {id} of {parent}, MTU {mtu}"),
            DesiredKind::Vxlan { vni, port, local, peers } => {
                format!("VNI {vni} from {local} port {port} to {} peers, MTU {mtu}", peers.len())
            }
        }
    }

    /// Returns an existing VLAN or VXLAN link of Berth as a desired link, to create it again with its observed
    /// properties; `None` for other kinds of links, or if a property is unknown.
    pub(super) fn from_link(link: &Link) -> Option<Self> {
        let kind = match link.kind {
            LinkKind::Vlan => {
                DesiredKind::Vlan { parent: link.parent.clone()?, id: link.vlan?.try_into().ok()? }
            }
            LinkKind::Vxlan => {
                let tunnel = link.tunnel.as_ref()?;
                DesiredKind::Vxlan {
                    vni: tunnel.vni?,
                    port: tunnel.port?,
                    local: tunnel.local_address?,
                    peers: Arc::new(tunnel.peers.clone()),
                }
            }
            _ => return None,
        };
        let (alias, mtu) = (link.alias.clone()?, link.mtu?);
        Some(Self { name: link.name.clone(), alias, mtu, master: link.master.clone(), kind })
    }

    const fn kind_of_link(&self) -> LinkKind {
        match self.kind {
            DesiredKind::Bridge { .. } => LinkKind::Bridge,
            DesiredKind::Vlan { .. } => LinkKind::Vlan,
            DesiredKind::Vxlan { .. } => LinkKind::Vxlan,
        }
    }

    /// Returns true if the link differs in a property that cannot be changed, so that it must be
    /// created again.
    pub(super) fn needs_recreation(&self, link: &Link) -> bool {
        let tunnel = || link.tunnel.clone().unwrap_or_default();
        link.kind != self.kind_of_link()
            || match &self.kind {
                DesiredKind::Bridge { .. } => false,
                // The kernel accepts another id for an existing VLAN link, and ignores it.
                DesiredKind::Vlan { parent, id } => {
                    link.vlan != Some(u16::from(*id)) || link.parent.as_ref() != Some(parent)
                }
                DesiredKind::Vxlan { vni, port, local, .. } => {
                    let now = tunnel();
                    now.vni != Some(*vni)
                        || now.port != Some(*port)
                        || now.local_address != Some(*local)
                }
            }
    }
}

/// Returns the reason why an existing link with the name of the desired link cannot be used.
pub(super) fn unusable_link(link: &Link, desired: &DesiredLink) -> Option<UnusableLink> {
    let unfinished = link.group == Some(LINK_GROUP) && link.alias.is_none();
    if !link.is_created_by_berth() && !unfinished {
        return Some(UnusableLink::NotCreatedByBerth(link.name.clone()));
    }
    let is_bridge = matches!(desired.kind, DesiredKind::Bridge { .. });
    (is_bridge && link.kind != LinkKind::Bridge)
        .then(|| UnusableLink::NotABridge(link.name.clone()))
}

/// Returns the properties of an existing link that differ from the desired properties and can be changed.
pub(super) fn find_differences(desired: &DesiredLink, link: &Link) -> Vec<Difference> {
    let mut found = Vec::new();
    let mut compare = |property, observed: Option<String>, should_be: String| {
        // A property that the kernel does not report counts as equal.
        if let Some(observed) = observed.filter(|is| *is != should_be) {
            found.push(Difference { property, observed, desired: should_be });
        }
    };
    let alias = Some(link.alias.clone().unwrap_or_default());
    compare("alias", alias, desired.alias.clone());
    compare("MTU", link.mtu.map(|mtu| mtu.to_string()), desired.mtu.to_string());
    compare("state", link.is_up.map(up_or_down), up_or_down(true));
    compare("group", link.group.map(|group| group.to_string()), LINK_GROUP.to_string());
    let none = || "none".to_owned();
    if let Some(master) = &desired.master {
        let is = link.master.as_ref().map_or_else(none, ToString::to_string);
        compare("bridge", Some(is), master.to_string());
    }
    compare(
        "IPv6",
        link.ip_options.is_ipv6_disabled.map(|disabled| on_or_off(!disabled)),
        on_or_off(false),
    );
    // A kernel without IPv6 reports neither of the two IPv6 properties, and both count as equal.
    if link.ip_options.is_ipv6_disabled != Some(true) {
        compare(
            "IPv6 addresses",
            link.ip_options.generates_ipv6_addresses.map(on_or_off),
            on_or_off(false),
        );
    }
    let addresses: Vec<&String> = link.addresses.iter().chain(&link.link_local_addresses).collect();
    if let Some(first) = addresses.first() {
        compare("address", Some((*first).clone()), none());
    }
    if let DesiredKind::Bridge { mac, vlan_aware, stp } = &desired.kind {
        // Any locally administered unicast address is accepted, because the desired address changes
        // with the ports of a bond.
        let is_locally_administered =
            |text: &String| text.parse().is_ok_and(|MacAddress([first, ..])| first & 0b11 == 0b10);
        compare(
            "MAC",
            link.mac.clone().filter(|text| !is_locally_administered(text)),
            mac.to_string(),
        );
        compare("VLAN filtering", link.vlan_filtering.map(on_or_off), on_or_off(*vlan_aware));
        let arp = link.ip_options.arp_ignore.map(|value| value.to_string());
        compare("arp_ignore", arp, ARP_IGNORE_ALL.to_string());
        // Of `rp_filter`, only the value 0 (off) counts as a difference: on a link without addresses and routes, loose
        // mode drops the same packets as strict mode.
        let filter =
            link.ip_options.rp_filter.filter(|value| *value == 0).map(|value| value.to_string());
        compare("rp_filter", filter, RP_FILTER_STRICT.to_string());
        let options = link.bridge.unwrap_or_default();
        compare("STP", options.is_stp_enabled.map(on_or_off), on_or_off(*stp));
        compare("snooping", options.is_mcast_snooping_enabled.map(on_or_off), on_or_off(false));
        let pvid = options.default_pvid.map(|id| id.to_string());
        compare("default VLAN", pvid, "0".to_owned());
        if *vlan_aware {
            let itself = link.vlans.as_ref().map(|vlans| vlans.all.to_string());
            compare("VLANs of the bridge itself", itself, String::new());
        }
    }
    if let DesiredKind::Vxlan { peers, .. } = &desired.kind {
        let list = |peers: &BTreeSet<std::net::IpAddr>| {
            let peers: Vec<String> = peers.iter().map(ToString::to_string).collect();
            if peers.is_empty() { none() } else { peers.join(" ") }
        };
        compare("peers", link.tunnel.as_ref().map(|tunnel| list(&tunnel.peers)), list(peers));
    }
    found
}

/// Returns the steps that create a link.
pub(super) fn create_link_ops(desired: &DesiredLink) -> Vec<LinkOp> {
    let mut ops = vec![LinkOp::Create(desired.clone())];
    if let DesiredKind::Vxlan { peers, .. } = &desired.kind
        && !peers.is_empty()
    {
        let (link, add) = (desired.name.clone(), (**peers).clone());
        ops.push(LinkOp::UpdatePeers { link, add, remove: BTreeSet::new() });
    }
    ops
}

/// Returns the steps that set the desired properties of an existing link of Berth, or create the link again.
pub(super) fn repair_ops(desired: &DesiredLink, link: &Link) -> Vec<LinkOp> {
    if desired.needs_recreation(link) {
        let mut ops = vec![LinkOp::Remove(link.name.clone())];
        ops.extend(create_link_ops(desired));
        return ops;
    }
    let mut ops = Vec::new();
    let addresses: Vec<String> =
        link.addresses.iter().chain(&link.link_local_addresses).cloned().collect();
    if !addresses.is_empty() {
        ops.push(LinkOp::RemoveAddresses { link: link.name.clone(), addresses });
    }
    // Kernels without VLAN filtering refuse the attribute, so it is sent only if filtering is on.
    if let DesiredKind::Bridge { vlan_aware: false, .. } = desired.kind
        && link.vlan_filtering == Some(true)
    {
        ops.push(LinkOp::DisableVlanFiltering(link.name.clone()));
    }
    ops.push(LinkOp::SetProperties(desired.clone()));
    if let (DesiredKind::Bridge { vlan_aware: true, .. }, Some(vlans)) =
        (&desired.kind, &link.vlans)
        && !vlans.all.is_empty()
    {
        let vlans = vlans.all.clone();
        ops.push(LinkOp::RemoveVlans { port: link.name.clone(), vlans, bridge_self: true });
    }
    if let (DesiredKind::Vxlan { peers, .. }, Some(tunnel)) = (&desired.kind, &link.tunnel)
        && **peers != tunnel.peers
    {
        ops.push(LinkOp::UpdatePeers {
            link: link.name.clone(),
            add: peers.difference(&tunnel.peers).copied().collect(),
            remove: tunnel.peers.difference(peers).copied().collect(),
        });
    }
    ops
}

/// Returns the steps that restore a link that was removed for another link of the same name.
pub(super) fn restore_ops(link: &Link) -> Vec<LinkOp> {
    let Some(was) = DesiredLink::from_link(link) else { return Vec::new() };
    let mut ops = vec![LinkOp::Remove(link.name.clone())];
    ops.extend(create_link_ops(&was));
    ops
}

/// Checks that a step is in effect. `links` are the links that were read after the step.
///
/// # Errors
/// If the links differ from the result of the step.
pub fn verify_step(op: &LinkOp, links: &Links) -> Result<(), Mismatch> {
    let existing_link =
        |name: &LinkName| links.find_by_name(name).ok_or_else(|| Mismatch::Absent(name.clone()));
    match op {
        LinkOp::Create(desired) | LinkOp::SetProperties(desired) => {
            let link = existing_link(&desired.name)?;
            if desired.needs_recreation(link) {
                return Err(Mismatch::WrongKind(desired.name.clone()));
            }
            let differences = find_differences(desired, link);
            if differences.is_empty() {
                Ok(())
            } else {
                Err(Mismatch::PropertiesDiffer { link: desired.name.clone(), differences })
            }
        }
        LinkOp::Up(name) if existing_link(name)?.is_up == Some(false) => {
            Err(Mismatch::Down(name.clone()))
        }
        LinkOp::Join { port, bridge } if existing_link(port)?.master.as_ref() != Some(bridge) => {
            Err(Mismatch::NotAPort { port: port.clone(), bridge: bridge.clone() })
        }
        LinkOp::Leave { port, bridge } if existing_link(port)?.master.as_ref() == Some(bridge) => {
            Err(Mismatch::StillAPort { port: port.clone(), bridge: bridge.clone() })
        }
        LinkOp::AddVlans { port, vlans } => {
            let now = existing_link(port)?.vlans.clone().unwrap_or_default();
            let missing = vlans.difference(&now.all);
            if missing.is_empty() {
                Ok(())
            } else {
                Err(Mismatch::MissingVlans { port: port.clone(), vlans: missing })
            }
        }
        LinkOp::RemoveVlans { port, vlans, .. } => {
            let now =
                links.find_by_name(port).and_then(|link| link.vlans.clone()).unwrap_or_default();
            let remaining = vlans.intersection(&now.all);
            if remaining.is_empty() {
                Ok(())
            } else {
                Err(Mismatch::RemainingVlans { port: port.clone(), vlans: remaining })
            }
        }
        LinkOp::Remove(name)
            if links.find_by_name(name).is_some_and(|link| link_owner(link).is_some()) =>
        {
            Err(Mismatch::StillExists(name.clone()))
        }
        _ => Ok(()),
    }
}

fn up_or_down(up: bool) -> String {
    (if up { "up" } else { "down" }).to_owned()
}

fn on_or_off(on: bool) -> String {
    (if on { "on" } else { "off" }).to_owned()
}
