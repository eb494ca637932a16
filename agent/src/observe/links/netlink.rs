//! Links, addresses and routes from the running kernel, each in one dump.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use berth_api::LinkName;
use berth_api::infra_node::LinkState;
use futures::TryStreamExt;
use rtnetlink::packet_route::address::AddressAttribute;
use rtnetlink::packet_route::link::{
    InfoBridge, InfoData, InfoKind, InfoVlan, LinkAttribute, LinkInfo, LinkMessage, State,
};
use rtnetlink::packet_route::route::{RouteAttribute, RouteMessage, RouteType};
use rtnetlink::{Handle, RouteMessageBuilder};

use super::{Link, LinkKind, names_by_index};

/// What the kernel said.
pub(super) struct Dump {
    pub(super) links: Vec<Link>,
    /// Links that default routes use.
    pub(super) default_routes: BTreeSet<LinkName>,
}

/// Asks the kernel. The runtime lives for this one conversation only.
pub(super) fn dump() -> anyhow::Result<Dump> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let (connection, handle, _) = rtnetlink::new_connection()?;
        let connection = tokio::spawn(connection);
        let dump = ask(&handle).await;
        connection.abort();
        Ok(dump?)
    })
}

async fn ask(handle: &Handle) -> Result<Dump, rtnetlink::Error> {
    let messages: Vec<LinkMessage> = handle.link().get().execute().try_collect().await?;
    let mut links: Vec<Link> = messages.iter().filter_map(link).collect();
    let names = names_by_index(&links);
    let by_index: BTreeMap<u32, &LinkMessage> =
        messages.iter().map(|message| (message.header.index, message)).collect();
    for link in &mut links {
        let Some(message) = link.index.and_then(|index| by_index.get(&index)) else { continue };
        stack(link, message, &names);
    }
    add_addresses(handle, &mut links).await?;
    let default_routes = default_routes(handle, &names).await?;
    Ok(Dump { links, default_routes })
}

/// The link without its relations, as those are by number. A name the kernel's rule forbids cannot
/// come; if it did, the link would be left out rather than misnamed.
fn link(message: &LinkMessage) -> Option<Link> {
    let name = message.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => name.parse().ok(),
        _ => None,
    })?;
    let mut link = Link::new(name, LinkKind::Other);
    link.index = Some(message.header.index);
    if link.name.as_str() == "lo" {
        link.kind = LinkKind::Loopback;
    }
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::Address(octets) if !octets.is_empty() => link.mac = Some(mac(octets)),
            LinkAttribute::Mtu(mtu) => link.mtu = Some(*mtu),
            LinkAttribute::OperState(state) => link.state = Some(link_state(state)),
            LinkAttribute::IfAlias(alias) => link.alias = Some(alias.clone()),
            LinkAttribute::LinkInfo(infos) => infos.iter().for_each(|info| take(&mut link, info)),
            _ => {}
        }
    }
    Some(link)
}

fn take(link: &mut Link, info: &LinkInfo) {
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
            link.vlan_filtering = data.iter().find_map(|item| match item {
                InfoBridge::VlanFiltering(on) => Some(*on),
                _ => None,
            });
        }
        _ => {}
    }
}

fn stack(link: &mut Link, message: &LinkMessage, names: &BTreeMap<u32, LinkName>) {
    let elsewhere = message.attributes.iter().any(|a| matches!(a, LinkAttribute::LinkNetNsId(_)));
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::Controller(index) => link.master = names.get(index).cloned(),
            // The peer's number in another namespace would name a stranger here.
            LinkAttribute::Link(index) if !elsewhere && Some(*index) != link.index => {
                link.parent = names.get(index).cloned();
            }
            _ => {}
        }
    }
}

fn mac(octets: &[u8]) -> String {
    let octets: Vec<String> = octets.iter().map(|octet| format!("{octet:02x}")).collect();
    octets.join(":")
}

const fn link_state(state: &State) -> LinkState {
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

async fn add_addresses(handle: &Handle, links: &mut [Link]) -> Result<(), rtnetlink::Error> {
    let mut messages = handle.address().get().execute();
    while let Some(message) = messages.try_next().await? {
        // On point-to-point links `Address` is the other end; `Local` is always ours.
        let ours = message.attributes.iter().find_map(|attribute| match attribute {
            AddressAttribute::Local(address) => Some(*address),
            _ => None,
        });
        let any = message.attributes.iter().find_map(|attribute| match attribute {
            AddressAttribute::Address(address) => Some(*address),
            _ => None,
        });
        let Some(address) = ours.or(any).filter(|address| !is_link_local(address)) else {
            continue;
        };
        let owner = links.iter_mut().find(|link| link.index == Some(message.header.index));
        if let Some(link) = owner {
            link.addresses.push(format!("{address}/{}", message.header.prefix_len));
        }
    }
    links.iter_mut().for_each(|link| link.addresses.sort_unstable());
    Ok(())
}

const fn is_link_local(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

async fn default_routes(
    handle: &Handle,
    names: &BTreeMap<u32, LinkName>,
) -> Result<BTreeSet<LinkName>, rtnetlink::Error> {
    let four = RouteMessageBuilder::<Ipv4Addr>::new().build();
    let six = RouteMessageBuilder::<Ipv6Addr>::new().build();
    let mut found = BTreeSet::new();
    for request in [four, six] {
        let mut messages = handle.route().get(request).execute();
        while let Some(message) = messages.try_next().await? {
            let default = message.header.destination_prefix_length == 0
                && message.header.kind == RouteType::Unicast;
            if default {
                found.extend(links_used(&message).filter_map(|index| names.get(&index).cloned()));
            }
        }
    }
    Ok(found)
}

/// One link, or several of a multipath route.
fn links_used(message: &RouteMessage) -> impl Iterator<Item = u32> {
    message.attributes.iter().flat_map(|attribute| match attribute {
        RouteAttribute::Oif(index) => vec![*index],
        RouteAttribute::MultiPath(hops) => hops.iter().map(|hop| hop.interface_index).collect(),
        _ => Vec::new(),
    })
}
