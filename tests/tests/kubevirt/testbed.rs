//! Control plane with KubeVirt, the controller, its scheduler, and simulated hosts.

use std::time::Duration;

use berth_api::CpuSet;
use berth_tests::cluster::{ControlPlane, ControlPlaneOptions};
use berth_tests::controller::Controller;
use berth_tests::kubevirt::{Assets, KubeVirt, Nodes, Simulation, define_cdi_kinds};
use berth_tests::running::Running;
use serde_json::{Value, json};

use crate::hosts::{PURPOSE_LABEL, create_hosts};

/// Time limit for a change to reach all programs, on an idle machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(90);
/// Names of the logs of the started programs.
const LOGS: [&str; 7] = [
    "berth-controller",
    "virt-controller",
    "virt-api",
    "kube-scheduler",
    "kube-scheduler-default",
    "kube-controller-manager",
    "kube-apiserver",
];

pub(crate) struct Testbed {
    // On drop, the programs are stopped in the order of the fields.
    pub(crate) simulation: Simulation,
    pub(crate) controller: Controller,
    /// Scheduler of the pods that name no scheduler, such as attachment pods of hotplugged volumes.
    _default_scheduler: Running,
    pub(crate) kubevirt: KubeVirt,
    pub(crate) plane: ControlPlane,
}

impl Testbed {
    pub(crate) fn start() -> Self {
        let assets = Assets::find().unwrap_or_else(|error| panic!("{error:#}"));
        let mut plane = ControlPlane::start(ControlPlaneOptions {
            has_controllers: true,
            has_kubevirt: true,
            has_audit_log: true,
            ..ControlPlaneOptions::default()
        })
        .unwrap();
        define_cdi_kinds(&plane).unwrap();
        plane.define_network_attachments().unwrap();
        plane.define_machine_deployments().unwrap();
        let kubevirt = KubeVirt::start(&plane, &assets, Nodes::Simulated);
        let kubevirt = kubevirt.unwrap_or_else(|error| panic!("{error:#}"));
        kubevirt.publish_subresources(&plane).unwrap_or_else(|error| panic!("{error:#}"));
        plane
            .deploy(&[
                "base/rbac-controller.yaml",
                "components/scheduler/lease.yaml",
                "instancetypes/performance.yaml",
                "instancetypes/density.yaml",
                "instancetypes/preferences.yaml",
            ])
            .unwrap();
        plane.create_example_storage_class().unwrap();
        for purpose in ["none", "migrations", "disks"] {
            plane.apply(&profile_without_networks(purpose).to_string()).unwrap();
        }
        let hosts = create_hosts(&plane);
        let simulation = Simulation::start(&plane, &kubevirt, hosts).unwrap();
        let controller = Controller::start_with_scheduler(&mut plane, "berth-controller");
        let controller = controller.unwrap_or_else(|error| panic!("{error:#}"));
        let default_scheduler = plane.start_default_scheduler().unwrap();
        Self { simulation, controller, _default_scheduler: default_scheduler, kubevirt, plane }
    }

    /// Kills the scheduler of VMs and the controller, which is its extender, and starts both again.
    pub(crate) fn kill_scheduler_and_controller(&mut self) {
        self.plane.stop_scheduler();
        self.controller.running.stop();
        let controller = Controller::start_with_scheduler(&mut self.plane, "berth-controller");
        self.controller = controller.unwrap_or_else(|error| panic!("{error:#}"));
    }

    /// Calls a function repeatedly until the function returns a value. `object` names the object that is printed after
    /// a timeout, as arguments of `kubectl get`.
    #[track_caller]
    pub(crate) fn wait_until<T>(
        &self,
        description: &str,
        object: &[&str],
        mut ask: impl FnMut() -> Option<T>,
    ) -> T {
        self.plane.wait_until(description, TIMEOUT, |_| ask()).unwrap_or_else(|error| {
            let state = self.plane.get_json(object).unwrap_or_default();
            let logs = LOGS.map(|name| format!("--- {name} ---\n{}\n", self.plane.log_tail(name)));
            panic!(
                "{error}\n{object:?}: {state:#}\nrefused by kubelets: {:#?}\n{}",
                self.simulation.refusals(),
                logs.concat()
            )
        })
    }

    /// Returns an object, or null if the object does not exist.
    pub(crate) fn get(&self, kind: &str, namespace: &str, name: &str) -> Value {
        let get = [kind, name, "-n", namespace, "--ignore-not-found"];
        let text = self.plane.kubectl(&[&["get", "-o", "json"], &get[..]].concat()).unwrap();
        if text.trim().is_empty() { Value::Null } else { serde_json::from_str(&text).unwrap() }
    }

    /// Returns the objects of a kind, with these further arguments of `kubectl get`.
    pub(crate) fn list(&self, kind: &str, arguments: &[&str]) -> Vec<Value> {
        let list = self.plane.get_json(&[&[kind], arguments].concat()).unwrap();
        list["items"].as_array().unwrap().clone()
    }

    /// Returns the launcher pods of a namespace that are not being deleted and have not ended.
    pub(crate) fn launcher_pods(&self, namespace: &str) -> Vec<Value> {
        let label = "kubevirt.io=virt-launcher";
        let mut pods = self.list("pods", &["-n", namespace, "-l", label]);
        pods.retain(|pod| {
            let has_ended =
                ["Succeeded", "Failed"].iter().any(|end| pod["status"]["phase"] == *end);
            pod["metadata"]["deletionTimestamp"].is_null() && !has_ended
        });
        pods
    }

    /// Returns the launcher pods of an instance that are not being deleted and have not ended.
    pub(crate) fn pods_of(&self, instance: &Value) -> Vec<Value> {
        let mut pods = self.launcher_pods(text(&instance["metadata"]["namespace"]));
        pods.retain(|pod| {
            pod["metadata"]["labels"]["kubevirt.io/created-by"] == instance["metadata"]["uid"]
        });
        pods
    }

    /// Waits until the instance of a VM runs, with a uid other than `except`, and returns the instance.
    #[track_caller]
    pub(crate) fn wait_until_running(&self, namespace: &str, name: &str, except: &str) -> Value {
        let object = ["vmi", name, "-n", namespace];
        self.wait_until(&format!("{namespace}/{name} runs"), &object, || {
            let instance = self.get("vmi", namespace, name);
            let is_new = instance["metadata"]["uid"] != except;
            (is_new && instance["status"]["phase"] == "Running").then_some(instance)
        })
    }

    /// Merges fields into an object.
    pub(crate) fn patch(&self, kind: &str, namespace: &str, name: &str, fields: &Value) {
        let fields = fields.to_string();
        let patch = ["patch", kind, name, "-n", namespace, "--type=merge", "-p", &fields];
        self.plane.kubectl(&patch).unwrap();
    }

    /// Asserts that no kubelet has refused a pod, and that no exclusive CPU is allocated twice.
    #[track_caller]
    pub(crate) fn assert_kubelets_admit(&self) {
        assert_eq!(self.simulation.refusals(), Vec::<String>::new());
        for host in self.list("infranodes", &[]) {
            let allocations = host["status"]["allocations"].as_array();
            let mut allocated = CpuSet::default();
            for one in allocations.into_iter().flatten() {
                let cpus: CpuSet = text(&one["cpus"]).parse().unwrap();
                let name = &host["metadata"]["name"];
                assert!(!allocated.intersects(&cpus), "{name}: CPUs twice: {allocations:#?}");
                allocated = allocated.union(&cpus);
            }
        }
    }
}

/// Returns a string, or an empty string if the value is no string.
pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Returns a profile for hosts that carry no tenants. It has a higher priority than the profile in
/// `examples/tenants/config.yaml`, which selects all hosts.
fn profile_without_networks(purpose: &str) -> Value {
    json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "HostProfile", "metadata": {"name": purpose},
        "spec": {"priority": 200, "class": "Standard", "nodeSelector": {PURPOSE_LABEL: purpose}},
    })
}
