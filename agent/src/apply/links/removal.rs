//! Removals, one link after the other. Each holds the kernel's lock for all links while it waits for every CPU
//! to forget it (some 20 ms for a bridge), and a pod that starts needs that lock: so there is a pause as long
//! as the removal took.

use std::io;
use std::time::{Duration, Instant};

use berth_api::LinkName;
use rtnetlink::packet_route::RouteNetlinkMessage as Message;
use rtnetlink::packet_route::link::{LinkAttribute, LinkExtentMask, LinkMessage};

use super::super::Hands;
use super::super::outcome::Ended;
use super::messages::Indexes;
use super::step;
use crate::netlink::Netlink;
use crate::observe::links::indexes;
use crate::plan::Change;
use crate::plan::network::LinkOp;

/// The longest pause after a removal.
const PAUSE: Duration = Duration::from_millis(200);

/// Removes as many as there is time for, and tells of each as it is done.
pub(super) fn carry_out(hands: &Hands, changes: &[&Change], ended: &mut dyn FnMut(&Change, Ended)) {
    let begin = Instant::now();
    let opened = Netlink::open().and_then(|mut netlink| Ok((indexes(&mut netlink)?, netlink)));
    let failed = |error: io::Error| Ended::Failed(format!("netlink: {error}"));
    let (indexes, mut netlink) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            let message = error.to_string();
            changes
                .iter()
                .for_each(|change| ended(change, failed(io::Error::other(message.clone()))));
            return;
        }
    };
    for change in changes {
        if hands.budget.is_some_and(|budget| begin.elapsed() > budget) {
            return;
        }
        let ops = change.links().map(|work| work.ops.as_slice()).unwrap_or_default();
        ended(change, one(hands, &mut netlink, &indexes, ops).unwrap_or_else(failed));
        hands.alive();
    }
}

fn one(
    hands: &Hands,
    netlink: &mut Netlink,
    indexes: &Indexes,
    ops: &[LinkOp],
) -> io::Result<Ended> {
    // Somebody may have attached a VM since the plan was made, and the kernel would not mind. So it is looked at
    // before the way out is taken away.
    let ours = |port: &String| ops.iter().any(|op| op.link().as_str() == port);
    for op in ops {
        if let LinkOp::Remove(name) = op {
            let mut others = ports(netlink, indexes, name)?;
            others.retain(|port| !ours(port));
            if !others.is_empty() {
                return Ok(Ended::Blocked(format!("{name}: {} came meanwhile", others.join(", "))));
            }
        }
    }
    for op in ops {
        // It may be another bridge's by now.
        if let LinkOp::Leave { port, bridge } = op
            && !ports(netlink, indexes, bridge)?.iter().any(|now| now == port.as_str())
        {
            continue;
        }
        let begin = Instant::now();
        let result = step(hands, netlink, indexes, &[op])?.pop().unwrap_or(Ok(()));
        if let Err(why) = result {
            return Ok(Ended::Failed(why));
        }
        std::thread::sleep(begin.elapsed().min(PAUSE));
    }
    Ok(Ended::Done(None))
}

/// Ports of a bridge at this moment.
fn ports(netlink: &mut Netlink, indexes: &Indexes, bridge: &LinkName) -> io::Result<Vec<String>> {
    let Some(index) = indexes.get(bridge).copied() else { return Ok(Vec::new()) };
    let mut request = LinkMessage::default();
    request.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
    request.attributes.push(LinkAttribute::Controller(index));
    let is_port = |attribute: &LinkAttribute| *attribute == LinkAttribute::Controller(index);
    let name = |attribute: &LinkAttribute| match attribute {
        LinkAttribute::IfName(name) => Some(name.clone()),
        _ => None,
    };
    netlink.dump(&Message::GetLink(request), |answer| match answer {
        Message::NewLink(link) if link.attributes.iter().any(is_port) => {
            link.attributes.iter().find_map(name)
        }
        _ => None,
    })
}
