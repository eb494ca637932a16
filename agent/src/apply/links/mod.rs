//! Carries out what is planned for links: many changes in one message where they do not depend on each other,
//! removals one by one; then one look at what became of all of them.

pub mod error;
mod filter;
mod guard;
mod kernel;
mod messages;
mod removal;
mod task;
pub mod trial;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use berth_api::infra_node::ChangeResult;
use berth_api::{LinkName, VlanSet};
use rtnetlink::packet_route::RouteNetlinkMessage;

use super::Hands;
use super::outcome::{Ended, Outcome};
use crate::host_write::HostWrite as _;
use crate::netlink::{How, Netlink};
use crate::plan::network::{FilterWork, LinkOp, LinkWork, Stage, WantedKind};
use crate::plan::{Change, ChangeId};
use berth_host_facts::ledger::Ledger;
use error::StepError;
pub use kernel::Kernel;
use kernel::Live;
use messages::Indexes;
use task::Task;

/// Changes between two signs of life.
const WAVE: usize = 512;

/// How a change ended, and whether it was on trial and taken back.
type Done = (Ended, bool);

/// Carries out changes of links, in the order of their stages. Fewer outcomes than changes mean that there was
/// no time for the last ones, which are removals.
pub(super) fn carry_out(
    hands: &Hands,
    changes: &[&Change],
    ledger: &mut Ledger,
    told: &mut dyn FnMut(&Outcome),
) -> Vec<Outcome> {
    match hands.kernel {
        Some(kernel) => carry_out_on(&mut *kernel.borrow_mut(), hands, changes, ledger, told),
        None => carry_out_on(&mut Live::new(hands), hands, changes, ledger, told),
    }
}

fn carry_out_on(
    kernel: &mut dyn Kernel,
    hands: &Hands,
    changes: &[&Change],
    ledger: &mut Ledger,
    told: &mut dyn FnMut(&Outcome),
) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    let mut lost: BTreeMap<&str, &ChangeId> = BTreeMap::new();
    let mut unfiltered: Option<&ChangeId> = None;
    // What is on trial has nothing beside it: a probe tells of one change only.
    let together =
        |a: &&Change, b: &&Change| stage_of(a) == stage_of(b) && !is_trial(a) && !is_trial(b);
    for stage in changes.chunk_by(together) {
        if stage_of(stage[0]) == Some(Stage::Filter) {
            for change in stage {
                let work = change.links().and_then(|work| work.filter.as_ref());
                let done = work.map_or(Ok(()), |work| kernel.filter(work));
                let ended = done
                    .map_or_else(|error| Ended::Failed(error.to_string()), |()| Ended::Done(None));
                let outcome = Outcome::of(change, ended);
                if let (Some(work), ChangeResult::Done) = (change.links(), outcome.result) {
                    settle(work, ledger);
                } else {
                    unfiltered = Some(&change.id);
                }
                told(&outcome);
                outcomes.push(outcome);
            }
            continue;
        }
        if stage_of(stage[0]) == Some(Stage::Removals) {
            removal::carry_out(hands, kernel, stage, &mut |change, ended| {
                let outcome = Outcome::of(change, ended);
                if let (Some(work), ChangeResult::Done) = (change.links(), outcome.result) {
                    settle(work, ledger);
                }
                told(&outcome);
                outcomes.push(outcome);
            });
            continue;
        }
        let possible = |change: &&Change| waits_for(change, &lost, unfiltered).is_none();
        let possible: Vec<&Change> = stage.iter().copied().filter(possible).collect();
        let mut done = all_at_once(hands, kernel, &possible).into_iter();
        for change in stage {
            let (ended, taken_back) = match waits_for(change, &lost, unfiltered) {
                Some(first) => (Ended::Blocked(format!("waits for: {first}")), false),
                None => {
                    done.next().unwrap_or_else(|| (Ended::Failed("not done".to_owned()), false))
                }
            };
            let outcome = Outcome::of(change, ended);
            if let Some(work) = change.links() {
                if outcome.result == ChangeResult::Done {
                    settle(work, ledger);
                } else if stage_of(change) < Some(Stage::Tenants) {
                    lost.insert(&work.network, &change.id);
                }
                if taken_back {
                    let made = ledger.networks.entry(work.network.clone()).or_default();
                    let why = outcome.message.clone().unwrap_or_default();
                    made.trial = Some((work.settings.clone().unwrap_or_default(), why));
                }
            }
            told(&outcome);
            outcomes.push(outcome);
        }
        hands.alive();
    }
    outcomes
}

fn is_trial(change: &Change) -> bool {
    change.links().is_some_and(|work| work.trial)
}

fn stage_of(change: &Change) -> Option<Stage> {
    change.links().map(|work| work.stage)
}

/// What a change stands on, if that could not be made.
fn waits_for<'a>(
    change: &Change,
    lost: &BTreeMap<&str, &'a ChangeId>,
    unfiltered: Option<&'a ChangeId>,
) -> Option<&'a ChangeId> {
    let work = change.links().filter(|work| work.stage != Stage::Removals)?;
    let filter = unfiltered.filter(|_| change.waits_for_filter());
    filter.or_else(|| lost.get(work.network.as_str()).copied())
}

/// Remembers what is in place now.
fn settle(work: &LinkWork, ledger: &mut Ledger) {
    match &work.filter {
        Some(FilterWork::Replace(filter)) => ledger.filter = Some(filter.clone()),
        Some(FilterWork::Delete) => ledger.filter = None,
        None => {}
    }
    if work.interim {
        return;
    }
    if let Some(settings) = &work.settings {
        let made = ledger.networks.entry(work.network.clone()).or_default();
        if made.settings != *settings {
            made.settings.clone_from(settings);
            made.tenants.clear();
            made.trial = None;
        }
        made.tenants.extend(work.made.clone());
    }
    if let Some(made) = ledger.networks.get_mut(&work.network) {
        made.tenants.retain(|id, _| !work.gone.contains(id));
        if work.uplink.is_some() {
            made.uplink.clone_from(&work.uplink);
            made.joining.clear();
        }
    }
    for op in &work.ops {
        if let LinkOp::Down(name) = op {
            ledger.raised.remove(name);
        }
    }
}

/// Changes that do not depend on each other: the first steps of all, then the second ones.
fn all_at_once(hands: &Hands, kernel: &mut dyn Kernel, changes: &[&Change]) -> Vec<Done> {
    let mut tasks: Vec<Task> =
        changes.iter().filter_map(|change| Some(Task::new(change.links()?))).collect();
    // Where VMs lose the network, they lose it for their own tenant's links alone and not for all others' too.
    let together = |a: &Task, b: &Task| !a.work.may_disrupt && !b.work.may_disrupt;
    let waves = tasks.chunk_by_mut(together).flat_map(|wave| wave.chunks_mut(WAVE));
    let mut result = Ok(());
    for wave in waves {
        result = run(kernel, wave);
        hands.alive();
        if result.is_err() {
            break;
        }
    }
    match result.and_then(|()| kernel.links().map_err(Arc::new)) {
        Ok(links) => tasks.iter().map(|task| (task.judge(&links), task.taken_back)).collect(),
        Err(error) => {
            let failed =
                |task: &Task| (Ended::Failed(format!("netlink: {error}")), task.taken_back);
            tasks.iter().map(failed).collect()
        }
    }
}

/// Runs tasks to their ends.
fn run(kernel: &mut dyn Kernel, tasks: &mut [Task]) -> Result<(), Arc<io::Error>> {
    // A change on trial is alone, and has a probe around it.
    if let [task] = tasks
        && task.work.trial
    {
        return task.try_out(kernel).map_err(Arc::new);
    }
    let mut broken = None;
    loop {
        if let Err(error) = check(kernel, tasks) {
            let error = Arc::new(error);
            stop_all(tasks, &error);
            broken = Some(error);
        }
        let mut open: Vec<&mut Task> =
            tasks.iter_mut().filter(|task| task.op().is_some()).collect();
        if open.is_empty() {
            raise(kernel, tasks).map_err(Arc::new)?;
            return broken.map_or(Ok(()), Err);
        }
        let steps: Vec<&LinkOp> = open.iter().filter_map(|task| task.op()).collect();
        match kernel.step(&steps) {
            Ok(results) => {
                for (task, result) in open.iter_mut().zip(results) {
                    task.took(result);
                }
            }
            // What was there before is restored, if the kernel answers to that.
            Err(error) if broken.is_none() => {
                let error = Arc::new(error);
                stop_all(tasks, &error);
                broken = Some(error);
            }
            Err(error) => return Err(Arc::new(error)),
        }
    }
}

fn stop_all(tasks: &mut [Task], error: &Arc<io::Error>) {
    for task in tasks.iter_mut().filter(|task| !task.is_stopped() && task.op().is_some()) {
        task.took(Err(StepError::Netlink(Arc::clone(error))));
    }
}

/// Looks again, right before steps that take something away: a VM may have been attached since the plan was made.
fn check(kernel: &mut dyn Kernel, tasks: &mut [Task]) -> io::Result<()> {
    if tasks.iter().any(Task::needs_check) {
        let links = kernel.links()?;
        tasks.iter_mut().for_each(|task| task.check(&links));
    }
    Ok(())
}

/// Raises what was made.
fn raise(kernel: &mut dyn Kernel, tasks: &mut [Task]) -> io::Result<()> {
    let made = tasks.iter().enumerate();
    let (owners, ops): (Vec<usize>, Vec<&LinkOp>) =
        made.flat_map(|(place, task)| task.made().map(move |op| (place, op))).unzip();
    if ops.is_empty() {
        return Ok(());
    }
    for (place, answer) in owners.into_iter().zip(kernel.raise(&ops)?) {
        if let (Some(task), Err(why)) = (tasks.get_mut(place), answer) {
            task.not_raised(why);
        }
    }
    Ok(())
}

/// The kernel's numbers of the links that steps name, as they are now.
fn numbers(netlink: &mut Netlink, ops: &[&LinkOp]) -> io::Result<Indexes> {
    let mut names: Vec<&LinkName> = ops.iter().flat_map(|op| named(op)).collect();
    names.sort_unstable();
    names.dedup();
    let numbers = netlink.reader.numbers(&names)?;
    Ok(names.into_iter().cloned().zip(numbers).filter_map(|(name, n)| Some((name, n?))).collect())
}

/// Links that a step names by number.
fn named(op: &LinkOp) -> Vec<&LinkName> {
    match op {
        LinkOp::Make(wanted) | LinkOp::Settle(wanted) => {
            let below = match &wanted.kind {
                WantedKind::Vlan { parent, .. } => Some(parent),
                _ => None,
            };
            // What is made has no number yet.
            let itself = matches!(op, LinkOp::Settle(_)).then_some(&wanted.name);
            itself.into_iter().chain(below).chain(&wanted.master).collect()
        }
        LinkOp::Join { bridge, .. } => vec![bridge],
        LinkOp::RemoveAddresses { link, .. } => vec![link],
        LinkOp::AddVlans { port, .. } | LinkOp::RemoveVlans { port, .. } => vec![port],
        LinkOp::Peers { link, .. } => vec![link],
        LinkOp::Unfilter(_)
        | LinkOp::Up(_)
        | LinkOp::Down(_)
        | LinkOp::Leave { .. }
        | LinkOp::Remove(_) => Vec::new(),
    }
}

/// One step of each of many changes; links that are made are not up after it.
pub(super) fn step(
    hands: &Hands,
    netlink: &mut Netlink,
    indexes: &Indexes,
    ops: &[&LinkOp],
) -> io::Result<Vec<Result<(), StepError>>> {
    let has_ipv6 = hands.root.exists("proc/sys/net/ipv6/conf/all");
    let first: Vec<_> = ops.iter().map(|op| first_messages(op, indexes, has_ipv6)).collect();
    let mut results = send(netlink, indexes, ops, first)?;
    // Only what was made here is settled: what refused to be made may be another's link of that name.
    let made = ops.iter().zip(&results).map(|(op, result)| match (op, result) {
        (LinkOp::Make(wanted), Ok(())) => {
            let settle = messages::settle(wanted, indexes, has_ipv6)?;
            Ok(vec![(How::Change, RouteNetlinkMessage::NewLink(settle))])
        }
        _ => Ok(Vec::new()),
    });
    let settled = send(netlink, indexes, ops, made.collect())?;
    for (result, settled) in results.iter_mut().zip(settled) {
        if result.is_ok() {
            *result = settled;
        }
    }
    // Not by netlink, and before the link is up: else it would have an address by then.
    for (op, result) in ops.iter().zip(&mut results) {
        if let (LinkOp::Make(wanted) | LinkOp::Settle(wanted), Ok(()), true) =
            (op, &*result, has_ipv6)
        {
            let path = format!("proc/sys/net/ipv6/conf/{}/disable_ipv6", wanted.name);
            if hands.root.exists(&path) {
                *result = hands.root.write(&path, "1").map_err(StepError::Sysctl);
            }
        }
    }
    Ok(results)
}

type Messages = Vec<(How, RouteNetlinkMessage)>;

fn first_messages(op: &LinkOp, indexes: &Indexes, has_ipv6: bool) -> Result<Messages, StepError> {
    use RouteNetlinkMessage::NewLink;
    let settle = |wanted| messages::settle(wanted, indexes, has_ipv6);
    Ok(match op {
        LinkOp::Make(wanted) => vec![(How::Create, NewLink(messages::make(wanted, indexes)?))],
        LinkOp::Settle(wanted) => vec![(How::Change, NewLink(settle(wanted)?))],
        LinkOp::RemoveAddresses { link, addresses } => {
            messages::remove_addresses(link, addresses, indexes)?
        }
        LinkOp::Unfilter(name) => vec![messages::unfilter(name)],
        LinkOp::Up(name) => vec![messages::up(name, true)],
        LinkOp::Down(name) => vec![messages::up(name, false)],
        LinkOp::Join { port, bridge } => vec![messages::master(port, Some(bridge), indexes)?],
        LinkOp::Leave { port, .. } => vec![messages::master(port, None, indexes)?],
        LinkOp::AddVlans { port, vlans } => vec![messages::add_vlans(port, vlans, indexes)?],
        LinkOp::RemoveVlans { port, vlans, itself } => {
            vec![messages::remove_vlans(port, vlans, *itself, indexes)?]
        }
        LinkOp::Peers { link, add, remove } => messages::peers(link, add, remove, indexes)?,
        LinkOp::Remove(name) => vec![messages::remove(name)],
    })
}

/// Sends the messages of many steps; each step ends with the first that is refused.
fn send(
    netlink: &mut Netlink,
    indexes: &Indexes,
    ops: &[&LinkOp],
    messages: Vec<Result<Messages, StepError>>,
) -> io::Result<Vec<Result<(), StepError>>> {
    let mut results = Vec::new();
    let mut owners = Vec::new();
    let mut all = Vec::new();
    for (place, messages) in messages.into_iter().enumerate() {
        results.push(messages.as_ref().map(|_| ()).map_err(Clone::clone));
        for message in messages.unwrap_or_default() {
            owners.push(place);
            all.push(message);
        }
    }
    for (place, answer) in owners.into_iter().zip(netlink.change(all)?) {
        if let (Err(refused), Some(result), Some(op)) =
            (answer, results.get_mut(place), ops.get(place))
            && result.is_ok()
        {
            *result = Err(StepError::refused(op, refused));
        }
    }
    // VLANs in one message end at the first that is refused: then each for itself.
    for (op, result) in ops.iter().zip(&mut results) {
        if let (LinkOp::AddVlans { port, vlans }, Err(_)) = (op, &*result)
            && vlans.len() > 1
        {
            *result = one_by_one(netlink, indexes, port, vlans)?;
        }
    }
    Ok(results)
}

fn one_by_one(
    netlink: &mut Netlink,
    indexes: &Indexes,
    port: &LinkName,
    vlans: &VlanSet,
) -> io::Result<Result<(), StepError>> {
    let single = |id| messages::add_vlans(port, &std::iter::once(id).collect(), indexes);
    let messages: Result<Messages, StepError> = vlans.iter().map(single).collect();
    let messages = match messages {
        Ok(messages) => messages,
        Err(error) => return Ok(Err(error)),
    };
    let answers = netlink.change(messages)?;
    let mut refused =
        answers.into_iter().zip(vlans.iter()).filter_map(|(answer, id)| Some((id, answer.err()?)));
    Ok(match refused.next() {
        None => Ok(()),
        Some((id, why)) => {
            let op = LinkOp::AddVlans { port: port.clone(), vlans: std::iter::once(id).collect() };
            let first = Box::new(StepError::refused(&op, why));
            Err(StepError::Vlans { id, first, others: refused.count() })
        }
    })
}

/// Notes which links are about to become uplinks.
pub(super) fn note_joins(work: &LinkWork, ledger: &mut Ledger) {
    if let Some((port, _)) = work.joins() {
        let made = ledger.networks.entry(work.network.clone()).or_default();
        if made.uplink.as_ref() != Some(port) {
            made.joining.insert(port.clone());
        }
    }
}

/// Names of uplinks that a plan raises.
pub(super) fn raises(work: &LinkWork) -> BTreeSet<LinkName> {
    let raised = work.ops.iter().filter_map(|op| match op {
        LinkOp::Up(name) => Some(name.clone()),
        _ => None,
    });
    raised.collect()
}

/// One step by itself, by the numbers that links have now.
///
/// # Errors
/// If the kernel does not answer, or what it said.
pub fn step_alone(
    root: &berth_host_facts::root::Root,
    op: &LinkOp,
) -> io::Result<Result<(), StepError>> {
    let mut netlink = Netlink::open()?;
    let indexes = numbers(&mut netlink, &[op])?;
    let hands = Hands::new(root, "", &|| {});
    Ok(step(&hands, &mut netlink, &indexes, &[op])?.pop().unwrap_or(Ok(())))
}
