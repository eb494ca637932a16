//! Fault test of drains with two real API servers: the controller is killed at random moments while machines are rolled
//! out, scaled down, and marked by hand. An observer with its own watches verifies each drain. KubeVirt, kubelets and
//! the CSI driver are simulated; the controllers and the scheduler of the tenant are real.

#![expect(
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "tests show their progress, and fail by panicking"
)]

use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime};

use berth_api::names::{REMOVAL_ANNOTATION, REMOVAL_SINCE_ANNOTATION};
use berth_tests::cluster::web_deployment;
use berth_tests::drain_testbed::{DrainTestbed, NAMESPACE, Workload, name};
use berth_tests::tenant_clusters::{Clusters, is_in_namespace};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

/// Name of the controller's log.
const LOG: &str = "drain-faults";
/// Time limit for all rounds together.
const TIME_LIMIT: Duration = Duration::from_secs(45 * 60);
const KILLS_PER_ROUND: usize = 2;

#[derive(Clone, Copy, Debug)]
struct RunSize {
    /// Minimum number of drains in the run.
    drains: usize,
    /// Minimum number of kills in the run.
    kills: usize,
    machines: usize,
    workload: Workload,
    /// Longest wait before a kill, in milliseconds.
    max_wait_millis: u64,
}

const SMALL: RunSize = RunSize {
    drains: 12,
    kills: 3,
    machines: 6,
    workload: Workload { pods: 4, minimum: 2 },
    max_wait_millis: 4_000,
};
const LARGE: RunSize = RunSize {
    drains: 1_000,
    kills: 50,
    machines: 50,
    workload: Workload { pods: 30, minimum: 20 },
    max_wait_millis: 12_000,
};

struct Rollouts {
    size: RunSize,
    bed: DrainTestbed,
}

#[test]
fn killed_controller_drains_all_machines() {
    if !is_in_namespace("killed_controller_drains_all_machines") {
        return;
    }
    let size = if std::env::var_os("BERTH_FAULTS").is_some() { LARGE } else { SMALL };
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let seed = u64::from(now.subsec_nanos());
    let bed = DrainTestbed::start(Clusters::start_for_drains(LOG), LOG, size.workload, seed);
    let mut rollouts = Rollouts { size, bed };
    rollouts.apply_deployment(size.machines, "5Gi");
    rollouts.bed.wait_until_complete(size.machines);
    rollouts.bed.start_workload();
    rollouts.run_rounds(seed);
    rollouts.bed.check_end();
}

impl Rollouts {
    fn run_rounds(&mut self, seed: u64) {
        let (size, begin) = (self.size, Instant::now());
        eprintln!("{size:?}, seed {seed}");
        let mut round = 0;
        while self.bed.observer.drained_nodes() < size.drains || self.bed.kills < size.kills {
            self.run_round(round);
            let (drains, kills) = (self.bed.observer.drained_nodes(), self.bed.kills);
            let seconds = begin.elapsed().as_secs();
            eprintln!("round {round}: {drains} drains, {kills} kills, {seconds} s");
            assert!(
                begin.elapsed() < TIME_LIMIT,
                "the time limit has passed: {drains} drains in {seconds} s"
            );
            round += 1;
        }
    }

    /// Replaces all machines, in odd rounds with half as many machines. The controller is killed during the rollout.
    fn run_round(&mut self, number: usize) {
        let machines = self.size.machines / (1 + number % 2);
        self.apply_deployment(machines, &format!("{}Gi", 2 + number % 4));
        for _ in 0..KILLS_PER_ROUND {
            self.bed.wait_randomly(self.size.max_wait_millis / 2);
            let mut marked = self.mark_machines();
            self.bed.wait_randomly(self.size.max_wait_millis / 2);
            self.bed.kill_controller();
            // A machine whose Node is deleted must be deleted too: its kubelet does not create the Node again.
            let nodes: BTreeSet<String> = self.bed.nodes().iter().map(name).collect();
            marked.retain(|machine| nodes.contains(machine));
            let is_early = self.bed.random.below(2) == 0;
            if is_early {
                self.remove_marks(&marked);
            }
            self.bed.restart_controller();
            if !is_early {
                self.remove_marks(&marked);
            }
        }
        self.bed.wait_until_complete(machines);
        self.bed.check_drains();
    }

    fn apply_deployment(&self, machines: usize, memory: &str) {
        let mut deployment = web_deployment(NAMESPACE, machines.try_into().unwrap());
        let spec = &mut deployment["spec"];
        spec["strategy"] = json!({"rollingUpdate": {"maxSurge": "50%", "maxUnavailable": "50%"}});
        spec["template"]["spec"]["providerSpec"]["value"]["cloudProviderSpec"]["virtualMachine"]
            ["template"]["memory"] = memory.into();
        self.bed.clusters.infra.apply(&deployment.to_string()).unwrap();
    }

    /// Marks some machines for removal, as an operator does. Returns the machines whose marks are to be removed.
    fn mark_machines(&mut self) -> Vec<String> {
        let unmarked = |vm: &&Value| vm["metadata"]["annotations"][REMOVAL_ANNOTATION].is_null();
        let mut names: Vec<String> =
            self.bed.machines().iter().filter(unmarked).map(name).collect();
        let count = (self.size.machines / 8).max(1);
        let mut marked = Vec::new();
        while marked.len() < count && !names.is_empty() {
            let at = self.bed.random.below(names.len() as u64);
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
        drop(self.bed.clusters.infra.kubectl(&annotate));
    }
}
