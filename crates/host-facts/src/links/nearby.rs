//! What stands on one link at this moment, for a last look before it is taken away; and what stands on links of this
//! network namespace in other ones.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use berth_api::LinkName;
use netlink_packet_route::RouteNetlinkMessage as Message;
use netlink_packet_route::link::{LinkAttribute, LinkExtentMask, LinkMessage};
use netlink_packet_route::nsid::{NsidAttribute, NsidMessage};
use nix::errno::Errno;

use super::netlink::{link, stacked};
use super::{Link, LinkKind, Links};
use crate::netlink::NetlinkReader;
use crate::root::Root;

/// A link and its master, their ports, and what is stacked on the two. Of a host with thousands of links this reads
/// some ten.
///
/// # Errors
/// If the kernel does not answer: then it is not known who uses the link.
pub fn nearby(netlink: &mut NetlinkReader, root: &Root, name: &LinkName) -> io::Result<Links> {
    let mut request = LinkMessage::default();
    request.attributes.push(LinkAttribute::IfName(name.to_string()));
    let Some((mut lower, master)) = get(netlink, request)? else { return Ok(Links::default()) };
    let mut found = Vec::new();
    if let Some(master) = master {
        let mut request = LinkMessage::default();
        request.header.index = master;
        if let Some((master, _)) = get(netlink, request)? {
            lower.master = Some(master.name.clone());
            found.push(master);
        }
    }
    found.push(lower);
    let mut elsewhere = stacked_elsewhere(netlink)?;
    let mut all = BTreeMap::new();
    for mut lower in found {
        for port in ports(netlink, &lower)? {
            all.entry(port.name.clone()).or_insert(port);
        }
        for upper in uppers(root, &lower)? {
            all.entry(upper.name.clone()).or_insert(upper);
        }
        lower.users_elsewhere = lower.index.and_then(|i| elsewhere.remove(&i)).unwrap_or_default();
        all.insert(lower.name.clone(), lower);
    }
    Ok(Links { all: all.into_values().collect(), ..Links::default() })
}

fn get(
    netlink: &mut NetlinkReader,
    mut request: LinkMessage,
) -> io::Result<Option<(Link, Option<u32>)>> {
    request.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
    let found = match netlink.get(Message::GetLink(request))? {
        Some(Message::NewLink(message)) => Some((link(&message), stacked(&message).master)),
        _ => None,
    };
    Ok(found.and_then(|(link, master)| Some((link?, master))))
}

/// The kernel itself selects links by their master.
fn ports(netlink: &mut NetlinkReader, bridge: &Link) -> io::Result<Vec<Link>> {
    let Some(index) = bridge.index else { return Ok(Vec::new()) };
    let mut request = LinkMessage::default();
    request.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
    request.attributes.push(LinkAttribute::Controller(index));
    netlink.dump(&Message::GetLink(request), |answer| match answer {
        Message::NewLink(message) if stacked(message).master == Some(index) => {
            Some(Link { master: Some(bridge.name.clone()), ..link(message)? })
        }
        _ => None,
    })
}

/// What is stacked on a link in this namespace, whatever its kind: the kernel's own list of it
/// (`netdev_adjacent_sysfs_add`).
fn uppers(root: &Root, lower: &Link) -> io::Result<Vec<Link>> {
    let folder = format!("sys/class/net/{}", lower.name);
    let entries = root.list(&folder).map_err(io::Error::other)?;
    let names = entries.iter().filter_map(|entry| entry.strip_prefix("upper_")?.parse().ok());
    let names = names.filter(|name| lower.master.as_ref() != Some(name));
    let upper =
        |name| Link { parent: Some(lower.name.clone()), ..Link::new(name, LinkKind::Other) };
    Ok(names.map(upper).collect())
}

/// Links of other network namespaces that are stacked on links of this one, by the number of the lower link.
///
/// A namespace is asked by the id that it has here (`IFLA_TARGET_NETNSID`): the kernel gives one to each that a veth
/// leads to, so every pod on the pod network has one. A namespace without is not seen.
pub(super) fn stacked_elsewhere(
    netlink: &mut NetlinkReader,
) -> io::Result<BTreeMap<u32, BTreeSet<String>>> {
    let namespaces = netlink.dump(&Message::GetNsId(NsidMessage::default()), namespace_id)?;
    let mut found = Vec::new();
    for id in namespaces {
        let mut request = LinkMessage::default();
        request.attributes.push(LinkAttribute::IfNetnsId(id));
        request.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
        let stacked = netlink.dump(&Message::GetLink(request), |answer| {
            let Message::NewLink(message) = answer else { return None };
            let (mut lower, mut of, mut asked, mut name) = (None, None, false, None);
            for attribute in &message.attributes {
                match attribute {
                    LinkAttribute::Link(index) => lower = Some(*index),
                    LinkAttribute::LinkNetNsId(id) => of = Some(*id),
                    // Kernels before 4.20 do not know the question, and answer about this namespace.
                    LinkAttribute::IfNetnsId(_) => asked = true,
                    LinkAttribute::IfName(text) => name = Some(text.clone()),
                    _ => {}
                }
            }
            let text = format!("{} (network namespace id {id})", name?);
            asked.then_some((lower?, of?, text))
        });
        match stacked {
            Ok(stacked) => found.extend(stacked),
            // The namespace is gone by now.
            Err(error) if error.raw_os_error() == Some(Errno::EINVAL as i32) => {}
            Err(error) => return Err(error),
        }
    }
    if found.is_empty() {
        return Ok(BTreeMap::new());
    }
    // This namespace may have got its own id by the answers above.
    let mut request = NsidMessage::default();
    request.attributes.push(NsidAttribute::Pid(std::process::id()));
    let own = netlink.get(Message::GetNsId(request))?.as_ref().and_then(namespace_id);
    let mut users: BTreeMap<u32, BTreeSet<String>> = BTreeMap::new();
    for (lower, _, text) in found.into_iter().filter(|(_, of, _)| Some(*of) == own) {
        users.entry(lower).or_default().insert(text);
    }
    Ok(users)
}

fn namespace_id(message: &Message) -> Option<i32> {
    let Message::NewNsId(message) = message else { return None };
    message.attributes.iter().find_map(|attribute| match attribute {
        // -1 is none (`NETNSA_NSID_NOT_ASSIGNED`).
        NsidAttribute::Id(id) => Some(*id).filter(|id| *id >= 0),
        _ => None,
    })
}
