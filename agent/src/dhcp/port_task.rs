//! The task of one port: receives frames of the guest, and sends the answers through the same port.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_dhcp_responder::{AnswerKind, Direction, Outcome, ProbeAnswer};
use berth_runtime::token_bucket::TokenBucket;
use socket2::SockFilter;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, sleep_until};

use super::advertisement_timer::AdvertisementTimer;
use super::declines::{Decline, DeclineSender};
use super::frame_filters::{FrameFilters, GuestFrameRateLimit};
use super::metrics::DhcpMetrics;
use super::network_probes::{NetworkProbes, next_probe};
use super::port::{Port, source_address};
use super::port_plan::ServedPort;
use super::problems::{PortProblem, Problem};
use super::served_network::ServedNetwork;
use crate::packet_socket::{Frame, PacketSocket};

/// Rate limit of batches with frames of the guest: the number that is read at once, and the interval after which one
/// more batch is read. A guest that sends more loses frames in its own socket, and the other guests are answered
/// without delay.
const BATCH_RATE_LIMIT: (u32, Duration) = (32, Duration::from_millis(100));
/// Delay after an error of the socket, for example while the link is down.
const ERROR_DELAY: Duration = Duration::from_millis(20);

/// Data that all tasks of the service share.
#[derive(Debug, Clone)]
pub(super) struct DhcpContext {
    pub(super) metrics: DhcpMetrics,
    pub(super) problems: mpsc::Sender<PortProblem>,
    pub(super) filters: Arc<FrameFilters>,
    /// Start of the agent, from which the responders measure time.
    pub(super) started: Instant,
}

/// Serves a port until the network has no more leases. `index` is its interface index.
pub(super) async fn serve_port(
    socket: PacketSocket,
    (index, plan): (u32, ServedPort),
    mut network: watch::Receiver<Arc<ServedNetwork>>,
    probes: Arc<NetworkProbes>,
    shared: DhcpContext,
) {
    let mut port = Port::new(Arc::clone(&network.borrow_and_update()), Arc::clone(&probes));
    // Until a guest with a lease has sent a frame, the port may belong to a machine that Berth did not create.
    let mut probes_to_guest = Some(probes.subscribe());
    let mut token_bucket = TokenBucket::new(BATCH_RATE_LIMIT.0, BATCH_RATE_LIMIT.1);
    let mut guest_frame_limit = GuestFrameRateLimit::new();
    let mut advertisement_timer = AdvertisementTimer::new(tokio::time::Instant::now());
    loop {
        let limited_until = guest_frame_limit.limited_until();
        let mut has_guest_frames = false;
        let mut declines = Vec::new();
        let answer = |frame: Frame<'_>| {
            has_guest_frames |= !frame.is_outgoing;
            if !frame.is_outgoing || guest_frame_limit.allows_frame(Instant::now()) {
                declines.extend(answer_frame(&socket, &mut port, (&plan, &probes), &shared, frame));
            }
        };
        tokio::select! {
            received = socket.receive(answer) => {
                let is_error = received.is_err();
                if let Err(error) = received {
                    tracing::debug!(port = %plan.name, %error, "failed to receive frames");
                    sleep(ERROR_DELAY).await;
                }
                if limited_until.is_none() && guest_frame_limit.limited_until().is_some() {
                    shared.metrics.rate_limited.inc();
                    set_filter(&socket, &plan, &shared.filters.requests_only);
                }
                for decline in declines {
                    handle_decline(decline, (index, &plan), &probes, &shared).await;
                }
                if port.has_known_guest() {
                    probes_to_guest = None;
                }
                if !has_guest_frames && !is_error {
                    continue;
                }
                if let Err(wait) = token_bucket.take_token(Instant::now()) {
                    shared.metrics.rate_limited.inc();
                    sleep(wait).await;
                }
            }
            changed = network.changed() => {
                if changed.is_err() {
                    return;
                }
                port.set_network(Arc::clone(&network.borrow_and_update()));
                if !port.has_known_guest() && probes_to_guest.is_none() {
                    probes_to_guest = Some(probes.subscribe());
                }
                // The routes may have changed.
                advertisement_timer.expedite(tokio::time::Instant::now());
            }
            probe = next_probe(&mut probes_to_guest) => {
                if let Some(frame) = probe.frame_to_guest()
                    && let Err(error) = socket.send(&frame)
                {
                    tracing::debug!(port = %plan.name, %error, "failed to send an address probe");
                }
            }
            () = sleep_until(advertisement_timer.due_at()) => {
                if let Some(frame) = port.advertisement() {
                    let sent = socket.send(&frame);
                    count_sent(&shared, &plan, AnswerKind::RouterAdvertisement, sent);
                }
                advertisement_timer.restart(tokio::time::Instant::now());
            }
            () = end_of_rate_limit(limited_until) => {
                guest_frame_limit.allow_frames();
                set_filter(&socket, &plan, &shared.filters.all_frames);
            }
        }
    }
}

/// Waits until the end of the rate limit; forever if there is none.
async fn end_of_rate_limit(limited_until: Option<Instant>) {
    match limited_until {
        Some(end) => sleep_until(end.into()).await,
        None => std::future::pending().await,
    }
}

fn set_filter(socket: &PacketSocket, plan: &ServedPort, filter: &[SockFilter]) {
    // If the filter cannot be replaced, the rate limit still applies.
    if let Err(error) = socket.set_filter(filter) {
        tracing::debug!(port = %plan.name, %error, "failed to replace the filter of the socket");
    }
}

/// Answers or reports a frame. Returns the [`Decline`] if the frame is a DHCPDECLINE or a DHCPv6 Decline.
fn answer_frame(
    socket: &PacketSocket,
    port: &mut Port,
    (plan, probes): (&ServedPort, &NetworkProbes),
    shared: &DhcpContext,
    frame: Frame<'_>,
) -> Option<Decline> {
    if !frame.is_outgoing
        && let Some(answer) = ProbeAnswer::parse(frame.bytes)
    {
        if let Some(conflict) = probes.observe(answer) {
            shared.metrics.address_conflicts.inc();
            let machine = port.machine(conflict.owner);
            report_problem(shared, plan, Problem::AddressInUse { conflict, machine });
        }
        return None;
    }
    let source = source_address(frame.bytes);
    let direction = if frame.is_outgoing { Direction::ToGuest } else { Direction::FromGuest };
    let Some(outcome) = port.handle(direction, frame.bytes, shared.started.elapsed()) else {
        shared.metrics.count_ignored(TOO_MANY_GUESTS);
        return None;
    };
    match outcome {
        Outcome::Answer { kind, frame } => count_sent(shared, plan, kind, socket.send(&frame)),
        Outcome::Ignored(reason) => shared.metrics.count_ignored(reason),
        Outcome::ForeignServer(server) => {
            shared.metrics.count_foreign_server(server.kind);
            report_problem(shared, plan, Problem::ForeignServer(server));
        }
        Outcome::Declined(declined) => {
            if let Some(answer) = &declined.answer {
                count_sent(shared, plan, AnswerKind::Dhcpv6Reply, socket.send(answer));
            }
            let mac = source?;
            return Some(Decline { address: declined.address, mac, machine: port.machine(mac) });
        }
    }
    None
}

/// Withholds an address that the VM of its lease declined. Other declines are ignored.
async fn handle_decline(
    decline: Decline,
    (index, plan): (u32, &ServedPort),
    probes: &NetworkProbes,
    shared: &DhcpContext,
) {
    let sender = decline.sender(index, plan).await.unwrap_or_else(|error| {
        tracing::debug!(port = %plan.name, %error, "failed to read the bridge's forwarding database");
        DeclineSender::Unknown
    });
    let Decline { address, machine, .. } = decline;
    match sender {
        DeclineSender::Owner => {
            shared.metrics.declined.inc();
            probes.decline(address);
            report_problem(shared, plan, Problem::DeclinedAddress(address));
        }
        DeclineSender::OtherVm => {
            shared.metrics.count_ignored(FOREIGN_DECLINE);
            report_problem(shared, plan, Problem::ForeignDecline { address, machine });
        }
        DeclineSender::Unknown => shared.metrics.count_ignored(UNKNOWN_SENDER),
    }
}

fn report_problem(shared: &DhcpContext, plan: &ServedPort, problem: Problem) {
    // A full channel already contains problems of this network that will be reported, so this problem may be dropped.
    drop(shared.problems.try_send(PortProblem { port: plan.clone(), problem }));
}

/// Reason of an ignored frame, as a label of the metric: the port has too many Ethernet addresses.
const TOO_MANY_GUESTS: &str = "too_many_guests";
/// Reason of an ignored frame, as a label of the metric: the answer could not be sent.
const SEND_FAILED: &str = "send_failed";
/// Reason of an ignored frame, as a label of the metric: a VM declined the address of another VM.
const FOREIGN_DECLINE: &str = "foreign_decline";
/// Reason of an ignored frame, as a label of the metric: it is unknown which VM sent the decline.
const UNKNOWN_SENDER: &str = "unknown_sender";

fn count_sent(shared: &DhcpContext, plan: &ServedPort, kind: AnswerKind, sent: io::Result<()>) {
    match sent {
        Ok(()) => shared.metrics.count_answer(kind),
        // The guest repeats its request.
        Err(error) => {
            shared.metrics.count_ignored(SEND_FAILED);
            tracing::debug!(port = %plan.name, %error, "failed to send an answer");
        }
    }
}
