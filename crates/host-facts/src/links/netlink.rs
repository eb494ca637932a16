//! Reads links with their VLANs, addresses and routes from the running kernel, in one dump for each kind of object.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;

use berth_api::infra_node::LinkState;
use berth_api::{LinkName, MacAddress, VlanId};
use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{
    AfSpecBridge, AfSpecInet, AfSpecInet6, AfSpecUnspec, BridgeStpState, BridgeVlanInfo,
    BridgeVlanInfoFlags, In6AddrGenMode, InfoBridge, InfoData, InfoKind, InfoVlan, InfoVxlan,
    LinkAttribute, LinkExtentMask, LinkFlags, LinkInfo, LinkMessage, State,
};
use netlink_packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteProtocol, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage as Message};

use super::bridge_options::{BridgeOptions, IpOptions, PortVlans, VxlanTunnel};
use super::link::{Link, LinkKind};
use super::other_namespaces::read_links_in_other_namespaces;
use super::routes::Routes;
use super::table::names_by_index;
use crate::netlink::NetlinkReader;

/// The links and routes of the running kernel.
pub(super) struct LinkDump {
    pub(super) links: Vec<Link>,
    pub(super) routes: Routes,
}

/// Reads links and their VLANs, without addresses, flood lists and routes.
pub(super) fn dump_links_with_vlans(netlink: &mut NetlinkReader) -> io::Result<Vec<Link>> {
    let read = |message: &LinkMessage| Some((parse_link(message)?, parse_lower_links(message)));
    let found = dump_links(netlink, AddressFamily::Unspec, LinkExtentMask::SkipStats, read)?;
    let (mut links, lower_links_by_position): (Vec<Link>, Vec<LowerLinks>) =
        found.into_iter().unzip();
    let names = names_by_index(&links);
    for (link, stacked) in links.iter_mut().zip(lower_links_by_position) {
        let name_of = |index: Option<u32>| index.and_then(|index| names.get(&index).cloned());
        link.master = name_of(stacked.master);
        link.parent = name_of(stacked.parent.filter(|parent| Some(*parent) != link.index));
    }
    if links.iter().any(|link| link.vlan_filtering == Some(true)) {
        let read = |port: &LinkMessage| Some((port.header.index, parse_port_vlans(port)?));
        let mask = LinkExtentMask::BrvlanCompressed;
        let vlans: BTreeMap<u32, PortVlans> =
            dump_links(netlink, AddressFamily::Bridge, mask, read)?.into_iter().collect();
        for link in &mut links {
            link.vlans = link.index.and_then(|index| vlans.get(&index).cloned());
        }
    }
    Ok(links)
}

/// Reads links with their VLANs, addresses and flood lists, and routes.
pub(super) fn dump_links_and_routes() -> io::Result<LinkDump> {
    let mut netlink = NetlinkReader::open()?;
    let mut links = dump_links_with_vlans(&mut netlink)?;
    let names = names_by_index(&links);
    let positions: BTreeMap<u32, usize> = links
        .iter()
        .enumerate()
        .filter_map(|(position, link)| Some((link.index?, position)))
        .collect();
    let update_link = |links: &mut [Link], index: u32, f: &mut dyn FnMut(&mut Link)| {
        positions.get(&index).and_then(|position| links.get_mut(*position)).map(f);
    };
    if links.iter().any(|link| link.tunnel.is_some()) {
        for (index, peer) in read_flood_lists(&mut netlink)? {
            let add = &mut |link: &mut Link| {
                link.tunnel.get_or_insert_default().peers.insert(peer);
            };
            update_link(&mut links, index, add);
        }
    }
    for (index, address, length) in read_addresses(&mut netlink)? {
        update_link(&mut links, index, &mut |link| {
            let is_local = is_link_local(&address);
            let list = if is_local { &mut link.link_local_addresses } else { &mut link.addresses };
            list.push(format!("{address}/{length}"));
        });
    }
    // Links in other network namespaces are read only to find out whether a link can be removed. Berth removes only
    // links that it has created, so they are not read if there is no such link.
    if links.iter().any(Link::is_created_by_berth) {
        // Without root, the agent cannot read other network namespaces. This does no harm, because it then cannot
        // remove links either.
        let users_in_other_namespaces = match read_links_in_other_namespaces(&mut netlink) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => BTreeMap::new(),
            result => result?,
        };
        for (index, users) in users_in_other_namespaces {
            update_link(&mut links, index, &mut |link| {
                link.users_in_other_namespaces.clone_from(&users)
            });
        }
    }
    for link in &mut links {
        link.addresses.sort_unstable();
        link.link_local_addresses.sort_unstable();
    }
    let routes = read_routes(&mut netlink, &names)?;
    Ok(LinkDump { links, routes })
}

pub(super) fn dump_links<T>(
    netlink: &mut NetlinkReader,
    family: AddressFamily,
    mask: LinkExtentMask,
    mut read: impl FnMut(&LinkMessage) -> Option<T>,
) -> io::Result<Vec<T>> {
    let mut request = LinkMessage::default();
    request.header.interface_family = family;
    request.attributes.push(LinkAttribute::ExtMask(vec![mask]));
    netlink.dump(&Message::GetLink(request), |answer| match answer {
        Message::NewLink(link) => read(link),
        _ => None,
    })
}

/// Parses a message about a link. Returns the link and, if the link is a bridge port, its VLANs.
pub fn parse_link_message(message: &NetlinkMessage<Message>) -> Option<(Link, Option<PortVlans>)> {
    match &message.payload {
        NetlinkPayload::InnerMessage(Message::NewLink(message)) => {
            Some((parse_link(message)?, parse_port_vlans(message)))
        }
        _ => None,
    }
}

/// Parses a link without `master` and `parent`, which the message contains as interface indexes. Returns `None` for a
/// link with an invalid name, which the kernel does not allow.
pub(super) fn parse_link(message: &LinkMessage) -> Option<Link> {
    let name = message.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => name.parse().ok(),
        _ => None,
    })?;
    let mut link = Link::new(name, LinkKind::Other);
    link.index = Some(message.header.index);
    link.is_up = Some(message.header.flags.contains(LinkFlags::Up));
    if link.name.as_str() == "lo" {
        link.kind = LinkKind::Loopback;
    }
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::Address(octets) if !octets.is_empty() => {
                link.mac = Some(format_mac(octets))
            }
            LinkAttribute::PermAddress(octets) => {
                link.permanent_mac = octets.as_slice().try_into().ok().map(MacAddress);
            }
            LinkAttribute::Mtu(mtu) => link.mtu = Some(*mtu),
            LinkAttribute::Group(group) => link.group = Some(*group),
            LinkAttribute::OperState(state) => link.state = Some(to_link_state(state)),
            LinkAttribute::IfAlias(alias) => link.alias = Some(alias.clone()),
            LinkAttribute::LinkInfo(infos) => {
                infos.iter().for_each(|info| apply_link_info(&mut link, info))
            }
            LinkAttribute::AfSpecUnspec(families) => {
                read_ip_options(&mut link.ip_options, families)
            }
            _ => {}
        }
    }
    Some(link)
}

fn apply_link_info(link: &mut Link, info: &LinkInfo) {
    match info {
        LinkInfo::Kind(InfoKind::Bond | InfoKind::Team) => link.kind = LinkKind::Bond,
        LinkInfo::Kind(InfoKind::Bridge) => link.kind = LinkKind::Bridge,
        LinkInfo::Kind(InfoKind::Vlan) => link.kind = LinkKind::Vlan,
        LinkInfo::Kind(InfoKind::Veth) => link.kind = LinkKind::Veth,
        LinkInfo::Kind(InfoKind::Tun) => link.kind = LinkKind::Tun,
        LinkInfo::Kind(InfoKind::Vxlan) => link.kind = LinkKind::Vxlan,
        LinkInfo::Kind(InfoKind::Other(kind)) if kind == "openvswitch" => {
            link.kind = LinkKind::OpenVSwitch;
        }
        LinkInfo::Data(InfoData::Vlan(data)) => {
            link.vlan = data.iter().find_map(|item| match item {
                InfoVlan::Id(id) => Some(*id),
                _ => None,
            });
        }
        LinkInfo::Data(InfoData::Bridge(data)) => {
            let mut options = BridgeOptions::default();
            for item in data {
                match item {
                    InfoBridge::VlanFiltering(on) => link.vlan_filtering = Some(*on),
                    InfoBridge::VlanDefaultPvid(id) => options.default_pvid = Some(*id),
                    InfoBridge::StpState(state) => {
                        options.is_stp_enabled = Some(*state != BridgeStpState::Disabled);
                    }
                    InfoBridge::ForwardDelay(delay) => options.forward_delay = Some(*delay),
                    InfoBridge::MulticastSnooping(on) => {
                        options.is_mcast_snooping_enabled = Some(*on)
                    }
                    _ => {}
                }
            }
            link.bridge = Some(options);
        }
        LinkInfo::Data(InfoData::Vxlan(data)) => {
            let mut tunnel = VxlanTunnel::default();
            for item in data {
                match item {
                    InfoVxlan::Id(vni) => tunnel.vni = Some(*vni),
                    InfoVxlan::Port(port) => tunnel.port = Some(*port),
                    InfoVxlan::Local(local) => tunnel.local_address = Some(IpAddr::V4(*local)),
                    InfoVxlan::Local6(local) => tunnel.local_address = Some(IpAddr::V6(*local)),
                    _ => {}
                }
            }
            link.tunnel = Some(tunnel);
        }
        _ => {}
    }
}

fn read_ip_options(ip: &mut IpOptions, families: &[AfSpecUnspec]) {
    for family in families {
        match family {
            AfSpecUnspec::Inet(items) => {
                for item in items {
                    if let AfSpecInet::DevConf(conf) = item {
                        ip.arp_ignore = Some(conf.arp_ignore);
                        ip.rp_filter = Some(conf.rp_filter);
                    }
                }
            }
            AfSpecUnspec::Inet6(items) => {
                for item in items {
                    match item {
                        AfSpecInet6::DevConf(conf) => {
                            ip.is_ipv6_disabled = Some(conf.disable_ipv6 != 0);
                        }
                        AfSpecInet6::AddrGenMode(mode) => {
                            ip.generates_ipv6_addresses = Some(*mode != In6AddrGenMode::None);
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
}

/// Interface index of the link on which a link is stacked (`parent`), and of the bridge or bond of which the link is a
/// port (`master`).
pub(super) struct LowerLinks {
    pub(super) master: Option<u32>,
    parent: Option<u32>,
}

pub(super) fn parse_lower_links(message: &LinkMessage) -> LowerLinks {
    let parent_in_other_namespace =
        message.attributes.iter().any(|a| matches!(a, LinkAttribute::LinkNetNsId(_)));
    let mut lower = LowerLinks { master: None, parent: None };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::Controller(index) => lower.master = Some(*index),
            // If the parent is in another network namespace, its interface index refers to an unrelated link in this
            // namespace.
            LinkAttribute::Link(index) if !parent_in_other_namespace => lower.parent = Some(*index),
            _ => {}
        }
    }
    lower
}

/// Parses the VLANs of a bridge port. The message contains single VLANs and ranges; a range is two entries, its first
/// and its last VLAN.
fn parse_port_vlans(message: &LinkMessage) -> Option<PortVlans> {
    let items = message.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::AfSpecBridge(items) => Some(items),
        _ => None,
    })?;
    // The driver of a card with an embedded switch also answers the request (`ndo_bridge_getlink`), with the mode of
    // this switch and without VLANs. Unlike the driver's answer, the bridge's answer has neither flags nor a mode.
    if items.iter().any(|item| matches!(item, AfSpecBridge::Flags(_) | AfSpecBridge::Mode(_))) {
        return None;
    }
    let mut vlans = PortVlans::default();
    let mut range_start = None;
    for item in items {
        let AfSpecBridge::VlanInfo(BridgeVlanInfo { vid, flags }) = item else { continue };
        if flags.contains(BridgeVlanInfoFlags::RangeBegin) {
            range_start = Some(*vid);
            continue;
        }
        let ids =
            (range_start.take().unwrap_or(*vid)..=*vid).filter_map(|id| VlanId::try_from(id).ok());
        for id in ids {
            vlans.all.insert(id);
            if flags.contains(BridgeVlanInfoFlags::Untagged) {
                vlans.untagged.insert(id);
            }
            if flags.contains(BridgeVlanInfoFlags::Pvid) {
                vlans.pvid = Some(id);
            }
        }
    }
    Some(vlans)
}

/// Reads the flood lists of all VXLAN links, as pairs of the link's interface index and a destination address.
fn read_flood_lists(netlink: &mut NetlinkReader) -> io::Result<Vec<(u32, IpAddr)>> {
    let mut request = NeighbourMessage::default();
    request.header.family = AddressFamily::Bridge;
    netlink.dump(&Message::GetNeighbour(request), |answer| {
        let Message::NewNeighbour(entry) = answer else { return None };
        let is_flood_entry = entry.attributes.iter().any(|attribute| {
            matches!(attribute, NeighbourAttribute::LinkLayerAddress(mac) if mac.iter().all(|octet| *octet == 0))
        });
        let destination = entry.attributes.iter().find_map(|attribute| match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(to)) => Some(IpAddr::V4(*to)),
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(to)) => Some(IpAddr::V6(*to)),
            // The family of these messages is `AF_BRIDGE` and not that of the address, so netlink-packet-route returns
            // the address as bytes.
            NeighbourAttribute::Destination(NeighbourAddress::Other(bytes)) => parse_ip(bytes),
            _ => None,
        });
        is_flood_entry.then_some((entry.header.ifindex, destination?))
    })
}

fn parse_ip(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(four) = <[u8; 4]>::try_from(bytes) {
        return Some(IpAddr::from(four));
    }
    <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from)
}

fn format_mac(octets: &[u8]) -> String {
    let octets: Vec<String> = octets.iter().map(|octet| format!("{octet:02x}")).collect();
    octets.join(":")
}

const fn to_link_state(state: &State) -> LinkState {
    match state {
        State::Up => LinkState::Up,
        State::Down => LinkState::Down,
        State::LowerLayerDown => LinkState::LowerLayerDown,
        State::Dormant => LinkState::Dormant,
        State::Testing => LinkState::Testing,
        State::NotPresent => LinkState::NotPresent,
        _ => LinkState::Unknown,
    }
}

/// Reads all IP addresses, each with the interface index of its link and its prefix length.
fn read_addresses(netlink: &mut NetlinkReader) -> io::Result<Vec<(u32, IpAddr, u8)>> {
    netlink.dump(&Message::GetAddress(AddressMessage::default()), |answer| {
        let Message::NewAddress(message) = answer else { return None };
        // On a point-to-point link, `Address` is the address of the other end; `Local` is always the address of this
        // host.
        let local = message.attributes.iter().find_map(|attribute| match attribute {
            AddressAttribute::Local(address) => Some(*address),
            _ => None,
        });
        let address = message.attributes.iter().find_map(|attribute| match attribute {
            AddressAttribute::Address(address) => Some(*address),
            _ => None,
        });
        Some((message.header.index, local.or(address)?, message.header.prefix_len))
    })
}

const fn is_link_local(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// Reads all routes, in one dump for each address family. Because a router may have a million routes, only one
/// destination is stored for each link.
fn read_routes(netlink: &mut NetlinkReader, names: &BTreeMap<u32, LinkName>) -> io::Result<Routes> {
    let mut routes = Routes { is_complete: true, ..Routes::default() };
    for request in route_requests() {
        netlink.dump(&request, |answer| -> Option<()> {
            let Message::NewRoute(route) = answer else { return None };
            let (is_default, destination) =
                (is_default_route(route), configured_destination(route));
            if !is_default && destination.is_none() {
                return None;
            }
            let mut link_indexes = route_link_indexes(route).peekable();
            // A route with a nexthop object (RTA_NH_ID) also names its links, unless net.ipv4.nexthop_compat_mode is
            // off.
            routes.is_complete &= link_indexes.peek().is_some();
            for name in link_indexes.filter_map(|index| names.get(&index)) {
                match &destination {
                    _ if is_default => drop(routes.default_links.insert(name.clone())),
                    Some(to) => routes.add_destination(name, to),
                    None => {}
                }
            }
            None
        })?;
    }
    Ok(routes)
}

pub(super) fn route_requests() -> [Message; 2] {
    [AddressFamily::Inet, AddressFamily::Inet6].map(|family| {
        let mut request = RouteMessage::default();
        request.header.address_family = family;
        Message::GetRoute(request)
    })
}

pub(super) fn is_default_route(route: &RouteMessage) -> bool {
    route.header.destination_prefix_length == 0 && route.header.kind == RouteType::Unicast
}

/// Returns the destination of a route that a user or a program has configured; `None` for a route that the kernel has
/// derived from an address.
fn configured_destination(route: &RouteMessage) -> Option<Destination> {
    let header = &route.header;
    if header.kind != RouteType::Unicast || header.protocol == RouteProtocol::Kernel {
        return None;
    }
    let address = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Destination(address) => to_ip_address(address),
        _ => None,
    })?;
    let leaves_host = !is_link_local(&address) && !address.is_multicast();
    leaves_host.then_some(Destination(address, header.destination_prefix_length))
}

/// Destination of a route: address and prefix length. To save time, it is converted to text only if it is stored.
struct Destination(IpAddr, u8);

impl std::fmt::Display for Destination {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.0, self.1)
    }
}

pub(super) const fn to_ip_address(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some(IpAddr::V4(*address)),
        RouteAddress::Inet6(address) => Some(IpAddr::V6(*address)),
        _ => None,
    }
}

/// Reads the names and interface indexes of all links.
///
/// # Errors
/// Returns an error if the kernel does not answer.
pub fn read_link_indexes(netlink: &mut NetlinkReader) -> io::Result<BTreeMap<LinkName, u32>> {
    let name_and_index = |message: &LinkMessage| {
        let name = message.attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::IfName(name) => name.parse().ok(),
            _ => None,
        })?;
        Some((name, message.header.index))
    };
    let mask = LinkExtentMask::SkipStats;
    Ok(dump_links(netlink, AddressFamily::Unspec, mask, name_and_index)?.into_iter().collect())
}

/// Returns the interface indexes of the links that a route uses: one link, or several links of a multipath route.
fn route_link_indexes(message: &RouteMessage) -> impl Iterator<Item = u32> {
    message.attributes.iter().flat_map(|attribute| match attribute {
        RouteAttribute::Oif(index) => vec![*index],
        RouteAttribute::MultiPath(hops) => hops.iter().map(|hop| hop.interface_index).collect(),
        _ => Vec::new(),
    })
}
