//! The task that probes the addresses of one network: through the ports of VMs, and through the link by which frames
//! leave the host.

use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_api::infra_node::AddressConflictStatus;
use berth_dhcp_responder::{PROBE_INTERVAL, Probe, ProbeAnswer, ProbeStep, probe_filter};
use tokio::sync::{Mutex, watch};
use tokio::time::{sleep, sleep_until};

use super::conflicts::AddressConflicts;
use super::egress_plan::EgressLink;
use super::frame_filters::to_sock_filters;
use super::network_probes::NetworkProbes;
use super::port_plan::ServedPort;
use super::port_task::DhcpContext;
use super::problems::{PortProblem, Problem};
use super::served_network::ServedNetwork;
use crate::packet_socket::{Frame, PacketSocket};

/// Time for each frame of a probe, so that all networks of the host together send at most 1000 frames per second.
const FRAME_INTERVAL: Duration = Duration::from_millis(1);
/// Receive buffer for answers through the link that leaves the host, in bytes.
const RECEIVE_BUFFER_BYTES: usize = 128 << 10;

/// Time after which conflicts are published while many probes follow each other.
const PUBLISH_INTERVAL: Duration = Duration::from_secs(1);

/// Data that all probers share.
#[derive(Debug, Clone)]
pub(super) struct ProberContext {
    /// The prober that holds the lock may send. Waiting probers acquire the lock in FIFO order.
    send_lock: Arc<Mutex<()>>,
    conflicts: AddressConflicts,
}

impl ProberContext {
    pub(super) fn new(conflicts: AddressConflicts) -> Self {
        Self { send_lock: Arc::default(), conflicts }
    }
}

/// Probes the addresses of one network.
#[derive(Debug)]
pub(super) struct Prober {
    /// Name of the network.
    pub(super) name: String,
    pub(super) probes: Arc<NetworkProbes>,
    pub(super) network: watch::Receiver<Arc<ServedNetwork>>,
    pub(super) egress: watch::Receiver<Option<EgressLink>>,
    pub(super) shared: Arc<DhcpContext>,
    pub(super) prober_context: ProberContext,
}

/// Socket on the link that leaves the host. It is open only while answers may arrive, because the kernel passes every
/// frame of the link to its filter.
#[derive(Debug)]
struct EgressSocket {
    link: EgressLink,
    socket: PacketSocket,
}

impl Prober {
    /// Runs until the network has no more leases.
    pub(super) async fn run(self) {
        let (mut network, mut egress_link) = (self.network.clone(), self.egress.clone());
        network.mark_changed();
        let mut egress: Option<EgressSocket> = None;
        let mut published = Instant::now();
        loop {
            // New leases are read between two probes: probing all addresses may take long, and a VM may boot in the
            // meantime.
            match network.has_changed() {
                Ok(true) => self.probes.set_leases(&network.borrow_and_update()),
                Ok(false) => {}
                Err(_) => return,
            }
            if egress_link.has_changed().unwrap_or(true) {
                egress_link.mark_unchanged();
                egress = None;
            }
            self.receive_pending(egress.as_ref()).await;
            let until = match self.probes.poll() {
                ProbeStep::Send(probe) => {
                    if egress.is_none() {
                        egress = self.open_egress_socket();
                    }
                    self.send(probe, egress.as_ref()).await;
                    if published.elapsed() >= PUBLISH_INTERVAL {
                        self.publish_conflicts();
                        published = Instant::now();
                    }
                    continue;
                }
                ProbeStep::Wait(until) => Some(until.saturating_sub(self.probes.now())),
                ProbeStep::Idle => None,
            };
            self.publish_conflicts();
            // No answer is expected later than [`PROBE_INTERVAL`] after a probe, so the socket is closed if the next
            // probe is later.
            if until.is_none_or(|until| until > PROBE_INTERVAL) {
                egress = None;
            }
            tokio::select! {
                () = sleep_for(until) => {}
                () = self.probes.wait_for_change() => {}
                () = self.receive(egress.as_ref()) => {}
                _ = network.changed() => network.mark_changed(),
                _ = egress_link.changed() => egress_link.mark_changed(),
            }
        }
    }

    fn open_egress_socket(&self) -> Option<EgressSocket> {
        let link = self.egress.borrow().clone()?;
        let filter = to_sock_filters(&probe_filter(link.mac, link.vlan));
        match PacketSocket::open(link.index, &filter, RECEIVE_BUFFER_BYTES) {
            Ok(socket) => Some(EgressSocket { link, socket }),
            // Without the link, the network has no connection to other hosts, so only guests of this host can use the
            // address.
            Err(error) => {
                tracing::debug!(network = %self.name, link = %link.name, %error, "failed to probe addresses");
                None
            }
        }
    }

    /// Sends a probe through the ports to their guests, and through the egress link. Then waits [`FRAME_INTERVAL`] for
    /// each frame that was sent.
    async fn send(&self, probe: Probe, egress: Option<&EgressSocket>) {
        let _guard = self.prober_context.send_lock.lock().await;
        let mut frames = self.probes.send_to_guests(probe);
        if let Some(EgressSocket { link, socket }) = egress
            && let Some(frame) = probe.frame_by_link(link.mac, link.vlan)
        {
            frames += 1;
            if let Err(error) = socket.send(&frame) {
                tracing::debug!(network = %self.name, link = %link.name, %error, "failed to send an address probe");
            }
        }
        self.shared.metrics.address_probes.inc();
        sleep(FRAME_INTERVAL * u32::try_from(frames).unwrap_or(u32::MAX).max(1)).await;
    }

    /// Handles the answers that have arrived, without waiting.
    async fn receive_pending(&self, egress: Option<&EgressSocket>) {
        let begin = Instant::now();
        // Time is limited, because frames may arrive faster than they are handled.
        while begin.elapsed() < FRAME_INTERVAL {
            tokio::select! {
                biased;
                () = self.receive(egress) => {}
                () = std::future::ready(()) => return,
            }
        }
    }

    /// Waits for answers and handles them; waits forever without a socket.
    async fn receive(&self, egress: Option<&EgressSocket>) {
        let Some(EgressSocket { link, socket }) = egress else {
            return std::future::pending().await;
        };
        let handle = |frame: Frame<'_>| {
            let answer = ProbeAnswer::parse(frame.bytes);
            let Some(conflict) = answer.and_then(|answer| self.probes.observe(answer)) else {
                return;
            };
            let (name, network) = (link.name.clone(), self.name.clone());
            let port = ServedPort { name, network, vlan: link.vlan };
            let machine = self.network.borrow().machine(conflict.owner);
            let problem = Problem::AddressInUse { conflict, machine };
            // A full channel already contains problems of this network that will be reported, so this problem may be
            // dropped.
            drop(self.shared.problems.try_send(PortProblem { port, problem }));
            self.shared.metrics.address_conflicts.inc();
        };
        if let Err(error) = socket.receive(handle).await {
            tracing::debug!(network = %self.name, link = %link.name, %error, "failed to receive answers to address probes");
            sleep(FRAME_INTERVAL).await;
        }
    }

    fn publish_conflicts(&self) {
        let network = self.network.borrow();
        let status = |conflict: berth_dhcp_responder::AddressConflict| AddressConflictStatus {
            network: self.name.clone(),
            address: conflict.address,
            machine: network.machine(conflict.owner),
            mac: conflict.user,
        };
        let conflicts = self.probes.conflicts().into_iter().map(status).collect();
        self.prober_context.conflicts.set(&self.name, conflicts);
    }
}

impl Drop for Prober {
    /// A network without leases has no conflicts.
    fn drop(&mut self) {
        self.prober_context.conflicts.set(&self.name, Vec::new());
    }
}

/// Waits for this time; forever without a time.
async fn sleep_for(time: Option<Duration>) {
    match time {
        Some(time) => sleep_until(tokio::time::Instant::now() + time).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use berth_api::{Lease, LeaseNetwork, MacAddress};
    use berth_dhcp_responder::AddressState;
    use tokio::sync::mpsc;
    use tokio::time::timeout;

    use super::super::frame_filters::FrameFilters;
    use super::super::metrics::DhcpMetrics;
    use super::*;

    fn lease(number: u8) -> Lease {
        Lease {
            mac: MacAddress([2, 0, 0, 0, 0, number]),
            machine: format!("cluster-a/m{number}"),
            hostname: None,
            ipv4: Some([10, 0, 0, number].into()),
            ipv6: None,
            default_route: None,
        }
    }

    fn network_with_leases(count: u8) -> Arc<ServedNetwork> {
        let leases = (1..=count).map(lease).collect();
        Arc::new(ServedNetwork::new(LeaseNetwork { leases, ..LeaseNetwork::default() }))
    }

    #[tokio::test]
    async fn a_new_lease_and_the_end_of_a_network_are_noticed_between_probes() {
        let started = Instant::now();
        let probes = Arc::new(NetworkProbes::new(started));
        // With 50 ports, a probe takes 50 ms, and three probes of each of the 60 addresses take 9 s.
        let ports: Vec<_> = (0..50).map(|_| probes.subscribe()).collect();
        let (network_sender, network) = watch::channel(network_with_leases(60));
        let (egress_sender, egress) = watch::channel(None);
        let (problems, _receiver) = mpsc::channel(1);
        let filters = Arc::new(FrameFilters::new());
        let prober = Prober {
            name: "cluster-a".to_owned(),
            probes: Arc::clone(&probes),
            network,
            egress,
            shared: Arc::new(DhcpContext {
                metrics: DhcpMetrics::default(),
                problems,
                filters,
                started,
            }),
            prober_context: ProberContext::new(AddressConflicts::default()),
        };
        let task = tokio::spawn(prober.run());
        sleep(Duration::from_millis(100)).await;
        network_sender.send_replace(network_with_leases(61));
        let is_unknown = || probes.states_for_guest(&lease(61)).0 == AddressState::Unknown;
        let decided = async {
            while is_unknown() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_secs(4), decided).await.unwrap();
        drop((network_sender, egress_sender));
        timeout(Duration::from_secs(2), task).await.unwrap().unwrap();
        drop(ports);
    }
}
