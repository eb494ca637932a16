//! Fault test of drains with two real API servers: the controller is killed at random moments while machines are rolled
//! out, scaled down, and marked by hand. An observer with its own watches verifies each drain. KubeVirt, kubelets and
//! the CSI driver are simulated; the controllers and the scheduler of the tenant are real.

#![expect(
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "tests show their progress, and fail by panicking"
)]

use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime};

use berth_api::names::{REMOVAL_ANNOTATION, REMOVAL_SINCE_ANNOTATION};
use berth_tests::cluster::{condition, web_deployment};
use berth_tests::controller::Controller;
use berth_tests::drain_observer::Observer;
use berth_tests::simulated::{KubeVirt, Kubelets, MachineNodes, Random};
use berth_tests::tenant_clusters::{Clusters, is_in_namespace};
use berth_tests::wait;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

const NAMESPACE: &str = "cluster-shop";
/// Name of the controller's log. Each controller has the same identity, so a new controller acquires the Lease of the
/// killed controller at once.
const LOG: &str = "drain-faults";
/// Names of the tenant's workloads. Each has a PodDisruptionBudget.
const APPS: [&str; 2] = ["shop", "cart"];
const TIMEOUT: Duration = Duration::from_secs(60);
/// Time within which the observer receives the events of all kinds.
const EVENT_TIMEOUT: Duration = Duration::from_secs(3);
/// Time limit of all rounds.
const TIME_LIMIT: Duration = Duration::from_secs(45 * 60);
const KILLS_PER_ROUND: usize = 2;

#[derive(Clone, Copy, Debug)]
struct RunSize {
    /// Minimum number of drains in the run.
    drains: usize,
    /// Minimum number of kills in the run.
    kills: usize,
    machines: usize,
    /// Number of pods of each app.
    pods: usize,
    /// Number of pods of each app that must be healthy.
    minimum: usize,
    /// Longest wait before a kill, in milliseconds.
    max_wait_millis: u64,
}

const SMALL: RunSize =
    RunSize { drains: 12, kills: 3, machines: 6, pods: 4, minimum: 2, max_wait_millis: 4_000 };
const LARGE: RunSize = RunSize {
    drains: 1_000,
    kills: 50,
    machines: 50,
    pods: 30,
    minimum: 20,
    max_wait_millis: 12_000,
};

struct Testbed {
    size: RunSize,
    random: Random,
    controller: Controller,
    observer: Observer,
    clusters: Clusters,
    kills: usize,
}

#[test]
fn killed_controller_drains_all_machines() {
    if !is_in_namespace("killed_controller_drains_all_machines") {
        return;
    }
    let size = if std::env::var_os("BERTH_FAULTS").is_some() { LARGE } else { SMALL };
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let seed = u64::from(now.subsec_nanos());
    let clusters = Clusters::start_for_drains(LOG);
    let observer = Observer::start(&clusters, size.minimum);
    let (infra, tenant) = (clusters.infra.kubeconfig(), clusters.tenant.kubeconfig());
    let _kubevirt = KubeVirt::start(&infra).unwrap();
    let _kubelets = Kubelets::start(&tenant).unwrap();
    let _nodes = MachineNodes::start(&infra, &tenant, NAMESPACE, seed).unwrap();
    let controller = Controller::start(&clusters.infra, LOG, &[]).unwrap();
    clusters.create_tenant_with_machines("shop");
    let random = Random::new(seed);
    let mut bed = Testbed { size, random, controller, observer, clusters, kills: 0 };
    bed.start_workload();
    bed.run_rounds(seed);
    for app in APPS {
        bed.wait_until_healthy(app);
    }
    bed.wait_until("the condition is removed", |bed| {
        condition(&bed.deployment(), "MachinesRemoved").is_null()
    });
    bed.check_drains();
}

impl Testbed {
    /// Starts the machines, and then the pods with their PodDisruptionBudgets.
    fn start_workload(&self) {
        self.apply_deployment(self.size.machines, "5Gi");
        self.wait_until_complete(self.size.machines);
        for app in APPS {
            self.clusters.apply_workload(app, self.size.pods);
            self.clusters.apply_budget(app, self.size.minimum);
        }
        for app in APPS {
            self.wait_until_healthy(app);
        }
    }

    fn run_rounds(&mut self, seed: u64) {
        let (size, begin) = (self.size, Instant::now());
        eprintln!("{size:?}, seed {seed}");
        let mut round = 0;
        while self.observer.drained_nodes() < size.drains || self.kills < size.kills {
            self.run_round(round);
            let (drains, kills) = (self.observer.drained_nodes(), self.kills);
            let seconds = begin.elapsed().as_secs();
            eprintln!("round {round}: {drains} drains, {kills} kills, {seconds} s");
            assert!(begin.elapsed() < TIME_LIMIT, "{drains} drains in {seconds} s");
            round += 1;
        }
    }

    /// Replaces all machines, in odd rounds with half as many machines. The controller is killed during the rollout.
    fn run_round(&mut self, number: usize) {
        let machines = self.size.machines / (1 + number % 2);
        self.apply_deployment(machines, &format!("{}Gi", 2 + number % 4));
        for _ in 0..KILLS_PER_ROUND {
            self.wait_randomly();
            let mut marked = self.mark_machines();
            self.wait_randomly();
            self.controller.running.stop();
            self.kills += 1;
            // A machine whose Node is deleted must be deleted too: its kubelet does not create the Node again.
            let nodes: BTreeSet<String> = self.nodes().iter().map(name).collect();
            marked.retain(|machine| nodes.contains(machine));
            let is_early = self.random.below(2) == 0;
            if is_early {
                self.remove_marks(&marked);
            }
            self.controller = Controller::start(&self.clusters.infra, LOG, &[]).unwrap();
            if !is_early {
                self.remove_marks(&marked);
            }
        }
        self.wait_until_complete(machines);
        self.check_drains();
    }

    fn apply_deployment(&self, machines: usize, memory: &str) {
        let mut deployment = web_deployment(NAMESPACE, machines.try_into().unwrap());
        let spec = &mut deployment["spec"];
        spec["strategy"] = json!({"rollingUpdate": {"maxSurge": "50%", "maxUnavailable": "50%"}});
        spec["template"]["spec"]["providerSpec"]["value"]["cloudProviderSpec"]["virtualMachine"]
            ["template"]["memory"] = memory.into();
        self.clusters.infra.apply(&deployment.to_string()).unwrap();
    }

    fn wait_randomly(&mut self) {
        let milliseconds = self.random.below(self.size.max_wait_millis / 2);
        std::thread::sleep(Duration::from_millis(milliseconds));
    }

    /// Marks some machines for removal, as an operator does. Returns the machines whose marks are to be removed.
    fn mark_machines(&mut self) -> Vec<String> {
        let unmarked = |vm: &&Value| vm["metadata"]["annotations"][REMOVAL_ANNOTATION].is_null();
        let mut names: Vec<String> = self.machines().iter().filter(unmarked).map(name).collect();
        let count = (self.size.machines / 8).max(1);
        let mut marked = Vec::new();
        while marked.len() < count && !names.is_empty() {
            let at = self.random.below(names.len() as u64);
            marked.push(names.swap_remove(at.try_into().unwrap()));
        }
        let reason = format!("{REMOVAL_ANNOTATION}=HostDrain");
        let since = format!("{REMOVAL_SINCE_ANNOTATION}={}", Timestamp::now());
        self.annotate(&marked, &[&reason, &since]);
        marked.truncate(count.div_ceil(2));
        marked
    }

    fn remove_marks(&self, machines: &[String]) {
        let withdrawn = [format!("{REMOVAL_ANNOTATION}-"), format!("{REMOVAL_SINCE_ANNOTATION}-")];
        self.annotate(machines, &[&withdrawn[0], &withdrawn[1]]);
    }

    /// Annotates machines. Some of them may be deleted by now, which kubectl reports as an error.
    fn annotate(&self, machines: &[String], annotations: &[&str]) {
        if machines.is_empty() {
            return;
        }
        let mut annotate = vec!["annotate", "virtualmachine", "-n", NAMESPACE, "--overwrite"];
        annotate.extend(machines.iter().map(String::as_str));
        annotate.extend(annotations);
        drop(self.clusters.infra.kubectl(&annotate));
    }

    fn machines(&self) -> Vec<Value> {
        let list = self.clusters.infra.get_json(&["virtualmachines", "-n", NAMESPACE]);
        items(list.unwrap_or_default())
    }

    fn nodes(&self) -> Vec<Value> {
        items(self.clusters.tenant.get_json(&["nodes"]).unwrap_or_default())
    }

    fn deployment(&self) -> Value {
        let deployment = ["machinedeployment", "web", "-n", NAMESPACE];
        self.clusters.infra.get_json(&deployment).unwrap_or_default()
    }

    fn wait_until(&self, what: &str, is_reached: impl Fn(&Self) -> bool) {
        let infra = &self.clusters.infra;
        infra.wait_until(what, TIMEOUT, |_| is_reached(self).then_some(())).unwrap_or_else(
            |error| {
                let (deployment, found) = (self.deployment(), self.observer.violations());
                let (status, log) = (&deployment["status"], infra.log_tail(LOG));
                panic!("{error}: {status:#}\n{found:#?}\n{log}")
            },
        );
    }

    fn wait_until_healthy(&self, app: &str) {
        self.wait_until("all pods are healthy", |bed| {
            bed.clusters.budget_status(app)["currentHealthy"] == json!(bed.size.pods)
        });
    }

    /// Waits until exactly this number of machines exists and all of them are available.
    fn wait_until_complete(&self, count: usize) {
        self.wait_until(&format!("{count} machines are available"), |bed| {
            let deployment = bed.deployment();
            let status = &deployment["status"];
            status["observedGeneration"] == deployment["metadata"]["generation"]
                && status["updatedReplicas"] == json!(count)
                && status["availableReplicas"] == json!(count)
                && bed.machines().len() == count
        });
    }

    /// Waits until each machine has a Node, no other Nodes exist, and no Node is cordoned. Then verifies all drains
    /// until now.
    fn check_drains(&self) {
        self.wait_until("each machine has a Node, which is schedulable", |bed| {
            let nodes = bed.nodes();
            let names: BTreeSet<String> = nodes.iter().map(name).collect();
            let machines: BTreeSet<String> = bed.machines().iter().map(name).collect();
            let volumes = bed.clusters.tenant.get_json(&["volumeattachments"]);
            let is_attached = |volume: &Value| {
                volume["spec"]["nodeName"].as_str().is_some_and(|node| names.contains(node))
            };
            names == machines
                && nodes.iter().all(|node| node["spec"]["unschedulable"].is_null())
                && volumes.is_ok_and(|volumes| items(volumes).iter().all(is_attached))
        });
        let kept = wait::wait_until("no drain violates a rule", EVENT_TIMEOUT, || {
            let found = self.observer.violations();
            if found.is_empty() { Ok(()) } else { Err(found.join("\n").into()) }
        });
        let log = || self.clusters.infra.log_tail(LOG);
        kept.unwrap_or_else(|error| panic!("{error}\n{}", log()));
    }
}

fn items(mut list: Value) -> Vec<Value> {
    list["items"].as_array_mut().map(std::mem::take).unwrap_or_default()
}

fn name(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap().to_owned()
}
