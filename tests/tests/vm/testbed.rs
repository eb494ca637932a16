//! Control plane with KubeVirt, the controller and its scheduler, and hosts that run VMs.

use std::path::{Path, PathBuf};
use std::time::Duration;

use berth_tests::cluster::{ControlPlane, ControlPlaneOptions, Version, condition};
use berth_tests::controller::Controller;
use berth_tests::host::{Host, Trunk};
use berth_tests::kubevirt::{Assets, GUEST_IMAGE, KubeVirt, LAUNCHER_IMAGE, Nodes};
use berth_tests::repository;
use serde_json::Value;

use crate::host::{self, VmHost};
use crate::{USES_EMULATION, objects};

/// Time limit for a step on an emulated host. The start of the third VM of a test took 300 s.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(1200);
/// Oldest Kubernetes release with MutatingAdmissionPolicies of version v1.
const OLDEST_KUBERNETES: Version = Version(1, 36);
/// Resources of KubeVirt's device plugins that every VM with a network needs.
const DEVICES: [&str; 2] = ["devices.kubevirt.io/tun", "devices.kubevirt.io/vhost-net"];
/// Resource of KVM, which a VM needs unless its CPUs are emulated.
const KVM_DEVICE: &str = "devices.kubevirt.io/kvm";
/// Names of the logs of the programs on this machine.
const LOGS: [&str; 4] = ["berth-controller", "virt-controller", "virt-api", "kube-scheduler"];

pub(crate) struct Testbed {
    // On drop, the programs are stopped in the order of the fields.
    pub(crate) hosts: Vec<VmHost>,
    pub(crate) controller: Controller,
    _kubevirt: KubeVirt,
    pub(crate) plane: ControlPlane,
}

impl Testbed {
    /// Starts a control plane and hosts with these numbers, at most two. Two hosts have a cable between them.
    pub(crate) fn start(numbers: &[u8]) -> Self {
        let assets = Assets::find_for_hosts().unwrap_or_else(|error| panic!("{error:#}"));
        let archives = [LAUNCHER_IMAGE, GUEST_IMAGE].map(|name| assets.file(name));
        let ends = cable_ends(numbers);
        let ((plane, kubevirt, controller), booted) = std::thread::scope(|scope| {
            let boots: Vec<_> = numbers
                .iter()
                .enumerate()
                .map(|(index, number)| {
                    let (archives, ends) = (&archives, &ends);
                    scope.spawn(move || boot(*number, archives, ends, index))
                })
                .collect();
            let started = start_control_plane(&assets);
            let hosts: Vec<Host> = boots.into_iter().map(|boot| boot.join().unwrap()).collect();
            (started, hosts)
        });
        let mut hosts: Vec<VmHost> = booted.into_iter().map(VmHost::new).collect();
        std::thread::scope(|scope| {
            for host in &mut hosts {
                let (plane, assets) = (&plane, &assets);
                scope.spawn(move || host.prepare(plane, assets));
            }
        });
        let mut this = Self { hosts, controller, _kubevirt: kubevirt, plane };
        this.wait_until_hosts_are_ready();
        this
    }

    /// Waits until each host matches its profile and accepts VMs.
    fn wait_until_hosts_are_ready(&mut self) {
        let names: Vec<String> = self.hosts.iter().map(|host| host.name.clone()).collect();
        for name in &names {
            self.wait_until(&format!("{name} accepts VMs"), &["node", name], |plane| {
                let node = plane.get_json(&["node", name]).ok()?;
                let has_device = |device: &&str| {
                    let amount = text(&node["status"]["allocatable"][device]);
                    !amount.is_empty() && amount != "0"
                };
                let is_schedulable =
                    node["metadata"]["labels"]["kubevirt.io/schedulable"] == "true";
                let has_devices = needed_devices().iter().all(has_device);
                (is_schedulable && has_devices).then_some(())
            });
            self.wait_until(
                &format!("{name} matches its profile"),
                &["infranode", name],
                |plane| {
                    let infra = plane.infra_node(name);
                    let is_answered =
                        infra["status"]["observedGeneration"] == infra["metadata"]["generation"];
                    let is_ready = condition(&infra, "Ready")["status"] == "True";
                    let reported = infra["status"]["devices"].to_string();
                    let has_devices =
                        needed_devices().iter().all(|device| reported.contains(device));
                    let is_configured = infra["spec"]["profile"] == objects::PROFILE;
                    (is_answered && is_ready && is_configured && has_devices).then_some(())
                },
            );
        }
    }

    /// Calls a function repeatedly until the function returns a value. `object` names the object that is printed after
    /// a timeout, as arguments of `kubectl get`.
    #[track_caller]
    pub(crate) fn wait_until<T>(
        &mut self,
        description: &str,
        object: &[&str],
        ask: impl FnMut(&ControlPlane) -> Option<T>,
    ) -> T {
        match self.plane.wait_until(description, TIMEOUT, ask) {
            Ok(answer) => answer,
            Err(error) => {
                let state = self.plane.get_json(object).unwrap_or_default();
                panic!("{error}\n{object:?}: {state:#}\n{}", self.diagnose())
            }
        }
    }

    /// Returns the state of the cluster and the ends of all logs, for the error message of a failed test.
    pub(crate) fn diagnose(&mut self) -> String {
        let pods = self.plane.kubectl(&["get", "vm,vmi,pods", "-A", "-o", "wide"]);
        let events = self.plane.kubectl(&["get", "events", "-A", "--sort-by=.lastTimestamp"]);
        let events = events.unwrap_or_default();
        let first = events.lines().count().saturating_sub(30);
        let events: Vec<&str> = events.lines().skip(first).collect();
        let logs = LOGS.map(|name| format!("--- {name} ---\n{}\n", self.plane.log_tail(name)));
        let hosts: String = self.hosts.iter_mut().map(VmHost::diagnose).collect();
        format!("{}\n{}\n{}\n{hosts}", pods.unwrap_or_default(), events.join("\n"), logs.concat())
    }

    /// Returns the report of a host's agent.
    pub(crate) fn infra_node(&self, host: usize) -> Value {
        self.plane.infra_node(&self.hosts[host].name)
    }

    /// Returns the allocation of a pod in the report of its host, or null.
    pub(crate) fn reported_allocation(&self, host: usize, uid: &str) -> Value {
        let infra = self.infra_node(host);
        let allocations = infra["status"]["allocations"].as_array();
        let mut allocations = allocations.into_iter().flatten();
        allocations.find(|one| one["podUID"] == uid).cloned().unwrap_or_default()
    }
}

/// Returns a string, or an empty string if the value is no string.
pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn needed_devices() -> Vec<&'static str> {
    DEVICES.into_iter().chain((!USES_EMULATION).then_some(KVM_DEVICE)).collect()
}

/// Returns the sockets of the cable's ends, one for each host.
fn cable_ends(numbers: &[u8]) -> Vec<PathBuf> {
    // A host that restarts creates its socket again, so the folder must not be deleted.
    let folder = tempfile::tempdir().unwrap().keep();
    numbers.iter().map(|number| folder.join(number.to_string())).collect()
}

fn boot(number: u8, archives: &[PathBuf], ends: &[PathBuf], index: usize) -> Host {
    let peer = ends.iter().enumerate().find(|(other, _)| *other != index);
    let trunk = peer.map(|(_, peer)| Trunk { local_socket: &ends[index], peer_socket: peer });
    let archives: Vec<&Path> = archives.iter().map(PathBuf::as_path).collect();
    host::boot(number, &archives, trunk)
}

fn start_control_plane(assets: &Assets) -> (ControlPlane, KubeVirt, Controller) {
    let mut plane = ControlPlane::start(ControlPlaneOptions {
        has_controllers: true,
        has_kubevirt: true,
        ..ControlPlaneOptions::default()
    })
    .unwrap();
    assert!(
        plane.version() >= OLDEST_KUBERNETES,
        "the test requires Kubernetes {OLDEST_KUBERNETES}, the server has {}: set KUBEBUILDER_ASSETS",
        plane.version()
    );
    plane.define_network_attachments().unwrap();
    plane.define_machine_deployments().unwrap();
    let kubevirt = KubeVirt::start(&plane, assets, Nodes::Real { uses_emulation: USES_EMULATION });
    let kubevirt = kubevirt.unwrap_or_else(|error| panic!("{error:#}"));
    plane
        .deploy(&[
            "base/rbac-controller.yaml",
            "components/scheduler/lease.yaml",
            "instancetypes/preferences.yaml",
        ])
        .unwrap();
    plane.create_example_storage_class().unwrap();
    plane.apply_file(&repository().join("examples/tenants/config.yaml")).unwrap();
    let policy = objects::boot_policy().into_iter();
    for object in policy.chain(objects::flavors()).chain([objects::profile()]) {
        plane.apply(&object.to_string()).unwrap();
    }
    // virt-handler presents these certificates.
    for (name, user) in [("handler", "virt-handler"), ("migration", "migration")] {
        let user = format!("kubevirt.io:system:node:{user}");
        plane.create_certificate(name, &user, "kubevirt.io").unwrap();
    }
    let controller = Controller::start_with_scheduler(&mut plane, "berth-controller");
    let controller = controller.unwrap_or_else(|error| panic!("{error:#}"));
    (plane, kubevirt, controller)
}
