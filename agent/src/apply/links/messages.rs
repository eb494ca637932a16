//! Netlink messages for steps on links.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use berth_api::mtu::MIN_IPV6_MTU;
use berth_api::{LinkName, VlanId, VlanSet};
use rtnetlink::packet_route::address::{AddressAttribute, AddressMessage};
use rtnetlink::packet_route::link::{
    AfSpecInet, AfSpecInet6, AfSpecUnspec, BridgeStpState, BridgeVlanInfoFlags, In6AddrGenMode,
    InetDevConf, LinkAttribute, LinkMessage,
};
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage as Message};
use rtnetlink::{LinkBridge, LinkBridgeVlan, LinkMessageBuilder, LinkUnspec, LinkVlan, LinkVxlan};

use super::error::StepError;
use crate::netlink::ChangeMode;
use crate::plan::network::{
    ARP_IGNORE_ALL, DesiredKind, DesiredLink, LINK_GROUP, RP_FILTER_STRICT,
};

/// Interface indexes of links.
pub(super) type LinkIndexes = BTreeMap<LinkName, u32>;

/// Returns the message that creates a link, which is down at first.
///
/// # Errors
/// If a link that the new link depends on does not exist.
pub(super) fn create_link_message(
    desired: &DesiredLink,
    indexes: &LinkIndexes,
) -> Result<LinkMessage, StepError> {
    let name = desired.name.as_str();
    let master = desired.master.as_ref().map(|name| index_of_link(indexes, name)).transpose()?;
    Ok(match &desired.kind {
        DesiredKind::Bridge { mac, vlan_aware, stp } => {
            let builder = LinkMessageBuilder::<LinkBridge>::new(name)
                .address(mac.0.to_vec())
                // The MTU differs from the desired MTU, so that the next message changes it: only a change of the MTU
                // of an existing bridge stops the bridge from following the MTU of its ports.
                .mtu(desired.mtu - 1)
                .link_group(LINK_GROUP)
                .stp_state(stp_state(*stp))
                .mcast_snooping(false)
                // The default PVID is 0, so that a port carries no VLAN until a VLAN is added.
                .vlan_default_pvid(0);
            // Kernels without VLAN filtering refuse the attribute, so it is sent only for a
            // VLAN-aware bridge.
            if *vlan_aware { builder.vlan_filtering(true) } else { builder }.build()
        }
        DesiredKind::Vlan { parent, id } => {
            let builder = LinkMessageBuilder::<LinkVlan>::new(name)
                .link(index_of_link(indexes, parent)?)
                .id((*id).into())
                .mtu(desired.mtu)
                .link_group(LINK_GROUP);
            with_controller(builder, master).build()
        }
        DesiredKind::Vxlan { vni, port, local, .. } => {
            let builder = LinkMessageBuilder::<LinkVxlan>::new(name)
                .id(*vni)
                .port(*port)
                .learning(true)
                .mtu(desired.mtu)
                .link_group(LINK_GROUP);
            let builder = match local {
                IpAddr::V4(local) => builder.local(*local),
                IpAddr::V6(local) => builder.local6(*local),
            };
            with_controller(builder, master).build()
        }
    })
}

fn with_controller<T>(
    builder: LinkMessageBuilder<T>,
    master: Option<u32>,
) -> LinkMessageBuilder<T> {
    match master {
        Some(master) => builder.controller(master),
        None => builder,
    }
}

/// Returns the message that sets all desired properties of a link except its state. The message that creates a link
/// cannot set all of them: the kernel ignores an alias in that message, and a bridge follows the MTU of its ports until
/// the MTU of the existing bridge is changed.
///
/// The message contains the group only if the index of the link is known. Without an index, if the link does not exist,
/// kernels before 5.19 apply the message to all links of that group.
///
/// # Errors
/// If a link that this link depends on does not exist.
pub(super) fn set_properties_message(
    desired: &DesiredLink,
    indexes: &LinkIndexes,
    has_ipv6: bool,
) -> Result<LinkMessage, StepError> {
    let name = desired.name.to_string();
    let number = indexes.get(&desired.name).copied();
    let master = desired.master.as_ref().map(|name| index_of_link(indexes, name)).transpose()?;
    let mut families = Vec::new();
    let mut message = if let DesiredKind::Bridge { mac, vlan_aware, stp } = &desired.kind {
        let mut conf = InetDevConf::default();
        conf.arp_ignore = ARP_IGNORE_ALL;
        conf.rp_filter = RP_FILTER_STRICT;
        families.push(AfSpecUnspec::Inet(vec![AfSpecInet::DevConfRequest(conf)]));
        let builder = LinkMessageBuilder::<LinkBridge>::new(&name)
            .address(mac.0.to_vec())
            .stp_state(stp_state(*stp))
            .mcast_snooping(false)
            .vlan_default_pvid(0);
        let builder = if *vlan_aware { builder.vlan_filtering(true) } else { builder };
        builder.alias(&desired.alias).mtu(desired.mtu).build()
    } else {
        let builder = LinkUnspec::new_with_name(&name);
        with_controller(builder.alias(&desired.alias).mtu(desired.mtu), master).build()
    };
    if let Some(number) = number {
        message.header.index = number;
        // In a message with an index, a name is a new name, which the kernel refuses for a link
        // that is up.
        message.attributes.retain(|attribute| !matches!(attribute, LinkAttribute::IfName(_)));
        message.attributes.push(LinkAttribute::Group(LINK_GROUP));
    }
    if has_ipv6 && desired.mtu >= MIN_IPV6_MTU {
        let none = AfSpecInet6::AddrGenMode(In6AddrGenMode::None);
        families.push(AfSpecUnspec::Inet6(vec![none]));
    }
    if !families.is_empty() {
        message.attributes.push(LinkAttribute::AfSpecUnspec(families));
    }
    Ok(message)
}

/// Returns the message that sets a link up or down.
pub(super) fn set_state_message(name: &LinkName, up: bool) -> (ChangeMode, Message) {
    let builder = LinkUnspec::new_with_name(name.as_str());
    let message = if up { builder.up() } else { builder.down() }.build();
    (ChangeMode::Change, Message::NewLink(message))
}

/// Returns the message that turns off the VLAN filtering of a bridge.
pub(super) fn disable_vlan_filtering_message(name: &LinkName) -> (ChangeMode, Message) {
    let builder = LinkMessageBuilder::<LinkBridge>::new(name.as_str()).vlan_filtering(false);
    (ChangeMode::Change, Message::NewLink(builder.build()))
}

/// Returns the message that makes a link a port of a bridge, or removes it from its bridge.
///
/// # Errors
/// If the bridge does not exist.
pub(super) fn set_master_message(
    port: &LinkName,
    bridge: Option<&LinkName>,
    indexes: &LinkIndexes,
) -> Result<(ChangeMode, Message), StepError> {
    let builder = LinkUnspec::new_with_name(port.as_str());
    let message = match bridge {
        Some(bridge) => builder.controller(index_of_link(indexes, bridge)?).build(),
        None => builder.nocontroller().build(),
    };
    Ok((ChangeMode::Change, Message::NewLink(message)))
}

/// Returns one message that adds VLANs to a port, as ranges.
///
/// # Errors
/// If the port does not exist.
pub(super) fn add_vlans_message(
    port: &LinkName,
    vlans: &VlanSet,
    indexes: &LinkIndexes,
) -> Result<(ChangeMode, Message), StepError> {
    let message = vlan_ranges_message(port, &vlans.ranges(), indexes, false)?;
    Ok((ChangeMode::Change, Message::SetLink(message)))
}

/// Returns one message that removes VLANs from a port, as ranges. If `bridge_self` is true, `port` is a bridge, and the
/// VLANs are removed from the bridge itself.
///
/// # Errors
/// If the port does not exist.
pub(super) fn remove_vlans_message(
    port: &LinkName,
    vlans: &VlanSet,
    bridge_self: bool,
    indexes: &LinkIndexes,
) -> Result<(ChangeMode, Message), StepError> {
    let message = vlan_ranges_message(port, &vlans.ranges(), indexes, bridge_self)?;
    Ok((ChangeMode::Change, Message::DelLink(message)))
}

fn vlan_ranges_message(
    port: &LinkName,
    ranges: &[(VlanId, VlanId)],
    indexes: &LinkIndexes,
    bridge_self: bool,
) -> Result<LinkMessage, StepError> {
    let tagged = BridgeVlanInfoFlags::empty();
    let mut builder = LinkBridgeVlan::new(index_of_link(indexes, port)?);
    if bridge_self {
        builder = builder.bridge_self();
    }
    for (first, last) in ranges {
        let (first, last) = (u16::from(*first), u16::from(*last));
        builder = if first == last {
            builder.vlan(first, tagged)
        } else {
            builder.vlan_range_start(first, tagged).vlan_range_end(last, tagged)
        };
    }
    Ok(builder.build())
}

/// Returns the messages that add and remove addresses of a tunnel's flood list, to which BUM traffic is sent.
///
/// # Errors
/// If the tunnel does not exist.
pub(super) fn peer_messages(
    link: &LinkName,
    add: &BTreeSet<IpAddr>,
    remove: &BTreeSet<IpAddr>,
    indexes: &LinkIndexes,
) -> Result<Vec<(ChangeMode, Message)>, StepError> {
    let index = index_of_link(indexes, link)?;
    let removals = remove
        .iter()
        .map(|peer| (ChangeMode::Change, Message::DelNeighbour(peer_entry(index, *peer))));
    let new = add
        .iter()
        .map(|peer| (ChangeMode::Append, Message::NewNeighbour(peer_entry(index, *peer))));
    Ok(removals.chain(new).collect())
}

fn peer_entry(index: u32, peer: IpAddr) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = AddressFamily::Bridge;
    message.header.ifindex = index;
    message.header.state = NeighbourState::Permanent;
    message.header.flags = NeighbourFlags::Own;
    message.attributes.push(NeighbourAttribute::LinkLayerAddress(vec![0; 6]));
    message.attributes.push(NeighbourAttribute::Destination(neighbour_address(peer)));
    message
}

/// Converts an address to the type of neighbour attributes.
pub(super) const fn neighbour_address(address: IpAddr) -> NeighbourAddress {
    match address {
        IpAddr::V4(address) => NeighbourAddress::Inet(address),
        IpAddr::V6(address) => NeighbourAddress::Inet6(address),
    }
}

pub(super) const fn address_family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

/// Returns the messages that remove addresses from a link. An address that cannot be parsed stays until the next cycle.
///
/// # Errors
/// If the link does not exist.
pub(super) fn remove_address_messages(
    link: &LinkName,
    addresses: &[String],
    indexes: &LinkIndexes,
) -> Result<Vec<(ChangeMode, Message)>, StepError> {
    let index = index_of_link(indexes, link)?;
    let one = |text: &String| {
        let (address, length) = text.split_once('/')?;
        let address: IpAddr = address.parse().ok()?;
        let mut message = AddressMessage::default();
        message.header.family = address_family(address);
        message.header.prefix_len = length.parse().ok()?;
        message.header.index = index;
        message.attributes.push(AddressAttribute::Local(address));
        message.attributes.push(AddressAttribute::Address(address));
        Some((ChangeMode::Change, Message::DelAddress(message)))
    };
    Ok(addresses.iter().filter_map(one).collect())
}

pub(super) fn remove_link_message(name: &LinkName) -> (ChangeMode, Message) {
    (ChangeMode::Change, Message::DelLink(LinkUnspec::new_with_name(name.as_str()).build()))
}

const fn stp_state(on: bool) -> BridgeStpState {
    if on { BridgeStpState::KernelStp } else { BridgeStpState::Disabled }
}

fn index_of_link(indexes: &LinkIndexes, name: &LinkName) -> Result<u32, StepError> {
    indexes.get(name).copied().ok_or_else(|| StepError::LinkNotFound(name.clone()))
}
