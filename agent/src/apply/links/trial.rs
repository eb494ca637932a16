//! Trials: a change that may interrupt the host's own traffic is applied, and rolled back if it interrupts this
//! traffic.
//!
//! Before the change, a note of how to roll it back is saved durably, and another process ([`guard`]) waits with the
//! note. If the agent's process ends before the end of the trial, the change is rolled back by the guard after the
//! deadline, by the next start of the agent, or by a reboot.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use berth_api::LinkName;
use rtnetlink::packet_route::RouteNetlinkMessage as Message;
use rtnetlink::packet_route::neighbour::{
    NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use serde::{Deserialize, Serialize};

use super::error::{RollbackResult, TrialError, TrialFailure, TrialNotStarted};
use super::guard;
pub use super::guard::GUARD_COMMAND as GUARD;
use super::messages;
use super::steps::apply_steps;
use crate::apply::context::ApplyContext;
use crate::apply::settings;
use crate::host_write::HostWrite as _;
use crate::netlink::{ChangeMode, Netlink};
use crate::plan::network::LinkAction;
use crate::state_folder::save_ledger;
use berth_host_facts::ledger::Ledger;
use berth_host_facts::links::{Gateway, observe_live, read_default_gateways, read_link_indexes};
use berth_host_facts::root::{ReadError, Root};

/// Path of the note about the trial in progress.
pub const NOTE_FILE: &str = "var/lib/berth/trial.json";

/// Time limit for an answer of a gateway after the change. A switch port with the spanning tree protocol forwards no
/// frames for 30 s (15 s of listening and 15 s of learning).
const GATEWAY_TIMEOUT: Duration = Duration::from_secs(35);
/// Time limit, before the change, for an answer of a gateway and for a connection to the API server.
const PRECHECK_TIMEOUT: Duration = Duration::from_secs(4);
/// Time limit for a connection to the API server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Additional time that the guard waits after the deadline of the agent's process.
const GUARD_GRACE_PERIOD: Duration = Duration::from_secs(5);
/// Interval between two reads of the state of the gateways, and between two connection attempts.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Note about a trial in progress, with all data that its rollback needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct TrialNote {
    #[serde(rename = "bootID")]
    boot_id: String,
    network: String,
    settings: String,
    port: LinkName,
    bridge: LinkName,
    /// Deadline, in hundredths of a second since boot.
    deadline: u64,
}

/// Applies the change, and rolls it back if a gateway that answered before the change no longer answers, or if the API
/// server no longer accepts connections. If the API server was unreachable before the change, its connections are not
/// checked after the change. Returns the message for a successful outcome.
///
/// # Errors
/// If the change was not applied, or its rollback began.
pub(super) fn run_trial(
    context: &ApplyContext,
    netlink: &mut Netlink,
    action: &LinkAction,
) -> Result<String, TrialError> {
    let Some((port, bridge)) = action.joined_uplink() else {
        return Err(TrialNotStarted::NoPortAdded.into());
    };
    let gateways = read_default_gateways(&mut netlink.reader).map_err(TrialNotStarted::Netlink)?;
    let reachable_gateways = reachable_gateways(context, netlink, &gateways, PRECHECK_TIMEOUT)
        .map_err(TrialNotStarted::Netlink)?;
    if reachable_gateways.is_empty() {
        return Err(TrialNotStarted::NoGateway(gateways).into());
    }
    let servers = (context.api_servers)();
    let has_server = can_connect(context, &servers, PRECHECK_TIMEOUT);
    let uptime = settings::uptime(context.root).ok_or(TrialNotStarted::UnknownUptime)?;
    let numbers = read_link_indexes(&mut netlink.reader).map_err(TrialNotStarted::Netlink)?;
    let note = TrialNote {
        boot_id: context.boot_id.to_owned(),
        network: action.network.clone(),
        settings: action.settings.clone().unwrap_or_default(),
        port: port.clone(),
        bridge: bridge.clone(),
        deadline: uptime
            + (GATEWAY_TIMEOUT + PRECHECK_TIMEOUT + GUARD_GRACE_PERIOD).as_secs() * 100,
    };
    let text = serde_json::to_string_pretty(&note).unwrap_or_default() + "\n";
    context.root.replace(NOTE_FILE, text.as_bytes()).map_err(TrialNotStarted::NoteNotWritten)?;
    // If no guard process can be started, only the note remains: the next start of the agent then rolls back the
    // change.
    let guard = guard::start_guard(context, note.deadline);
    tracing::info!(network = %note.network, port = %note.port, bridge = %note.bridge, %guard, "started a trial");
    let mut result = Ok(());
    for op in &action.ops {
        result = match apply_steps(context, netlink, &numbers, &[op]) {
            Ok(mut done) => done.pop().unwrap_or(Ok(())).map_err(TrialFailure::Step),
            Err(error) => Err(TrialFailure::Netlink(error)),
        };
        if result.is_err() {
            break;
        }
    }
    let changed = Instant::now();
    let result = result.and_then(|()| wait_until_reachable(context, netlink, &reachable_gateways));
    let result = result.and_then(|()| {
        let limit = GATEWAY_TIMEOUT.saturating_sub(changed.elapsed()).max(PRECHECK_TIMEOUT);
        if !has_server || can_connect(context, &servers, limit) {
            return Ok(());
        }
        Err(TrialFailure::ApiServer(servers.clone()))
    });
    if let Err(cause) = result {
        let cause = Box::new(cause);
        if let Err(source) = roll_back_trial(netlink, &note) {
            return Err(RollbackResult::RollbackFailed { cause, source }.into());
        }
        let gateways_answer = wait_until_reachable(context, netlink, &reachable_gateways).is_ok();
        drop(context.root.remove(NOTE_FILE));
        let port = port.clone();
        return Err(RollbackResult::RolledBack { cause, port, gateways_answer, guard }.into());
    }
    // If the note cannot be removed, a guard or the next start of the agent would roll back the change later. So the
    // change is rolled back now.
    if let Err(source) = context.root.remove(NOTE_FILE) {
        let rollback = roll_back_trial(netlink, &note);
        return Err(RollbackResult::NoteNotRemoved { source, port: port.clone(), rollback }.into());
    }
    Ok(format!("the gateway answers ({guard})"))
}

/// Rolls back a trial that an earlier agent process did not finish, and records the failed trial in the rollback
/// ledger. Returns a message if a change was rolled back.
///
/// # Errors
/// If the note or the boot ID cannot be read, the change cannot be rolled back, or a file of the state folder cannot be
/// written. Then the note stays, and no other change may be applied.
pub fn roll_back_unfinished_trial(root: &Root, boot_id: &str) -> Result<Option<String>, ReadError> {
    let text = match root.read_large(NOTE_FILE) {
        Err(error) if error.is_not_found() => return Ok(None),
        read => read?,
    };
    let malformed = |message: String| ReadError {
        path: NOTE_FILE.to_owned(),
        problem: berth_host_facts::root::ReadProblem::Malformed(message),
    };
    let note: TrialNote =
        serde_json::from_str(&text).map_err(|error| malformed(error.to_string()))?;
    // Without both boot IDs it is unknown whether the change is still in place.
    if boot_id.is_empty() || note.boot_id.is_empty() {
        return Err(malformed(format!(
            "a trial attached {}, and it is unknown whether the trial started in the current boot: {}",
            note.port,
            if boot_id.is_empty() {
                "/proc/sys/kernel/random/boot_id cannot be read"
            } else {
                "bootID is empty; remove the link from its bridge if it must not be a port, and delete the file"
            }
        )));
    }
    // A reboot undoes all changes of links.
    let mut message = None;
    if note.boot_id == boot_id {
        let done = Netlink::open().and_then(|mut netlink| roll_back_trial(&mut netlink, &note));
        done.map_err(|error| {
            malformed(format!("the trial of {} cannot be rolled back: {error}", note.port))
        })?;
        let reason =
            format!("berth-agent exited during the trial of {}, which was rolled back", note.port);
        let mut ledger = Ledger::read(root, Some(boot_id))?;
        let record = ledger.networks.entry(note.network).or_default();
        record.failed_trial = Some((note.settings, reason.clone()));
        save_ledger(&ledger, root, boot_id).map_err(|error| malformed(error.to_string()))?;
        message = Some(reason);
    }
    root.remove(NOTE_FILE).map_err(|error| malformed(error.to_string()))?;
    Ok(message)
}

/// Main function of the guard process: waits while the agent's process runs the trial, and rolls back the change if the
/// note still exists at the deadline.
pub fn run_guard(root: &Root) {
    let Ok(text) = root.read_large(NOTE_FILE) else { return };
    let Ok(note) = serde_json::from_str::<TrialNote>(&text) else { return };
    while settings::uptime(root).is_some_and(|now| now < note.deadline) {
        std::thread::sleep(Duration::from_millis(500));
        // The trial has ended, or the file has the note of another trial.
        if root.read_large(NOTE_FILE).ok().as_deref() != Some(&text) {
            return;
        }
    }
    // The note stays, so that the next start of the agent records the trial.
    drop(Netlink::open().and_then(|mut netlink| roll_back_trial(&mut netlink, &note)));
}

fn roll_back_trial(netlink: &mut Netlink, note: &TrialNote) -> io::Result<()> {
    let links = observe_live()?;
    let still_attached = links
        .find_by_name(&note.port)
        .is_some_and(|port| port.master.as_ref() == Some(&note.bridge));
    if !still_attached {
        return Ok(());
    }
    let leave =
        messages::set_master_message(&note.port, None, &read_link_indexes(&mut netlink.reader)?)
            .map_err(io::Error::other)?;
    netlink.send_change(leave.0, leave.1)?.map_err(io::Error::other)
}

/// Waits until all gateways answer, for [`GATEWAY_TIMEOUT`] at most. Returns an error if a gateway does not answer.
fn wait_until_reachable(
    context: &ApplyContext,
    netlink: &mut Netlink,
    gateways: &[Gateway],
) -> Result<(), TrialFailure> {
    let reachable = reachable_gateways(context, netlink, gateways, GATEWAY_TIMEOUT)
        .map_err(TrialFailure::Netlink)?;
    let unreachable_gateways: Vec<Gateway> =
        gateways.iter().filter(|gateway| !reachable.contains(gateway)).cloned().collect();
    if unreachable_gateways.is_empty() {
        return Ok(());
    }
    Err(TrialFailure::Gateways {
        gateways: unreachable_gateways,
        seconds: GATEWAY_TIMEOUT.as_secs(),
    })
}

/// Returns true if the API server accepts a connection on one of its addresses within the time
/// limit.
fn can_connect(context: &ApplyContext, servers: &[SocketAddr], limit: Duration) -> bool {
    let begin = Instant::now();
    while !servers.is_empty() {
        for server in servers {
            let remaining =
                limit.saturating_sub(begin.elapsed()).clamp(POLL_INTERVAL, CONNECT_TIMEOUT);
            if TcpStream::connect_timeout(server, remaining).is_ok() {
                return true;
            }
            context.report_progress();
        }
        if begin.elapsed() >= limit {
            break;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    false
}

/// Returns the gateways that answer an ARP or neighbour discovery request. Returns at the time limit, or as soon as all
/// gateways have answered.
fn reachable_gateways(
    context: &ApplyContext,
    netlink: &mut Netlink,
    gateways: &[Gateway],
    limit: Duration,
) -> io::Result<Vec<Gateway>> {
    let begin = Instant::now();
    let mut answered: Vec<Gateway> = Vec::new();
    let mut probed: Vec<Gateway> = Vec::new();
    while answered.len() < gateways.len() && begin.elapsed() < limit {
        for gateway in gateways
            .iter()
            .filter(|gateway| !answered.contains(gateway))
            .cloned()
            .collect::<Vec<_>>()
        {
            let (state, hardware) = read_neighbour(netlink, &gateway)?;
            let already_probed = probed.contains(&gateway);
            match state {
                Some(NeighbourState::Reachable) if already_probed => answered.push(gateway),
                Some(NeighbourState::Probe | NeighbourState::Incomplete) if already_probed => {}
                _ => {
                    send_neighbour_request(netlink, &gateway, hardware)?;
                    probed.push(gateway);
                }
            }
        }
        context.report_progress();
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(answered)
}

/// Makes the kernel send an ARP or neighbour discovery request to the gateway. An answer makes the neighbour entry
/// reachable, whatever its state was before.
fn send_neighbour_request(
    netlink: &mut Netlink,
    gateway: &Gateway,
    hardware: Option<Vec<u8>>,
) -> io::Result<()> {
    let mut message = NeighbourMessage::default();
    message.header.family = messages::address_family(gateway.address);
    message.header.ifindex = gateway.link_index;
    message
        .attributes
        .push(NeighbourAttribute::Destination(messages::neighbour_address(gateway.address)));
    match hardware {
        Some(hardware) => {
            message.header.state = NeighbourState::Probe;
            message.attributes.push(NeighbourAttribute::LinkLayerAddress(hardware));
        }
        None => message.header.flags = NeighbourFlags::Use,
    }
    // The kernel refuses this message if the link is down or does not use neighbour discovery. The gateway is
    // unreachable through such a link.
    netlink.send_change(ChangeMode::Append, Message::NewNeighbour(message)).map(drop)
}

fn read_neighbour(
    netlink: &mut Netlink,
    gateway: &Gateway,
) -> io::Result<(Option<NeighbourState>, Option<Vec<u8>>)> {
    let mut request = NeighbourMessage::default();
    request.header.family = messages::address_family(gateway.address);
    let destination = NeighbourAttribute::Destination(messages::neighbour_address(gateway.address));
    let known = netlink.reader.dump(&Message::GetNeighbour(request), |answer| {
        let Message::NewNeighbour(entry) = answer else { return None };
        let is_gateway_entry =
            entry.header.ifindex == gateway.link_index && entry.attributes.contains(&destination);
        let hardware = entry.attributes.iter().find_map(|attribute| match attribute {
            NeighbourAttribute::LinkLayerAddress(address) => Some(address.clone()),
            _ => None,
        });
        is_gateway_entry.then_some((entry.header.state, hardware))
    })?;
    let first = known.into_iter().next();
    Ok(first.map_or((None, None), |(state, hardware)| (Some(state), hardware)))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn one_reachable_server_address_is_sufficient() {
        let root = Root::open_live().unwrap();
        let context = ApplyContext::new(&root, "", &|| {});
        let [here, gone] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let closed = gone.local_addr().unwrap();
        drop(gone);
        assert!(can_connect(&context, &[closed, here.local_addr().unwrap()], POLL_INTERVAL));
        assert!(!can_connect(&context, &[closed], POLL_INTERVAL * 2));
        assert!(
            !can_connect(&context, &[], GATEWAY_TIMEOUT),
            "without servers the function does not wait"
        );
    }
}
