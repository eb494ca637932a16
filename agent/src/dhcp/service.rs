//! Opens and closes the sockets of ports when links, leases or host networks change.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use berth_api::HostLeasesSpec;
use berth_host_facts::ledger::Ledger;
use berth_host_facts::links::observe_ports;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, sleep_until};

use super::conflicts::AddressConflicts;
use super::egress_plan::{EgressLink, plan_egress_links};
use super::file_limit::raise_file_limit;
use super::frame_filters::FrameFilters;
use super::metrics::DhcpMetrics;
use super::network_probes::NetworkProbes;
use super::port_plan::{HostNetworks, ServedPort, plan_ports};
use super::port_task::{DhcpContext, PortTask, serve_port};
use super::prober::{Prober, ProberContext};
use super::problems::{PortProblem, ReportedProblems};
use super::served_network::{ServedNetwork, ServedNetworks, served_networks};
use crate::cluster::CycleEvent;
use crate::packet_socket::PacketSocket;
use crate::plan::{LeasedNetwork, LeasedNetworks};

/// Debounce of link events: the CNI plugin creates a port and sets its VLAN in several steps.
const DEBOUNCE_INTERVAL: Duration = Duration::from_millis(10);
/// Wait after each read of the links, in multiples of the duration of the read. While events arrive all the time, the
/// agent thus uses at most a quarter of a CPU.
const READ_WAIT_FACTOR: u32 = 3;
/// Interval of retries, if a socket cannot be opened or the links cannot be read.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Receive buffer of a port. Requests of a guest are small and few.
const RECEIVE_BUFFER_BYTES: usize = 32 << 10;

/// Leases and host networks, from which the ports are planned.
#[derive(Debug, Clone, Default)]
struct Input {
    networks: Arc<ServedNetworks>,
    /// True if leases were read.
    are_leases_known: bool,
    /// The object from which `networks` was made. The object itself may be freed, because `networks` has a copy of the
    /// leases.
    source: Weak<HostLeasesSpec>,
    host_networks: Arc<HostNetworks>,
}

/// Passes changes to the service. A clone refers to the same service.
#[derive(Debug, Clone, Default)]
pub struct DhcpHandle {
    input: watch::Sender<Input>,
    links_changed: Arc<Notify>,
    events: Arc<OnceLock<mpsc::Sender<CycleEvent>>>,
    conflicts: AddressConflicts,
    /// True if a network may have source guard, whose rules contain the leases.
    has_source_guard: Arc<AtomicBool>,
    guarded_leases_changed: Arc<Notify>,
}

impl DhcpHandle {
    /// Replaces the leases.
    pub fn set_leases(&self, leases: &Arc<HostLeasesSpec>) {
        let mut were_known = true;
        let is_changed = self.input.send_if_modified(|input| {
            were_known = std::mem::replace(&mut input.are_leases_known, true);
            let source = Arc::downgrade(leases);
            if input.source.ptr_eq(&source) {
                return false;
            }
            input.source = source;
            let networks = served_networks(leases, &input.networks);
            let is_changed = networks != *input.networks;
            if is_changed {
                input.networks = Arc::new(networks);
            }
            is_changed
        });
        if (is_changed || !were_known) && self.has_source_guard.load(Ordering::SeqCst) {
            self.guarded_leases_changed.notify_one();
        }
    }

    /// Returns the leases of all networks, if a network may have source guard; `None` while the leases are unknown.
    /// Later changes of the leases complete [`Self::guarded_leases_changed`].
    pub(crate) fn guarded_leases(&self, has_source_guard: bool) -> Option<LeasedNetworks> {
        // The flag is set before the leases are read, so that no change is missed.
        self.has_source_guard.store(has_source_guard, Ordering::SeqCst);
        let input = self.input.borrow();
        let leased = |(name, network): (&String, &Arc<ServedNetwork>)| {
            (name.clone(), LeasedNetwork::new(network.segment(), network.leases()))
        };
        let is_known = has_source_guard && input.are_leases_known;
        is_known.then(|| input.networks.iter().map(leased).collect())
    }

    /// Waits until the leases change while a network has source guard.
    pub(crate) async fn guarded_leases_changed(&self) {
        self.guarded_leases_changed.notified().await;
    }

    /// Replaces the host networks by those of the rollback ledger.
    pub fn set_host_networks(&self, ledger: &Ledger) {
        self.input.send_if_modified(|input| {
            let is_changed = *input.host_networks != ledger.networks;
            if is_changed {
                input.host_networks = Arc::new(ledger.networks.clone());
            }
            is_changed
        });
    }

    /// Signals that a link of a tenant network changed.
    pub fn notify_links_changed(&self) {
        self.links_changed.notify_one();
    }

    /// Sets the channel for Events of the InfraNode. Only the first channel is used.
    pub fn set_event_sender(&self, events: mpsc::Sender<CycleEvent>) {
        drop(self.events.set(events));
    }

    /// Returns the addresses of leases that other machines use.
    pub(crate) const fn conflicts(&self) -> &AddressConflicts {
        &self.conflicts
    }
}

/// Returns the service, which runs until it is dropped.
pub fn run_service(
    handle: &DhcpHandle,
    metrics: DhcpMetrics,
) -> impl Future<Output = ()> + Send + use<> {
    let (sender, problems) = mpsc::channel(64);
    let filters = Arc::new(FrameFilters::new());
    let conflicts = handle.conflicts.clone();
    let service = Service {
        input: handle.input.subscribe(),
        links_changed: Arc::clone(&handle.links_changed),
        events: Arc::clone(&handle.events),
        shared: Arc::new(DhcpContext {
            metrics,
            problems: sender,
            filters,
            started: Instant::now(),
        }),
        probers: ProberContext::new(conflicts),
        networks: BTreeMap::new(),
        ports: BTreeMap::new(),
        reported_problems: ReportedProblems::default(),
        last_failure: None,
    };
    service.run(problems)
}

struct Service {
    input: watch::Receiver<Input>,
    links_changed: Arc<Notify>,
    events: Arc<OnceLock<mpsc::Sender<CycleEvent>>>,
    shared: Arc<DhcpContext>,
    probers: ProberContext,
    /// Networks with leases, by name.
    networks: BTreeMap<String, RunningNetwork>,
    /// Ports that are served, by interface index.
    ports: BTreeMap<u32, RunningPort>,
    reported_problems: ReportedProblems,
    /// The last failure, which is logged only once.
    last_failure: Option<String>,
}

/// A network with leases. The tasks of its ports and its prober receive changes.
struct RunningNetwork {
    network: watch::Sender<Arc<ServedNetwork>>,
    egress: watch::Sender<Option<EgressLink>>,
    probes: Arc<NetworkProbes>,
    /// True if the prober runs. The prober starts with the first port or uplink of the network, because addresses
    /// cannot be probed without them.
    has_prober: bool,
}

/// A served port; its task is aborted when this value is dropped, which closes the socket.
struct RunningPort {
    plan: Arc<ServedPort>,
    task: JoinHandle<()>,
}

impl Drop for RunningPort {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Error that leaves ports without answers.
#[derive(Debug, thiserror::Error)]
enum ServiceError {
    #[error("the links of this host cannot be read: {0}")]
    Links(#[source] io::Error),
    #[error("port {port}: {error}; guests on {count} ports get no answer")]
    Ports { port: String, error: io::Error, count: usize },
}

impl Service {
    async fn run(mut self, mut problems: mpsc::Receiver<PortProblem>) {
        raise_file_limit();
        loop {
            let begin = Instant::now();
            let result = self.update_ports().await;
            let retry = result.is_err();
            self.log_failure(result);
            sleep((begin.elapsed() * READ_WAIT_FACTOR).min(RETRY_INTERVAL)).await;
            self.wait_for_change(&mut problems, retry).await;
        }
    }

    /// Waits until the ports must be planned again. Meanwhile, reports problems.
    async fn wait_for_change(&mut self, problems: &mut mpsc::Receiver<PortProblem>, retry: bool) {
        let retry_at = tokio::time::Instant::now() + RETRY_INTERVAL;
        loop {
            tokio::select! {
                // The daemon stops this task before it drops the sender.
                changed = self.input.changed() => match changed {
                    Ok(()) => return,
                    Err(_) => std::future::pending::<()>().await,
                },
                () = self.links_changed.notified() => return sleep(DEBOUNCE_INTERVAL).await,
                () = sleep_until(retry_at), if retry => return,
                Some(problem) = problems.recv() => self.report_problem(&problem),
            }
        }
    }

    /// Starts and stops the tasks of ports, so that exactly the planned ports are served.
    async fn update_ports(&mut self) -> Result<(), ServiceError> {
        let Input { networks, host_networks, .. } = self.input.borrow_and_update().clone();
        let lease_count = networks.values().map(|network| network.leases().len()).sum();
        let (plan, egress_links) = if networks.is_empty() {
            (BTreeMap::new(), BTreeMap::new())
        } else {
            let links = tokio::task::spawn_blocking(observe_ports).await;
            let links = links.map_err(io::Error::other).flatten().map_err(ServiceError::Links)?;
            let egress_links = plan_egress_links(&links, &host_networks, &networks);
            (plan_ports(&links, &host_networks, &networks), egress_links)
        };
        self.ports
            .retain(|index, port| plan.get(index) == Some(&*port.plan) && !port.task.is_finished());
        let with_ports = plan.values().map(|port| port.network.clone()).collect();
        self.update_networks(&networks, egress_links, &with_ports);
        let mut failures = Vec::new();
        for (index, port) in plan {
            if self.ports.contains_key(&index) {
                continue;
            }
            let name = port.name.clone();
            if let Err(error) = self.start_port(index, port) {
                failures.push((name, error));
            }
        }
        self.shared.metrics.update(self.ports.len(), lease_count);
        let count = failures.len();
        match failures.into_iter().next() {
            None => Ok(()),
            Some((port, error)) => {
                Err(ServiceError::Ports { port: port.to_string(), error, count })
            }
        }
    }

    /// Passes changed networks to the tasks of their ports and to their probers, and starts probers.
    fn update_networks(
        &mut self,
        networks: &ServedNetworks,
        mut egress_links: BTreeMap<String, EgressLink>,
        with_ports: &BTreeSet<String>,
    ) {
        self.networks.retain(|name, _| networks.contains_key(name));
        for (name, network) in networks {
            let egress = egress_links.remove(name);
            let running = self.networks.entry(name.clone()).or_insert_with(|| RunningNetwork {
                network: watch::Sender::new(Arc::clone(network)),
                egress: watch::Sender::new(None),
                probes: Arc::new(NetworkProbes::new(self.shared.started)),
                has_prober: false,
            });
            replace(&running.network, Arc::clone(network));
            if !running.has_prober && (egress.is_some() || with_ports.contains(name)) {
                running.has_prober = true;
                running.egress.send_replace(egress.clone());
                let prober = Prober {
                    name: name.clone(),
                    probes: Arc::clone(&running.probes),
                    network: running.network.subscribe(),
                    egress: running.egress.subscribe(),
                    shared: Arc::clone(&self.shared),
                    prober_context: self.probers.clone(),
                };
                // The task ends when this service drops the network.
                tokio::spawn(prober.run());
            }
            replace(&running.egress, egress);
        }
    }

    fn start_port(&mut self, index: u32, port: ServedPort) -> io::Result<()> {
        let Some(running) = self.networks.get(&port.network) else { return Ok(()) };
        let socket =
            PacketSocket::open(index, &self.shared.filters.all_frames, RECEIVE_BUFFER_BYTES)?;
        tracing::debug!(port = %port.name, network = %port.network, "answering DHCP requests");
        let (network, probes) = (running.network.subscribe(), Arc::clone(&running.probes));
        let plan = Arc::new(port);
        let served = (index, Arc::clone(&plan));
        let task = PortTask::new(socket, served, network, probes, Arc::clone(&self.shared));
        let task = tokio::spawn(serve_port(Box::new(task)));
        self.ports.insert(index, RunningPort { plan, task });
        Ok(())
    }

    fn log_failure(&mut self, result: Result<(), ServiceError>) {
        let failure = result.err().map(|error| error.to_string());
        if failure != self.last_failure {
            match &failure {
                Some(error) => {
                    tracing::warn!(%error, "failed to answer DHCP requests on ports of VMs; trying again");
                }
                None => tracing::info!(
                    ports = self.ports.len(),
                    "DHCP requests on all ports of VMs are answered again"
                ),
            }
            self.last_failure = failure;
        }
    }

    fn report_problem(&mut self, problem: &PortProblem) {
        if !self.reported_problems.must_report(problem, Instant::now()) {
            return;
        }
        let event = problem.event();
        let network = &problem.port.network;
        tracing::warn!(network, reason = %event.reason, problem = %event.note(), "problem on a tenant network");
        if let Some(events) = self.events.get() {
            // While the API server is unreachable for a long time, some events are lost; the log has them.
            events.try_send(event).unwrap_or_default();
        }
    }
}

/// Replaces a value, if it differs.
fn replace<T: PartialEq>(sender: &watch::Sender<T>, value: T) {
    sender.send_if_modified(|current| {
        let is_changed = *current != value;
        *current = value;
        is_changed
    });
}

#[cfg(test)]
mod tests {
    use berth_api::{Lease, LeaseNetwork, MacAddress};

    use super::*;

    #[test]
    fn leases_are_stored_once() {
        let lease = Lease {
            mac: MacAddress([2, 0, 0, 0, 0, 1]),
            machine: "cluster-a/m1".to_owned(),
            hostname: None,
            ipv4: Some([10, 0, 0, 1].into()),
            ipv6: None,
            default_route: None,
        };
        let name = "cluster-a".to_owned();
        let network = LeaseNetwork { name, leases: vec![lease], ..LeaseNetwork::default() };
        let spec = HostLeasesSpec { networks: vec![network] };
        let handle = DhcpHandle::default();
        let mut input = handle.input.subscribe();
        let leases = Arc::new(spec.clone());
        handle.set_leases(&leases);
        assert!(input.has_changed().unwrap());
        let networks = Arc::clone(&input.borrow_and_update().networks);
        assert_eq!(Arc::strong_count(&leases), 1, "the object can be freed");
        handle.set_leases(&leases);
        handle.set_leases(&Arc::new(spec));
        assert!(!input.has_changed().unwrap());
        assert!(Arc::ptr_eq(&networks, &input.borrow().networks));
        handle.set_leases(&Arc::new(HostLeasesSpec::default()));
        assert!(input.has_changed().unwrap());
    }

    #[test]
    fn only_changes_of_guarded_leases_complete_the_wait() {
        let lease = |number: u8| Lease {
            mac: MacAddress([2, 0, 0, 0, 0, number]),
            machine: format!("cluster-a/m{number}"),
            hostname: None,
            ipv4: Some([10, 0, 0, number].into()),
            ipv6: None,
            default_route: None,
        };
        let leases = |numbers: &[u8]| {
            let leases = numbers.iter().map(|number| lease(*number)).collect();
            let name = "cluster-a".to_owned();
            let network = LeaseNetwork { name, leases, ..LeaseNetwork::default() };
            Arc::new(HostLeasesSpec { networks: vec![network] })
        };
        let handle = DhcpHandle::default();
        let is_changed = || {
            let wait = std::pin::pin!(handle.guarded_leases_changed());
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            wait.poll(&mut context).is_ready()
        };
        assert_eq!(handle.guarded_leases(true), None);
        handle.set_leases(&Arc::default());
        assert!(is_changed(), "the wait should end when the leases become known");
        assert_eq!(handle.guarded_leases(true), Some(LeasedNetworks::new()));
        handle.set_leases(&leases(&[1]));
        assert!(is_changed());
        let known = handle.guarded_leases(true).unwrap();
        assert_eq!(known["cluster-a"].addresses.len(), 1);
        handle.set_leases(&leases(&[1]));
        assert!(!is_changed());
        assert_eq!(handle.guarded_leases(false), None);
        handle.set_leases(&leases(&[1, 2]));
        assert!(!is_changed(), "without source guard, the wait should not end");
    }
}
