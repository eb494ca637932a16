//! The task of one port: receives frames of the guest, and sends the answers through the same port.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_dhcp_responder::{AnswerKind, Direction, Outcome, Probe, ProbeAnswer};
use berth_runtime::token_bucket::TokenBucket;
use futures::future::OptionFuture;
use socket2::SockFilter;
use tokio::sync::{broadcast, mpsc, watch};
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
#[derive(Debug)]
pub(super) struct DhcpContext {
    pub(super) metrics: DhcpMetrics,
    pub(super) problems: mpsc::Sender<PortProblem>,
    pub(super) filters: Arc<FrameFilters>,
    /// Start of the agent, from which the responders measure time.
    pub(super) started: Instant,
}

/// A served port. It is on the heap, because the future of an `async fn` stores the arguments of the function twice.
#[derive(Debug)]
pub(super) struct PortTask {
    socket: PacketSocket,
    /// Interface index of the port.
    index: u32,
    plan: Arc<ServedPort>,
    network: watch::Receiver<Arc<ServedNetwork>>,
    probes: Arc<NetworkProbes>,
    shared: Arc<DhcpContext>,
    port: Port,
    /// Until a guest with a lease has sent a frame, the port may belong to a machine that Berth did not create.
    probes_to_guest: Option<broadcast::Receiver<Probe>>,
    token_bucket: TokenBucket,
    guest_frame_limit: GuestFrameRateLimit,
    advertisement_timer: AdvertisementTimer,
}

impl PortTask {
    pub(super) fn new(
        socket: PacketSocket,
        (index, plan): (u32, Arc<ServedPort>),
        mut network: watch::Receiver<Arc<ServedNetwork>>,
        probes: Arc<NetworkProbes>,
        shared: Arc<DhcpContext>,
    ) -> Self {
        let current = Arc::clone(&network.borrow_and_update());
        Self {
            socket,
            index,
            plan,
            network,
            port: Port::new(current, Arc::clone(&probes)),
            probes_to_guest: Some(probes.subscribe()),
            probes,
            shared,
            token_bucket: TokenBucket::new(BATCH_RATE_LIMIT.0, BATCH_RATE_LIMIT.1),
            guest_frame_limit: GuestFrameRateLimit::new(),
            advertisement_timer: AdvertisementTimer::new(tokio::time::Instant::now()),
        }
    }

    /// Waits for the next event. Only this function waits most of the time, so its future must be small.
    async fn next_event(&mut self) -> Event {
        let advertisement_due = self.advertisement_timer.due_at();
        let limited_until = self.guest_frame_limit.limited_until();
        let limited_until = limited_until.map(tokio::time::Instant::from_std);
        // One timer for both purposes, because each port has memory for its timers all the time.
        let due = limited_until.map_or(advertisement_due, |end| advertisement_due.min(end));
        // This future is on the heap, because a port whose guest is known does not need it.
        let probe = self.probes_to_guest.as_mut().map(|receiver| Box::pin(next_probe(receiver)));
        tokio::select! {
            ready = self.socket.readable() => Event::Readable(ready),
            changed = self.network.changed() => match changed {
                Ok(()) => Event::NetworkChanged,
                Err(_) => Event::NetworkEnded,
            },
            Some(probe) = OptionFuture::from(probe) => Event::Probe(probe),
            () = sleep_until(due) => Event::Due,
        }
    }

    /// Reads and answers frames.
    fn answer_frames(&mut self, ready: io::Result<()>) -> Batch {
        let (socket, plan, shared) = (&self.socket, &*self.plan, &*self.shared);
        let (port, probes) = (&mut self.port, &*self.probes);
        let guest_frame_limit = &mut self.guest_frame_limit;
        let was_limited = guest_frame_limit.limited_until().is_some();
        let mut batch = Batch::default();
        let answer = |frame: Frame<'_>| {
            batch.has_guest_frames |= !frame.is_outgoing;
            if !frame.is_outgoing || guest_frame_limit.allows_frame(Instant::now()) {
                batch.declines.extend(answer_frame(socket, port, (plan, probes), shared, frame));
            }
        };
        if let Err(error) = ready.and_then(|()| socket.read_frames(answer)) {
            tracing::debug!(port = %plan.name, %error, "failed to receive frames");
            batch.is_error = true;
        }
        if !was_limited && guest_frame_limit.limited_until().is_some() {
            shared.metrics.rate_limited.inc();
            set_filter(socket, plan, &shared.filters.requests_only);
        }
        batch
    }

    fn update_network(&mut self) {
        self.port.set_network(Arc::clone(&self.network.borrow_and_update()));
        if !self.port.has_known_guest() && self.probes_to_guest.is_none() {
            self.probes_to_guest = Some(self.probes.subscribe());
        }
        // The routes may have changed.
        self.advertisement_timer.expedite(tokio::time::Instant::now());
    }

    fn send_probe(&self, probe: Probe) {
        if let Some(frame) = probe.frame_to_guest()
            && let Err(error) = self.socket.send(&frame)
        {
            tracing::debug!(port = %self.plan.name, %error, "failed to send an address probe");
        }
    }

    /// Ends the rate limit and sends an advertisement, if they are due.
    fn handle_timer(&mut self) {
        let now = tokio::time::Instant::now();
        let limited_until = self.guest_frame_limit.limited_until();
        if limited_until.is_some_and(|end| tokio::time::Instant::from_std(end) <= now) {
            self.guest_frame_limit.allow_frames();
            set_filter(&self.socket, &self.plan, &self.shared.filters.all_frames);
        }
        if self.advertisement_timer.due_at() <= now {
            if let Some(frame) = self.port.advertisement() {
                let sent = self.socket.send(&frame);
                count_sent(&self.shared, &self.plan, AnswerKind::RouterAdvertisement, sent);
            }
            self.advertisement_timer.restart(now);
        }
    }
}

/// Event that a port waits for.
enum Event {
    /// Frames have arrived.
    Readable(io::Result<()>),
    NetworkChanged,
    /// The network has no more leases.
    NetworkEnded,
    /// A probe that the port sends to its guest.
    Probe(Probe),
    /// The rate limit ends, or an advertisement is due.
    Due,
}

/// Result of a batch of frames.
#[derive(Default)]
struct Batch {
    has_guest_frames: bool,
    is_error: bool,
    declines: Vec<Decline>,
}

/// Serves a port until the network has no more leases.
pub(super) async fn serve_port(mut task: Box<PortTask>) {
    loop {
        match task.next_event().await {
            Event::Readable(ready) => {
                let batch = task.answer_frames(ready);
                if batch.is_error {
                    sleep(ERROR_DELAY).await;
                }
                for decline in batch.declines {
                    let (plan, probes, shared) = (&*task.plan, &*task.probes, &*task.shared);
                    // Declines are rare, so their future occupies memory only while it runs.
                    Box::pin(handle_decline(decline, (task.index, plan), probes, shared)).await;
                }
                if task.port.has_known_guest() {
                    task.probes_to_guest = None;
                }
                let is_limited = batch.has_guest_frames || batch.is_error;
                if is_limited && let Err(wait) = task.token_bucket.take_token(Instant::now()) {
                    task.shared.metrics.rate_limited.inc();
                    sleep(wait).await;
                }
            }
            Event::NetworkChanged => task.update_network(),
            Event::NetworkEnded => return,
            Event::Probe(probe) => task.send_probe(probe),
            Event::Due => task.handle_timer(),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the size of the future that a function returns.
    fn size_of_future<A, F: Future>(_function: impl Fn(A) -> F) -> usize {
        size_of::<F>()
    }

    /// A host has a thousand ports, each with a task.
    #[test]
    fn the_task_of_a_port_is_small() {
        assert!(size_of::<PortTask>() <= 320, "{} bytes", size_of::<PortTask>());
        let future = size_of_future(serve_port);
        assert!(future <= 1024, "{future} bytes");
    }
}
