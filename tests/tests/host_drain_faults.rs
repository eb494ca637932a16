//! Fault test of drains of hosts with two real API servers: the controller is killed at random moments while hosts are
//! drained, and some drains are cancelled. The machines are migrated, or replaced within the limits of their
//! MachineDeployment; an observer with its own watches verifies each removal. KubeVirt, the hosts, kubelets and the CSI
//! driver are simulated, and the controller has no assignment engine; the controllers and the scheduler of the tenant
//! are real.

#![expect(
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "tests show their progress, and fail by panicking"
)]

use std::time::{Duration, Instant, SystemTime};

use berth_api::names::condition::DRAINING;
use berth_api::names::{EVACUATING_LABEL, EVACUATION_ANNOTATION, REPLACEMENT_ANNOTATION};
use berth_tests::cluster::{condition, web_deployment};
use berth_tests::drain_testbed::{DrainTestbed, NAMESPACE, Workload, items};
use berth_tests::simulated::VmHosts;
use berth_tests::tenant_clusters::{Clusters, is_in_namespace};
use serde_json::{Value, json};

/// Name of the controller's log.
const LOG: &str = "host-drain-faults";
const HOSTS: [&str; 5] = ["rack1-a", "rack1-b", "rack2-a", "rack2-b", "rack3-a"];
/// Values of `maxSurge` and `maxUnavailable`; each round has the next ones.
const LIMITS: [(usize, usize); 3] = [(2, 0), (0, 2), (1, 1)];
/// Time limit of one drain: failed migrations are repeated after 30 s and 60 s.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(180);
/// Time limit for all rounds together.
const TIME_LIMIT: Duration = Duration::from_secs(60 * 60);
const KILLS_PER_ROUND: usize = 2;

#[derive(Clone, Copy, Debug)]
struct RunSize {
    /// Minimum number of completed drains in the run.
    drains: usize,
    /// Minimum number of kills in the run.
    kills: usize,
    /// Number of hosts, at most the length of [`HOSTS`].
    hosts: usize,
    machines: usize,
    workload: Workload,
    /// Longest wait before a kill, in milliseconds.
    max_wait_millis: u64,
}

const SMALL: RunSize = RunSize {
    drains: 2,
    kills: 4,
    hosts: 3,
    machines: 4,
    workload: Workload { pods: 4, minimum: 2 },
    max_wait_millis: 6_000,
};
const LARGE: RunSize = RunSize {
    drains: 30,
    kills: 50,
    hosts: 5,
    machines: 15,
    workload: Workload { pods: 15, minimum: 10 },
    max_wait_millis: 15_000,
};

struct HostDrains {
    size: RunSize,
    bed: DrainTestbed,
    vm_hosts: VmHosts,
    /// Number of hosts that became empty.
    drains: usize,
    /// Number of cancelled drains.
    cancelled: usize,
}

#[test]
fn killed_controller_drains_all_hosts() {
    if !is_in_namespace("killed_controller_drains_all_hosts") {
        return;
    }
    let size = if std::env::var_os("BERTH_FAULTS").is_some() { LARGE } else { SMALL };
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let seed = u64::from(now.subsec_nanos());
    let clusters = Clusters::start_for_host_drains(LOG);
    for host in HOSTS.iter().take(size.hosts) {
        clusters.infra.create_node(host).unwrap();
        let infra_node = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "InfraNode", "metadata": {"name": host}, "spec": {},
        });
        clusters.infra.apply(&infra_node.to_string()).unwrap();
    }
    let bed = DrainTestbed::start(clusters, LOG, size.workload, seed);
    let vm_hosts = VmHosts::start(&bed.clusters.infra.kubeconfig(), NAMESPACE, seed).unwrap();
    let mut drains = HostDrains { size, bed, vm_hosts, drains: 0, cancelled: 0 };
    drains.apply_deployment(LIMITS[0]);
    drains.wait_until_placed();
    drains.bed.start_workload();
    drains.run_rounds(seed);
    drains.bed.check_end();
}

impl HostDrains {
    fn run_rounds(&mut self, seed: u64) {
        let (size, begin) = (self.size, Instant::now());
        eprintln!("{size:?}, seed {seed}");
        let mut round = 0;
        while self.drains < size.drains || self.bed.kills < size.kills {
            self.run_round(round);
            let (drains, cancelled, kills) = (self.drains, self.cancelled, self.bed.kills);
            let (nodes, seconds) = (self.bed.observer.drained_nodes(), begin.elapsed().as_secs());
            eprintln!(
                "round {round}: {drains} drains of hosts, {cancelled} cancelled, {nodes} drained Nodes, \
                 {kills} kills, {seconds} s"
            );
            assert!(
                begin.elapsed() < TIME_LIMIT,
                "the time limit of all rounds has passed: {drains} drains of hosts in {seconds} s"
            );
            round += 1;
        }
    }

    /// Drains one or two hosts. The controller is killed during the drains, and some rounds cancel the drain of the
    /// first host.
    fn run_round(&mut self, number: usize) {
        let (max_surge, max_unavailable) = LIMITS[number % LIMITS.len()];
        self.apply_deployment((max_surge, max_unavailable));
        self.bed.observer.require_machines(Some(self.size.machines - max_unavailable));
        let mut hosts = self.choose_hosts();
        for host in hosts.iter().copied() {
            self.bed.clusters.infra.kubectl(&["cordon", host]).unwrap();
            self.vm_hosts.evict_pods(host);
        }
        // A drain is cancelled before or after one of the kills. In two of three rounds, no drain is cancelled.
        let moments = 2 * KILLS_PER_ROUND;
        let cancelled_at = self.random(3 * moments);
        let mut cancelled = None;
        for kill in 0..KILLS_PER_ROUND {
            self.bed.wait_randomly(self.size.max_wait_millis);
            if cancelled_at == 2 * kill {
                cancelled = Some(self.cancel_drain(&mut hosts));
            }
            self.bed.kill_controller();
            if cancelled_at == 2 * kill + 1 {
                cancelled = Some(self.cancel_drain(&mut hosts));
            }
            self.bed.restart_controller();
        }
        for host in hosts {
            self.wait_until_drained(host);
            self.vm_hosts.stop_evictions(host);
            self.bed.clusters.infra.kubectl(&["uncordon", host]).unwrap();
            self.drains += 1;
        }
        if let Some(host) = cancelled {
            self.wait_until_cancelled(host);
        }
        self.wait_until_placed();
        self.bed.check_drains();
    }

    fn random(&mut self, limit: usize) -> usize {
        let number = self.bed.random.below(limit.try_into().unwrap());
        number.try_into().unwrap()
    }

    /// Chooses one or two hosts that run machines.
    fn choose_hosts(&mut self) -> Vec<&'static str> {
        let instances = instances(&self.bed).unwrap();
        let runs_on = |one: &Value, host: &str| one["status"]["nodeName"] == host;
        let mut used: Vec<&'static str> = HOSTS
            .into_iter()
            .filter(|host| instances.iter().any(|one| runs_on(one, host)))
            .collect();
        let count = 1 + self.random(2);
        let mut chosen = Vec::new();
        while chosen.len() < count && !used.is_empty() {
            let at = self.random(used.len());
            chosen.push(used.swap_remove(at));
        }
        chosen
    }

    /// Removes the first host from the drained hosts, and uncordons it as an operator does who cancels a drain.
    fn cancel_drain(&mut self, hosts: &mut Vec<&'static str>) -> &'static str {
        let host = hosts.remove(0);
        self.vm_hosts.stop_evictions(host);
        self.bed.clusters.infra.kubectl(&["uncordon", host]).unwrap();
        self.cancelled += 1;
        host
    }

    fn apply_deployment(&self, (max_surge, max_unavailable): (usize, usize)) {
        let mut deployment = web_deployment(NAMESPACE, self.size.machines.try_into().unwrap());
        deployment["spec"]["strategy"] =
            json!({"rollingUpdate": {"maxSurge": max_surge, "maxUnavailable": max_unavailable}});
        self.bed.clusters.infra.apply(&deployment.to_string()).unwrap();
    }

    fn wait_until_drained(&self, host: &str) {
        self.bed.wait_until_within(DRAIN_TIMEOUT, &format!("{host} is empty"), |bed| {
            no_instance_has(bed, "nodeName", host) && !is_draining(bed, host)
        });
    }

    fn wait_until_cancelled(&self, host: &str) {
        self.bed.wait_until(&format!("the drain of {host} is cancelled"), |bed| {
            no_instance_has(bed, "evacuationNodeName", host) && !is_draining(bed, host)
        });
    }

    /// Waits until all machines are available and run on hosts, and no machine has a record of an evacuation.
    fn wait_until_placed(&self) {
        self.bed.wait_until_complete(self.size.machines);
        self.bed.wait_until("no machine must leave its host", |bed| {
            let is_clear = |vm: &Value| {
                let metadata = &vm["metadata"];
                let annotations = [EVACUATION_ANNOTATION, REPLACEMENT_ANNOTATION];
                metadata["labels"][EVACUATING_LABEL].is_null()
                    && annotations.iter().all(|key| metadata["annotations"][*key].is_null())
            };
            let instances = instances(bed).unwrap_or_default();
            instances.len() == self.size.machines
                && instances.iter().all(|one| one["status"]["nodeName"].is_string())
                && bed.machines().iter().all(is_clear)
        });
    }
}

/// Returns the VirtualMachineInstances of the tenant; `None` if the API server does not answer.
fn instances(bed: &DrainTestbed) -> Option<Vec<Value>> {
    bed.clusters.infra.get_json(&["virtualmachineinstances", "-n", NAMESPACE]).ok().map(items)
}

fn no_instance_has(bed: &DrainTestbed, field: &str, host: &str) -> bool {
    instances(bed).is_some_and(|all| all.iter().all(|one| one["status"][field] != host))
}

/// Returns true if the host has the condition Draining, or if the API server does not answer.
fn is_draining(bed: &DrainTestbed, host: &str) -> bool {
    let infra_node = bed.clusters.infra.infra_node(host);
    infra_node.is_null() || !condition(&infra_node, DRAINING).is_null()
}
