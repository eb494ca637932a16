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
use super::{Done, step};
use crate::netlink::Netlink;
use crate::observe::links::{indexes, live};
use crate::plan::Change;
use crate::plan::network::{LinkOp, holds};

/// The longest pause after a removal.
const PAUSE: Duration = Duration::from_millis(200);

/// Removes as many as there is time for.
pub(super) fn carry_out(hands: &Hands, changes: &[&Change]) -> Vec<Done> {
    all(hands, changes).into_iter().map(|ended| (ended, false)).collect()
}

fn all(hands: &Hands, changes: &[&Change]) -> Vec<Ended> {
    let begin = Instant::now();
    let mut ended = Vec::new();
    let mut netlink = match Netlink::open() {
        Ok(netlink) => netlink,
        Err(error) => {
            return changes.iter().map(|_| Ended::Failed(format!("netlink: {error}"))).collect();
        }
    };
    let indexes = match indexes(&mut netlink) {
        Ok(indexes) => indexes,
        Err(error) => {
            return changes.iter().map(|_| Ended::Failed(format!("netlink: {error}"))).collect();
        }
    };
    for change in changes {
        if hands.budget.is_some_and(|budget| begin.elapsed() > budget) {
            break;
        }
        let ops = change.links().map(|work| work.ops.as_slice()).unwrap_or_default();
        ended.push(match one(hands, &mut netlink, &indexes, ops) {
            Ok(ended) => ended,
            Err(error) => Ended::Failed(format!("netlink: {error}")),
        });
        hands.alive();
    }
    match live() {
        Err(error) => ended.iter().map(|_| Ended::Failed(format!("netlink: {error}"))).collect(),
        Ok(links) => changes
            .iter()
            .zip(ended)
            .map(|(change, ended)| {
                let ops = change.links().map(|work| work.ops.as_slice()).unwrap_or_default();
                let otherwise = ops.iter().find_map(|op| holds(op, &links).err());
                match (ended, otherwise) {
                    (Ended::Done(_), Some(why)) => Ended::Failed(why),
                    (ended, _) => ended,
                }
            })
            .collect(),
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
    let answers = netlink.dump(&Message::GetLink(request))?;
    Ok(answers
        .iter()
        .filter_map(|answer| match answer {
            Message::NewLink(link) if link.attributes.iter().any(is_port) => {
                link.attributes.iter().find_map(name)
            }
            _ => None,
        })
        .collect())
}
