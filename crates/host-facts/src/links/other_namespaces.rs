//! Reads links in other network namespaces that are stacked on links of this namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use netlink_packet_route::RouteNetlinkMessage as Message;
use netlink_packet_route::link::{LinkAttribute, LinkExtentMask, LinkMessage};
use netlink_packet_route::nsid::{NsidAttribute, NsidMessage};
use nix::errno::Errno;

use crate::netlink::NetlinkReader;

/// Returns the links in other network namespaces that are stacked on links of this namespace, by the interface index of
/// the link on which they are stacked.
///
/// Netlink identifies another namespace by an id that is valid only in this namespace (`IFLA_TARGET_NETNSID`). The
/// kernel assigns an id to each namespace that has the other end of a veth pair, so every pod on the pod network has an
/// id. Links in a namespace without an id cannot be read.
pub(super) fn read_links_in_other_namespaces(
    netlink: &mut NetlinkReader,
) -> io::Result<BTreeMap<u32, BTreeSet<String>>> {
    let namespaces = netlink.dump(&Message::GetNsId(NsidMessage::default()), parse_namespace_id)?;
    let mut found = Vec::new();
    for id in namespaces {
        let mut request = LinkMessage::default();
        request.attributes.push(LinkAttribute::IfNetnsId(id));
        request.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
        let stacked = netlink.dump(&Message::GetLink(request), |answer| {
            let Message::NewLink(message) = answer else { return None };
            let (mut lower, mut parent_namespace, mut is_requested_namespace, mut name) =
                (None, None, false, None);
            for attribute in &message.attributes {
                match attribute {
                    LinkAttribute::Link(index) => lower = Some(*index),
                    LinkAttribute::LinkNetNsId(id) => parent_namespace = Some(*id),
                    // Kernels before 4.20 ignore this attribute in the request, and return the links of this namespace,
                    // without the attribute.
                    LinkAttribute::IfNetnsId(_) => is_requested_namespace = true,
                    LinkAttribute::IfName(text) => name = Some(text.clone()),
                    _ => {}
                }
            }
            let description = format!("{} (network namespace id {id})", name?);
            is_requested_namespace.then_some((lower?, parent_namespace?, description))
        });
        match stacked {
            Ok(stacked) => found.extend(stacked),
            // The namespace was deleted after its id was read.
            Err(error) if error.raw_os_error() == Some(Errno::EINVAL as i32) => {}
            Err(error) => return Err(error),
        }
    }
    if found.is_empty() {
        return Ok(BTreeMap::new());
    }
    // Answers refer to this namespace by an id, which the kernel may have assigned only for the requests above.
    let mut request = NsidMessage::default();
    request.attributes.push(NsidAttribute::Pid(std::process::id()));
    let own_id =
        netlink.get_object(Message::GetNsId(request))?.as_ref().and_then(parse_namespace_id);
    let mut users: BTreeMap<u32, BTreeSet<String>> = BTreeMap::new();
    for (lower, _, description) in
        found.into_iter().filter(|(_, namespace, _)| Some(*namespace) == own_id)
    {
        users.entry(lower).or_default().insert(description);
    }
    Ok(users)
}

fn parse_namespace_id(message: &Message) -> Option<i32> {
    let Message::NewNsId(message) = message else { return None };
    message.attributes.iter().find_map(|attribute| match attribute {
        // -1 means that no id is assigned to the namespace (`NETNSA_NSID_NOT_ASSIGNED`).
        NsidAttribute::Id(id) => Some(*id).filter(|id| *id >= 0),
        _ => None,
    })
}
