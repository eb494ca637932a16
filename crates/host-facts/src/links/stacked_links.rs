//! Reads the links that depend on a link, for the last check before that link is removed.

use std::collections::BTreeMap;
use std::io;

use berth_api::LinkName;
use netlink_packet_route::RouteNetlinkMessage as Message;
use netlink_packet_route::link::{LinkAttribute, LinkExtentMask, LinkMessage};

use super::link::{Link, LinkKind};
use super::netlink::{parse_link, parse_lower_links};
use super::other_namespaces::read_links_in_other_namespaces;
use super::table::Links;
use crate::netlink::NetlinkReader;
use crate::root::Root;

/// Reads a link and its master (a bridge or bond), the ports of both, and the links that are stacked on them. Only
/// about ten links are read on a host with thousands of links.
///
/// # Errors
/// Returns an error if the kernel does not answer. It is then unknown which links depend on the link.
pub fn read_stacked_links(
    netlink: &mut NetlinkReader,
    root: &Root,
    name: &LinkName,
) -> io::Result<Links> {
    let mut request = LinkMessage::default();
    request.attributes.push(LinkAttribute::IfName(name.to_string()));
    let Some((mut lower, master)) = get_link(netlink, request)? else {
        return Ok(Links::default());
    };
    let mut found = Vec::new();
    if let Some(master) = master {
        let mut request = LinkMessage::default();
        request.header.index = master;
        if let Some((master, _)) = get_link(netlink, request)? {
            lower.master = Some(master.name.clone());
            found.push(master);
        }
    }
    found.push(lower);
    let mut users_in_other_namespaces = read_links_in_other_namespaces(netlink)?;
    let mut all = BTreeMap::new();
    for mut lower in found {
        for port in read_ports(netlink, &lower)? {
            all.entry(port.name.clone()).or_insert(port);
        }
        for upper in read_upper_links(root, &lower)? {
            all.entry(upper.name.clone()).or_insert(upper);
        }
        lower.users_in_other_namespaces =
            lower.index.and_then(|i| users_in_other_namespaces.remove(&i)).unwrap_or_default();
        all.insert(lower.name.clone(), lower);
    }
    Ok(Links { all: all.into_values().collect(), ..Links::default() })
}

fn get_link(
    netlink: &mut NetlinkReader,
    mut request: LinkMessage,
) -> io::Result<Option<(Link, Option<u32>)>> {
    request.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
    let found = match netlink.get_object(Message::GetLink(request))? {
        Some(Message::NewLink(message)) => {
            Some((parse_link(&message), parse_lower_links(&message).master))
        }
        _ => None,
    };
    Ok(found.and_then(|(link, master)| Some((link?, master))))
}

/// Reads the ports of a bridge or bond. The request makes the kernel return only links with this master.
fn read_ports(netlink: &mut NetlinkReader, bridge: &Link) -> io::Result<Vec<Link>> {
    let Some(index) = bridge.index else { return Ok(Vec::new()) };
    let mut request = LinkMessage::default();
    request.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
    request.attributes.push(LinkAttribute::Controller(index));
    netlink.dump(&Message::GetLink(request), |answer| match answer {
        Message::NewLink(message) if parse_lower_links(message).master == Some(index) => {
            Some(Link { master: Some(bridge.name.clone()), ..parse_link(message)? })
        }
        _ => None,
    })
}

/// Reads the links of this network namespace, of any kind, that are stacked on a link. The kernel lists them in the
/// link's folder in sysfs (`netdev_adjacent_sysfs_add`).
fn read_upper_links(root: &Root, lower: &Link) -> io::Result<Vec<Link>> {
    let folder = format!("sys/class/net/{}", lower.name);
    let entries = root.list(&folder).map_err(io::Error::other)?;
    let names = entries.iter().filter_map(|entry| entry.strip_prefix("upper_")?.parse().ok());
    let names = names.filter(|name| lower.master.as_ref() != Some(name));
    let upper_link =
        |name| Link { parent: Some(lower.name.clone()), ..Link::new(name, LinkKind::Other) };
    Ok(names.map(upper_link).collect())
}
