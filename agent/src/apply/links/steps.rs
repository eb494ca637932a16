//! Applies steps on links, through netlink and sysctl files.

use std::io;

use berth_api::{LinkName, VlanSet};
use rtnetlink::packet_route::RouteNetlinkMessage;

use super::error::StepError;
use super::messages::{self, LinkIndexes};
use crate::apply::context::ApplyContext;
use crate::host_write::HostWrite as _;
use crate::netlink::{ChangeMode, Netlink};
use crate::plan::network::{DesiredKind, LinkOp};

/// Returns the current indexes of the links that the messages of the steps identify by index.
pub(super) fn link_indexes(netlink: &mut Netlink, ops: &[&LinkOp]) -> io::Result<LinkIndexes> {
    let mut names: Vec<&LinkName> = ops.iter().flat_map(|op| referenced_links(op)).collect();
    names.sort_unstable();
    names.dedup();
    let numbers = netlink.reader.read_link_indexes(&names)?;
    Ok(names.into_iter().cloned().zip(numbers).filter_map(|(name, n)| Some((name, n?))).collect())
}

/// Returns the links that the messages of a step identify by index.
fn referenced_links(op: &LinkOp) -> Vec<&LinkName> {
    match op {
        LinkOp::Create(desired) | LinkOp::SetProperties(desired) => {
            let parent = match &desired.kind {
                DesiredKind::Vlan { parent, .. } => Some(parent),
                _ => None,
            };
            // A link that the step creates has no index yet.
            let itself = matches!(op, LinkOp::SetProperties(_)).then_some(&desired.name);
            itself.into_iter().chain(parent).chain(&desired.master).collect()
        }
        LinkOp::Join { bridge, .. } => vec![bridge],
        LinkOp::RemoveAddresses { link, .. } => vec![link],
        LinkOp::AddVlans { port, .. } | LinkOp::RemoveVlans { port, .. } => vec![port],
        LinkOp::UpdatePeers { link, .. } => vec![link],
        LinkOp::DisableVlanFiltering(_)
        | LinkOp::Up(_)
        | LinkOp::Down(_)
        | LinkOp::Leave { .. }
        | LinkOp::Remove(_) => Vec::new(),
    }
}

/// Applies one step of each of several independent changes. Links that are created are still down afterwards.
pub(super) fn apply_steps(
    context: &ApplyContext,
    netlink: &mut Netlink,
    indexes: &LinkIndexes,
    ops: &[&LinkOp],
) -> io::Result<Vec<Result<(), StepError>>> {
    let has_ipv6 = context.root.exists("proc/sys/net/ipv6/conf/all");
    let first: Vec<_> = ops.iter().map(|op| first_messages(op, indexes, has_ipv6)).collect();
    let mut results = send_messages(netlink, indexes, ops, first)?;
    // Properties are set only on links that the first messages created: if the kernel refused to create a link, the
    // link of that name may belong to another program.
    let property_messages = ops.iter().zip(&results).map(|(op, result)| match (op, result) {
        (LinkOp::Create(desired), Ok(())) => {
            let message = messages::set_properties_message(desired, indexes, has_ipv6)?;
            Ok(vec![(ChangeMode::Change, RouteNetlinkMessage::NewLink(message))])
        }
        _ => Ok(Vec::new()),
    });
    let property_results = send_messages(netlink, indexes, ops, property_messages.collect())?;
    for (result, settled) in results.iter_mut().zip(property_results) {
        if result.is_ok() {
            *result = settled;
        }
    }
    // Sysctls are written before the link is up, because otherwise the link would already have an
    // address.
    for (op, result) in ops.iter().zip(&mut results) {
        if let (LinkOp::Create(desired) | LinkOp::SetProperties(desired), Ok(()), true) =
            (op, &*result, has_ipv6)
        {
            let path = format!("proc/sys/net/ipv6/conf/{}/disable_ipv6", desired.name);
            if context.root.exists(&path) {
                *result = context.root.write(&path, "1").map_err(StepError::Sysctl);
            }
        }
    }
    Ok(results)
}

type Messages = Vec<(ChangeMode, RouteNetlinkMessage)>;

fn first_messages(
    op: &LinkOp,
    indexes: &LinkIndexes,
    has_ipv6: bool,
) -> Result<Messages, StepError> {
    use RouteNetlinkMessage::NewLink;
    let set_properties = |desired| messages::set_properties_message(desired, indexes, has_ipv6);
    Ok(match op {
        LinkOp::Create(desired) => {
            vec![(ChangeMode::Create, NewLink(messages::create_link_message(desired, indexes)?))]
        }
        LinkOp::SetProperties(desired) => {
            vec![(ChangeMode::Change, NewLink(set_properties(desired)?))]
        }
        LinkOp::RemoveAddresses { link, addresses } => {
            messages::remove_address_messages(link, addresses, indexes)?
        }
        LinkOp::DisableVlanFiltering(name) => vec![messages::disable_vlan_filtering_message(name)],
        LinkOp::Up(name) => vec![messages::set_state_message(name, true)],
        LinkOp::Down(name) => vec![messages::set_state_message(name, false)],
        LinkOp::Join { port, bridge } => {
            vec![messages::set_master_message(port, Some(bridge), indexes)?]
        }
        LinkOp::Leave { port, .. } => vec![messages::set_master_message(port, None, indexes)?],
        LinkOp::AddVlans { port, vlans } => {
            vec![messages::add_vlans_message(port, vlans, indexes)?]
        }
        LinkOp::RemoveVlans { port, vlans, bridge_self: itself } => {
            vec![messages::remove_vlans_message(port, vlans, *itself, indexes)?]
        }
        LinkOp::UpdatePeers { link, add, remove } => {
            messages::peer_messages(link, add, remove, indexes)?
        }
        LinkOp::Remove(name) => vec![messages::remove_link_message(name)],
    })
}

/// Sends the messages of many steps. The result of a step is the error of its first message that the kernel refused.
fn send_messages(
    netlink: &mut Netlink,
    indexes: &LinkIndexes,
    ops: &[&LinkOp],
    messages: Vec<Result<Messages, StepError>>,
) -> io::Result<Vec<Result<(), StepError>>> {
    let mut results = Vec::new();
    let mut op_indexes = Vec::new();
    let mut all = Vec::new();
    for (op_index, messages) in messages.into_iter().enumerate() {
        results.push(messages.as_ref().map(|_| ()).map_err(Clone::clone));
        for message in messages.unwrap_or_default() {
            op_indexes.push(op_index);
            all.push(message);
        }
    }
    for (op_index, answer) in op_indexes.into_iter().zip(netlink.send_changes(all)?) {
        if let (Err(refused), Some(result), Some(op)) =
            (answer, results.get_mut(op_index), ops.get(op_index))
            && result.is_ok()
        {
            *result = Err(StepError::from_refusal(op, refused));
        }
    }
    // The kernel stops at the first VLAN of a message that it refuses. So all VLANs of the message are sent again, each
    // in a separate message.
    for (op, result) in ops.iter().zip(&mut results) {
        if let (LinkOp::AddVlans { port, vlans }, Err(_)) = (op, &*result)
            && vlans.len() > 1
        {
            *result = add_vlans_individually(netlink, indexes, port, vlans)?;
        }
    }
    Ok(results)
}

fn add_vlans_individually(
    netlink: &mut Netlink,
    indexes: &LinkIndexes,
    port: &LinkName,
    vlans: &VlanSet,
) -> io::Result<Result<(), StepError>> {
    let single = |id| messages::add_vlans_message(port, &std::iter::once(id).collect(), indexes);
    let messages: Result<Messages, StepError> = vlans.iter().map(single).collect();
    let messages = match messages {
        Ok(messages) => messages,
        Err(error) => return Ok(Err(error)),
    };
    let answers = netlink.send_changes(messages)?;
    let mut refused =
        answers.into_iter().zip(vlans.iter()).filter_map(|(answer, id)| Some((id, answer.err()?)));
    Ok(match refused.next() {
        None => Ok(()),
        Some((id, error)) => {
            let op = LinkOp::AddVlans { port: port.clone(), vlans: std::iter::once(id).collect() };
            let first = Box::new(StepError::from_refusal(&op, error));
            Err(StepError::VlansRefused { id, first, other_count: refused.count() })
        }
    })
}

/// Applies one step, with the current indexes of the links.
///
/// # Errors
/// If the kernel does not answer, or if it refuses the step.
pub fn apply_single_step(
    root: &berth_host_facts::root::Root,
    op: &LinkOp,
) -> io::Result<Result<(), StepError>> {
    let mut netlink = Netlink::open()?;
    let indexes = link_indexes(&mut netlink, &[op])?;
    let context = ApplyContext::new(root, "", &|| {});
    Ok(apply_steps(&context, &mut netlink, &indexes, &[op])?.pop().unwrap_or(Ok(())))
}
