//! Two real API servers with a tenant whose machines are drained, simulations of the programs that are missing, a
//! controller that can be killed, and an observer that verifies each drain.

#![expect(clippy::panic, clippy::unwrap_used, reason = "tests fail by panicking")]

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use crate::cluster::condition;
use crate::controller::Controller;
use crate::drain_observer::Observer;
use crate::simulated::{KubeVirt, Kubelets, MachineNodes, Random};
use crate::tenant_clusters::Clusters;
use crate::wait;

/// Namespace of the tenant's machines in the infra cluster.
pub const NAMESPACE: &str = "cluster-shop";
/// Names of the tenant's workloads. Each has a PodDisruptionBudget.
const APPS: [&str; 2] = ["shop", "cart"];
const TIMEOUT: Duration = Duration::from_secs(60);
/// Time within which the observer receives the events of all kinds.
const EVENT_TIMEOUT: Duration = Duration::from_secs(3);

/// Size of the tenant's workloads.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// Number of pods of each app.
    pub pods: usize,
    /// Number of pods of each app that must be healthy.
    pub minimum: usize,
}

/// The tenant, its controller and the observer.
#[derive(Debug)]
pub struct DrainTestbed {
    // On drop, the parts are stopped in the order of the fields.
    pub controller: Controller,
    pub observer: Observer,
    pub clusters: Clusters,
    pub random: Random,
    /// Number of kills of the controller.
    pub kills: usize,
    workload: Workload,
    log: &'static str,
    _kubevirt: KubeVirt,
    _kubelets: Kubelets,
    _nodes: MachineNodes,
}

impl DrainTestbed {
    /// Creates the tenant, and starts the observer, the simulations and the controller. `log` is the name of the
    /// controller's log. Each controller has the same identity, so a new controller acquires the Lease of the killed
    /// controller at once.
    #[must_use]
    pub fn start(clusters: Clusters, log: &'static str, workload: Workload, seed: u64) -> Self {
        let observer = Observer::start(&clusters, workload.minimum);
        let (infra, tenant) = (clusters.infra.kubeconfig(), clusters.tenant.kubeconfig());
        let kubevirt = KubeVirt::start(&infra).unwrap();
        let kubelets = Kubelets::start(&tenant).unwrap();
        let nodes = MachineNodes::start(&infra, &tenant, NAMESPACE, seed).unwrap();
        let controller = Controller::start(&clusters.infra, log, &[]).unwrap();
        clusters.create_tenant_with_machines("shop");
        Self {
            controller,
            observer,
            clusters,
            random: Random::new(seed),
            kills: 0,
            workload,
            log,
            _kubevirt: kubevirt,
            _kubelets: kubelets,
            _nodes: nodes,
        }
    }

    /// Starts the pods with their PodDisruptionBudgets. The caller waits until the machines are available.
    pub fn start_workload(&self) {
        for app in APPS {
            self.clusters.apply_workload(app, self.workload.pods);
            self.clusters.apply_budget(app, self.workload.minimum);
        }
        self.wait_until_healthy();
    }

    /// Kills the controller.
    pub fn kill_controller(&mut self) {
        self.controller.running.stop();
        self.kills += 1;
    }

    /// Starts a controller in place of the killed one.
    pub fn restart_controller(&mut self) {
        self.controller = Controller::start(&self.clusters.infra, self.log, &[]).unwrap();
    }

    /// Waits for a random time below this number of milliseconds.
    pub fn wait_randomly(&mut self, limit_millis: u64) {
        let milliseconds = self.random.below(limit_millis);
        std::thread::sleep(Duration::from_millis(milliseconds));
    }

    /// Returns the VirtualMachines of the tenant.
    #[must_use]
    pub fn machines(&self) -> Vec<Value> {
        let list = self.clusters.infra.get_json(&["virtualmachines", "-n", NAMESPACE]);
        items(list.unwrap_or_default())
    }

    /// Returns the Nodes of the tenant's cluster.
    #[must_use]
    pub fn nodes(&self) -> Vec<Value> {
        items(self.clusters.tenant.get_json(&["nodes"]).unwrap_or_default())
    }

    fn deployment(&self) -> Value {
        let deployment = ["machinedeployment", "web", "-n", NAMESPACE];
        self.clusters.infra.get_json(&deployment).unwrap_or_default()
    }

    /// Waits until a state is reached.
    pub fn wait_until(&self, what: &str, is_reached: impl Fn(&Self) -> bool) {
        self.wait_until_within(TIMEOUT, what, is_reached);
    }

    /// Waits until a state is reached, with another time limit.
    pub fn wait_until_within(
        &self,
        timeout: Duration,
        what: &str,
        is_reached: impl Fn(&Self) -> bool,
    ) {
        let infra = &self.clusters.infra;
        infra.wait_until(what, timeout, |_| is_reached(self).then_some(())).unwrap_or_else(
            |error| {
                let (deployment, found) = (self.deployment(), self.observer.violations());
                let (status, log) = (&deployment["status"], infra.log_tail(self.log));
                panic!("{error}: {status:#}\n{found:#?}\n{log}")
            },
        );
    }

    fn wait_until_healthy(&self) {
        for app in APPS {
            self.wait_until("all pods are healthy", |bed| {
                bed.clusters.budget_status(app)["currentHealthy"] == json!(bed.workload.pods)
            });
        }
    }

    /// Waits until exactly this number of machines exists and all of them are available.
    pub fn wait_until_complete(&self, count: usize) {
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
    pub fn check_drains(&self) {
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
        let log = || self.clusters.infra.log_tail(self.log);
        kept.unwrap_or_else(|error| panic!("{error}\n{}", log()));
    }

    /// Waits until all pods are healthy and no machine is being removed. Then verifies all drains.
    pub fn check_end(&self) {
        self.wait_until_healthy();
        self.wait_until("the MachineDeployment has no condition MachinesRemoved", |bed| {
            condition(&bed.deployment(), "MachinesRemoved").is_null()
        });
        self.check_drains();
    }
}

/// Returns the objects of a list.
#[must_use]
pub fn items(mut list: Value) -> Vec<Value> {
    list["items"].as_array_mut().map(std::mem::take).unwrap_or_default()
}

/// Returns the name of an object.
#[must_use]
pub fn name(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap().to_owned()
}
