//! Test of the removal of machines with two real API servers: the infra cluster, and a tenant with its controllers, so
//! that the eviction API and PodDisruptionBudgets are real. KubeVirt, kubelets and the CSI driver are simulated.

#![expect(
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "tests show what they measured, and fail by panicking"
)]

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::Duration;

use berth_api::names::{
    CORDONED_ANNOTATION, DELETE_MACHINE_ANNOTATION, NODE_DRAIN_TIMEOUT_ANNOTATION,
    REMOVAL_ANNOTATION, REMOVAL_SINCE_ANNOTATION,
};
use berth_tests::cluster::{condition, web_deployment};
use berth_tests::controller::Controller;
use berth_tests::simulated::{KubeVirt, Kubelets};
use berth_tests::tenant_clusters::{Clusters, is_in_namespace};
use serde_json::{Value, json};

const TIMEOUT: Duration = Duration::from_secs(60);
const NAMESPACE: &str = "cluster-shop";
/// Name of the controller's log.
const LOG: &str = "node-drain";
/// Name of the tenant's workload and of its PodDisruptionBudget.
const APP: &str = "shop";
/// Number of pods of the tenant's workload.
const PODS: usize = 4;

struct Testbed {
    clusters: Clusters,
    kubelets: Kubelets,
    /// Machines whose Node has been created. A deleted Node is not created again.
    joined: RefCell<BTreeSet<String>>,
}

/// All tests share the control planes, because starting them is the slowest step.
#[test]
fn removed_machines_are_drained() {
    if !is_in_namespace("removed_machines_are_drained") {
        return;
    }
    let clusters = Clusters::start_for_drains(LOG);
    let _kubevirt = KubeVirt::start(&clusters.infra.kubeconfig()).unwrap();
    let kubelets = Kubelets::start(&clusters.tenant.kubeconfig()).unwrap();
    let bed = Testbed { clusters, kubelets, joined: RefCell::default() };
    let controller = Controller::start(&bed.clusters.infra, LOG, &[]).unwrap();
    bed.clusters.create_tenant_with_machines("shop");

    machines_are_ready_with_their_nodes(&bed);
    bed.start_workload();
    let removed_machine = budget_blocks_a_removal(&bed);
    // The next leader reads the removal mark, and continues the removal.
    drop(controller);
    bed.clusters.apply_budget(APP, PODS - 1);
    let controller = Controller::start(&bed.clusters.infra, LOG, &[]).unwrap();
    removal_waits_for_attached_volumes(&bed, &removed_machine);
    drop(controller);
    let controller = Controller::start(&bed.clusters.infra, LOG, &[]).unwrap();
    detached_machine_is_deleted(&bed, &removed_machine);
    rollout_respects_the_budget(&bed);
    let drained = "berth_controller_machine_removals_total{result=\"drained\"}";
    assert!(controller.metric(drained) >= 2.0, "{}", controller.metric(drained));
    removal_is_cancelled(&bed);
    deletion_ends_at_the_time_limit(&bed);
}

impl Testbed {
    /// Starts pods on both Nodes, with a PodDisruptionBudget that permits no eviction.
    fn start_workload(&self) {
        self.clusters.apply_workload(APP, PODS);
        self.clusters.apply_budget(APP, PODS);
        self.wait_until("all pods run, on both Nodes", |bed| {
            let nodes = bed.nodes_of_pods();
            nodes.len() == PODS && nodes.iter().collect::<BTreeSet<_>>().len() == 2
        });
        self.wait_until("the budget counts all pods", |bed| {
            bed.clusters.budget_status(APP)["currentHealthy"] == json!(PODS)
        });
    }

    /// Returns the Node of each pod of the workload that runs.
    fn nodes_of_pods(&self) -> Vec<String> {
        let list = self.clusters.tenant.get_json(&["pods", "-n", "default"]).unwrap_or_default();
        let pods = list["items"].as_array().cloned().unwrap_or_default();
        let running = pods.iter().filter(|pod| pod["status"]["phase"] == "Running");
        running.filter_map(|pod| pod["spec"]["nodeName"].as_str().map(str::to_owned)).collect()
    }

    fn machines(&self) -> Vec<Value> {
        let list = self.clusters.infra.get_json(&["virtualmachines", "-n", NAMESPACE]);
        list.unwrap_or_default()["items"].as_array().cloned().unwrap_or_default()
    }

    fn machine_names(&self) -> Vec<String> {
        let machines = self.machines();
        let names = machines.iter().map(|vm| vm["metadata"]["name"].as_str().unwrap().to_owned());
        names.collect()
    }

    /// Creates a Node in the tenant's cluster for each machine that has not joined yet.
    fn join_machines(&self) {
        for vm in self.machines() {
            let metadata = &vm["metadata"];
            let name = metadata["name"].as_str().unwrap().to_owned();
            let is_removed = metadata["annotations"][REMOVAL_ANNOTATION].is_string()
                || metadata["deletionTimestamp"].is_string();
            if !is_removed && self.joined.borrow_mut().insert(name.clone()) {
                self.clusters.tenant.create_node(&name).unwrap();
            }
        }
    }

    fn deployment(&self) -> Value {
        let deployment = ["machinedeployment", "web", "-n", NAMESPACE];
        self.clusters.infra.get_json(&deployment).unwrap_or_default()
    }

    fn node(&self, name: &str) -> Option<Value> {
        self.clusters.tenant.get_json(&["node", name]).ok()
    }

    fn wait_until(&self, what: &str, is_reached: impl Fn(&Self) -> bool) {
        let infra = &self.clusters.infra;
        infra.wait_until(what, TIMEOUT, |_| is_reached(self).then_some(())).unwrap_or_else(
            |error| panic!("{error}: {:#}\n{}", self.deployment()["status"], infra.log_tail(LOG)),
        );
    }

    /// Waits until the condition `MachinesRemoved` has this reason and these words in its message.
    fn wait_until_removal(&self, reason: &str, words: &str) {
        self.wait_until(&format!("MachinesRemoved has {reason}: {words}"), |bed| {
            let deployment = bed.deployment();
            let one = condition(&deployment, "MachinesRemoved");
            let message = one["message"].as_str().unwrap_or_default();
            one["status"] == "False" && one["reason"] == reason && message.contains(words)
        });
    }

    /// Waits until this number of machines is available, and no other machines exist. Creates the Nodes of new machines
    /// while it waits.
    fn wait_until_available(&self, count: usize) {
        self.wait_until(&format!("{count} machines are available"), |bed| {
            bed.join_machines();
            let deployment = bed.deployment();
            let status = &deployment["status"];
            let is_observed = status["observedGeneration"] == deployment["metadata"]["generation"];
            is_observed
                && status["updatedReplicas"] == json!(count)
                && status["availableReplicas"] == json!(count)
                && bed.machines().len() == count
        });
    }

    fn scale(&self, replicas: usize) {
        let replicas = format!("--replicas={replicas}");
        let scale = ["scale", "machinedeployment", "web", "-n", NAMESPACE, &replicas];
        self.clusters.infra.kubectl(&scale).unwrap();
    }

    fn annotate(&self, kind: &str, name: &str, annotations: &[&str]) {
        let annotate = ["annotate", kind, name, "-n", NAMESPACE, "--overwrite"];
        self.clusters.infra.kubectl(&[&annotate[..], annotations].concat()).unwrap();
    }
}

fn machines_are_ready_with_their_nodes(bed: &Testbed) {
    bed.clusters.infra.apply(&web_deployment(NAMESPACE, 2).to_string()).unwrap();
    bed.wait_until("two instances run", |bed| {
        let list = bed.clusters.infra.get_json(&["virtualmachineinstances", "-n", NAMESPACE]);
        list.unwrap_or_default()["items"].as_array().is_some_and(|all| all.len() == 2)
    });
    bed.wait_until("the status counts both machines", |bed| {
        bed.deployment()["status"]["updatedReplicas"] == json!(2)
    });
    bed.wait_until("the tenant is connected", |bed| {
        let tenant = bed.clusters.infra.get_json(&["tenantcluster", "shop"]).unwrap_or_default();
        condition(&tenant, "TenantAccessReady")["status"] == "True"
    });
    assert_eq!(bed.deployment()["status"]["readyReplicas"], json!(0), "no machine has joined");
    bed.wait_until_available(2);
}

/// Scales down while the budget permits no eviction. Returns the machine that is removed.
fn budget_blocks_a_removal(bed: &Testbed) -> String {
    let removed_machine = bed.machine_names().remove(0);
    bed.annotate(
        "virtualmachine",
        &removed_machine,
        &[&format!("{DELETE_MACHINE_ANNOTATION}=true")],
    );
    let volume = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": "data"},
        "spec": {"attacher": "csi.example", "nodeName": removed_machine, "source": {"persistentVolumeName": "data"}},
    });
    bed.clusters.tenant.apply(&volume.to_string()).unwrap();
    bed.kubelets.reset_fewest_healthy_pods();
    bed.scale(1);
    bed.wait_until_removal("DrainBlocked", "PodDisruptionBudget shop permits no eviction");
    let node = bed.node(&removed_machine).unwrap();
    assert_eq!(node["spec"]["unschedulable"], json!(true));
    assert!(node["metadata"]["annotations"][CORDONED_ANNOTATION].is_string(), "{node:#}");
    assert_eq!(bed.deployment()["status"]["replicas"], json!(1));
    assert!(bed.machine_names().contains(&removed_machine), "the machine is not drained");
    assert!(bed.nodes_of_pods().contains(&removed_machine), "no pod is evicted");
    assert_eq!(bed.kubelets.fewest_healthy_pods(), PODS);
    removed_machine
}

fn removal_waits_for_attached_volumes(bed: &Testbed, removed_machine: &str) {
    bed.wait_until_removal("WaitingForVolumes", "1 VolumeAttachments");
    assert!(!bed.nodes_of_pods().contains(&removed_machine.to_owned()), "all pods are evicted");
    assert!(bed.kubelets.fewest_healthy_pods() >= PODS - 1, "an eviction exceeded the budget");
    assert!(bed.node(removed_machine).is_some());
    assert!(bed.machine_names().contains(&removed_machine.to_owned()));
}

fn detached_machine_is_deleted(bed: &Testbed, removed_machine: &str) {
    bed.clusters.tenant.kubectl(&["delete", "volumeattachment", "data"]).unwrap();
    bed.wait_until_available(1);
    assert!(!bed.machine_names().contains(&removed_machine.to_owned()));
    assert!(bed.node(removed_machine).is_none(), "the Node is deleted");
    bed.wait_until("the condition is removed", |bed| {
        condition(&bed.deployment(), "MachinesRemoved").is_null()
    });
}

fn rollout_respects_the_budget(bed: &Testbed) {
    bed.wait_until("all pods run", |bed| bed.nodes_of_pods().len() == PODS);
    bed.wait_until("the budget permits an eviction", |bed| {
        bed.clusters.budget_status(APP)["disruptionsAllowed"] == json!(1)
    });
    bed.kubelets.reset_fewest_healthy_pods();
    let before = bed.machine_names();
    let mut changed = web_deployment(NAMESPACE, 1);
    changed["spec"]["template"]["spec"]["providerSpec"]["value"]["cloudProviderSpec"]["virtualMachine"]
        ["template"]["memory"] = json!("3Gi");
    bed.clusters.infra.apply(&changed.to_string()).unwrap();
    bed.wait_until_available(1);
    let after = bed.machine_names();
    assert_ne!(before, after);
    bed.wait_until("all pods run on the new machine", |bed| {
        let nodes = bed.nodes_of_pods();
        nodes.len() == PODS && nodes.iter().all(|node| after.contains(node))
    });
    let fewest = bed.kubelets.fewest_healthy_pods();
    eprintln!(
        "rolling update: of {PODS} pods, at least {fewest} were healthy; minAvailable is {}",
        PODS - 1
    );
    assert!(fewest >= PODS - 1, "an eviction exceeded the budget");
}

/// Tests that a removal is cancelled: another part of Berth or an operator has set the removal mark, and removes it
/// before the machine is drained.
fn removal_is_cancelled(bed: &Testbed) {
    bed.clusters.apply_budget(APP, PODS);
    let machine = bed.machine_names().remove(0);
    // The controller replaces a malformed timestamp.
    let marks = [
        format!("{REMOVAL_ANNOTATION}=HostDrain"),
        format!("{REMOVAL_SINCE_ANNOTATION}=yesterday"),
    ];
    bed.annotate("virtualmachine", &machine, &[&marks[0], &marks[1]]);
    bed.wait_until_removal("DrainBlocked", &machine);
    assert_eq!(bed.node(&machine).unwrap()["spec"]["unschedulable"], json!(true));
    let removed_marks = [format!("{REMOVAL_ANNOTATION}-"), format!("{REMOVAL_SINCE_ANNOTATION}-")];
    bed.annotate("virtualmachine", &machine, &[&removed_marks[0], &removed_marks[1]]);
    bed.wait_until("the Node is uncordoned", |bed| {
        bed.node(&machine).is_some_and(|node| {
            node["spec"]["unschedulable"].is_null()
                && node["metadata"]["annotations"][CORDONED_ANNOTATION].is_null()
        })
    });
    // The replacement is deleted, because it has not joined the tenant's cluster.
    bed.wait_until("one machine is left", |bed| {
        bed.machine_names() == std::slice::from_ref(&machine)
    });
    assert_eq!(bed.nodes_of_pods().len(), PODS);
}

fn deletion_ends_at_the_time_limit(bed: &Testbed) {
    let machine = bed.machine_names().remove(0);
    let limit = format!("{NODE_DRAIN_TIMEOUT_ANNOTATION}=30s");
    bed.annotate("machinedeployment", "web", &[&limit]);
    let delete = ["delete", "machinedeployment", "web", "-n", NAMESPACE, "--wait=false"];
    bed.clusters.infra.kubectl(&delete).unwrap();
    bed.wait_until_removal("DrainBlocked", "Deleted since");
    assert_eq!(bed.machine_names(), std::slice::from_ref(&machine));
    bed.wait_until("the MachineDeployment is deleted", |bed| bed.deployment().is_null());
    assert!(bed.machine_names().is_empty());
    assert!(bed.node(&machine).is_none(), "the Node is deleted");
}
