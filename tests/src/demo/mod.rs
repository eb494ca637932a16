//! Demo of all of Berth on one machine: a control plane, three emulated hosts with real kubelets, two tenants and
//! their VMs.
//!
//! These parts are not real: the hosts are emulated, virt-controller is simulated (`launchers`) unless KubeVirt's own
//! programs are available (`virt_controller`), and the Node status that virt-handler sets is simulated
//! (`set_virt_handler_status`). The launcher pods sleep and run no guests. During the faults, one tenant has a real API
//! server (`tenant_cluster`); the kubelets of its machines are simulated.

mod attach;
mod cluster_state;
mod drain;
mod faults;
mod host_loss;
pub mod hosts;
pub mod hub;
pub mod launchers;
pub mod logs;
mod machine_nodes;
pub mod manifests;
mod observe;
mod running_pings;
pub mod screen;
mod tables;
mod tenant_cluster;
mod timeline;
mod virt_controller;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::cluster::{ControlPlane, ControlPlaneOptions, condition};
use crate::host::Host;
use crate::package;
use attach::Addresses;
use cluster_state::{ClusterState, Vm};
use host_loss::HostLoss;
use hosts::{DemoHost, HOSTS, InstallMethod, PURPOSE_LABEL};
use hub::Hub;
use screen::Screen;
use tenant_cluster::TenantPlane;
use virt_controller::{Selection, VirtController};

/// Time limit under emulation, on a machine that also runs other programs.
const EMULATION_TIMEOUT: Duration = Duration::from_secs(600);

/// All running parts of the demo, stopped on drop. Their logs remain.
#[derive(Debug)]
pub struct Demo<'a> {
    // On drop, the parts are stopped in the order of the fields.
    /// API server of a tenant, which the faults start.
    tenant: Option<TenantPlane>,
    virt_controller: VirtController,
    hosts: Vec<Host>,
    plane: ControlPlane,
    _hub: Hub,
    screen: &'a Screen,
    folder: &'a Path,
    logs: &'a Path,
    addresses: Addresses,
    /// Uids of pods that are attached to their network.
    attached_pods: BTreeSet<String>,
    /// Host that has lost power, and what an operator has seen since.
    loss: Option<HostLoss<'a>>,
    /// Tables of what an operator saw during faults.
    timelines: String,
}

/// Rule of the demo for failed pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FailedPods {
    /// No pod may have failed.
    Forbidden,
    /// Pods of hosts that were lost may have failed.
    Allowed,
}

impl<'a> Demo<'a> {
    /// Starts all parts.
    ///
    /// # Errors
    /// Fails if a part does not start; the error message names the part, and the folder of logs has the details.
    pub fn start_all(screen: &'a Screen, folder: &'a Path, logs: &'a Path) -> Result<Self> {
        let selection = Selection::from_environment()?;
        screen.print_step("starting a Kubernetes control plane and three two-socket hosts (the first start also builds their images)");
        let hub = Hub::new(folder, HOSTS.len())?;
        let ((mut virt_controller, plane), hosts) = std::thread::scope(|scope| {
            let boots: Vec<_> = HOSTS
                .iter()
                .enumerate()
                .map(|(cable, demo_host)| {
                    let hub = &hub;
                    scope.spawn(move || demo_host.boot(hub, cable, screen))
                })
                .collect();
            let control_plane = start_control_plane(screen, selection);
            let hosts: Result<Vec<Host>> = boots.into_iter().map(join_thread).collect();
            anyhow::Ok((control_plane?, hosts?))
        })?;
        virt_controller.start_simulations(&plane)?;
        let mut this = Self {
            tenant: None,
            virt_controller,
            hosts,
            plane,
            _hub: hub,
            screen,
            folder,
            logs,
            addresses: Addresses::default(),
            attached_pods: BTreeSet::new(),
            loss: None,
            timelines: String::new(),
        };
        this.join_hosts()?;
        this.wait_until_configured()?;
        Ok(this)
    }

    /// Returns the control plane.
    #[must_use]
    pub const fn plane(&self) -> &ControlPlane {
        &self.plane
    }

    /// Joins the hosts as Nodes, and starts their agents.
    fn join_hosts(&mut self) -> Result<()> {
        let (plane, screen) = (&self.plane, self.screen);
        let images = manifests::build_images(plane)?;
        let launcher_image = self.virt_controller.launcher_image();
        std::thread::scope(|scope| {
            let joins: Vec<_> = HOSTS
                .iter()
                .zip(&mut self.hosts)
                .map(|(demo_host, host)| {
                    let images = &images;
                    scope.spawn(move || {
                        if let Some(image) = launcher_image {
                            virt_controller::prepare_host(host, image)?;
                        }
                        demo_host.join(host, plane, images, screen)?;
                        if demo_host.install_method == InstallMethod::Package {
                            let kubeconfig = manifests::create_agent_kubeconfig(plane, demo_host)?;
                            demo_host.install_agent(
                                host,
                                &package::newest_package()?,
                                &kubeconfig,
                            )?;
                            screen.print_step(&format!(
                                "{} has the agent's Debian package and a client certificate",
                                demo_host.name
                            ));
                        }
                        anyhow::Ok(())
                    })
                })
                .collect();
            for demo_host in &HOSTS {
                screen.wait_until(
                    &format!("Node {} is patched", demo_host.name),
                    EMULATION_TIMEOUT,
                    || Ok(set_virt_handler_status(plane, demo_host).ok()),
                )?;
            }
            plane.apply_file(&crate::repository().join("deploy/base/daemonset.yaml"))?;
            joins.into_iter().try_for_each(join_thread)
        })
    }

    /// Waits until the hosts are configured as their profiles require.
    fn wait_until_configured(&mut self) -> Result<()> {
        let (plane, screen) = (&self.plane, self.screen);
        for demo_host in &HOSTS {
            screen.wait_until(
                &format!("InfraNode {} matches its profile", demo_host.name),
                EMULATION_TIMEOUT,
                || {
                    let infra = plane.infra_node(demo_host.name);
                    let is_answered =
                        infra["status"]["observedGeneration"] == infra["metadata"]["generation"];
                    let is_configured = infra["spec"]["profile"] == demo_host.purpose
                        && is_answered
                        && condition(&infra, "Ready")["status"] == "True";
                    Ok(is_configured.then_some(()))
                },
            )?;
            screen.print_step(&format!(
                "{} matches HostProfile {}",
                demo_host.name, demo_host.purpose
            ));
        }
        // A kubelet counts huge pages only when it starts, so each kubelet is restarted.
        std::thread::scope(|scope| {
            let restarts: Vec<_> = HOSTS
                .iter()
                .zip(&mut self.hosts)
                .map(|(demo_host, host)| {
                    scope.spawn(move || set_allocatable_pages(plane, screen, demo_host, host))
                })
                .collect();
            restarts.into_iter().try_for_each(join_thread)
        })
    }

    /// Creates two tenants by one `kubectl apply`, and waits until their VMs run and are attached.
    ///
    /// # Errors
    /// Fails if a VM does not start.
    pub fn create_tenants(&mut self) -> Result<()> {
        let (plane, screen) = (&self.plane, self.screen);
        let apply = ["apply", "--validate=false", "-f", "-"];
        plane.kubectl_with(&plane.kubeconfig(), &apply, &manifests::tenant_manifests()?)?;
        screen.print_step("kubectl apply: two tenants, bank with 2 pinned VMs in huge pages, shop with 3 VMs on shared CPUs");
        self.wait_until_vms_run(FailedPods::Forbidden)?;
        self.screen.print_step("the CNI plugin has attached all VMs to their tenants' VLANs");
        self.wait_until_tenants_are_ready()
    }

    /// Waits until all requested VMs run, and attaches VMs that have a new pod.
    fn wait_until_vms_run(&mut self, failures: FailedPods) -> Result<()> {
        let Self { screen, plane, addresses, .. } = self;
        let mut bound = Vec::new();
        let mut missing = String::new();
        let vms = screen.wait_until("all VMs run", EMULATION_TIMEOUT, || {
            let requested: u64 = observe::read_requested_machines(plane)?.values().sum();
            let vms = observe::read_vms(plane, addresses)?;
            for vm in &vms {
                let observed = (vm.name.clone(), vm.phase.clone(), vm.host.clone());
                if !vm.host.is_empty() && !bound.contains(&observed) {
                    screen.print_step(&format!("{} is {} on {}", vm.name, vm.phase, vm.host));
                    bound.push(observed);
                }
                let has_failed =
                    failures == FailedPods::Forbidden && vm.phase.starts_with("Failed");
                ensure!(!has_failed, "{}: the pod is {}", vm.name, vm.phase);
            }
            let others: Vec<String> = vms
                .iter()
                .filter(|vm| vm.phase != "Running")
                .map(|vm| format!("{} is {}", vm.name, vm.phase))
                .collect();
            missing = format!("{} of {requested} VMs exist; {}", vms.len(), others.join(", "));
            Ok((others.is_empty() && vms.len() as u64 == requested).then_some(vms))
        });
        let vms = vms.with_context(|| missing)?;
        self.attach_vms(&vms)
    }

    fn attach_vms(&mut self, vms: &[Vm]) -> Result<()> {
        let Self { virt_controller, plane, hosts, attached_pods: attached, .. } = self;
        let kubeconfig = virt_controller.instance_kubeconfig(plane);
        let is_new = |vm: &&Vm| !attached.contains(&vm.pod_uid);
        let new: Vec<&Vm> = vms.iter().filter(is_new).collect();
        let (plane, kubeconfig, new) = (&*plane, kubeconfig.as_path(), new.as_slice());
        std::thread::scope(|scope| {
            let all: Vec<_> = HOSTS
                .iter()
                .zip(hosts)
                .map(|(demo_host, host)| {
                    scope.spawn(move || {
                        let mut on_host = new.iter().filter(|vm| vm.host == demo_host.name);
                        on_host.try_for_each(|vm| attach::attach(plane, kubeconfig, host, vm))
                    })
                })
                .collect();
            all.into_iter().try_for_each(join_thread)
        })?;
        attached.extend(new.iter().map(|vm| vm.pod_uid.clone()));
        Ok(())
    }

    /// Waits for the MachineDeployments and tenants, which become ready a little later than their VMs.
    fn wait_until_tenants_are_ready(&self) -> Result<()> {
        self.screen.wait_until("all tenants and machines are Ready", EMULATION_TIMEOUT, || {
            let all = observe::list_items(&self.plane, &["tenantclusters"])?;
            let is_ready = |one: &Value| condition(one, "Ready")["status"] == "True";
            let machines = observe::list_items(&self.plane, &["machinedeployments", "-A"])?;
            let has_all = |one: &Value| one["status"]["readyReplicas"] == one["spec"]["replicas"];
            Ok((all.iter().all(is_ready) && machines.iter().all(has_all)).then_some(()))
        })
    }

    /// Returns the final state as tables, and a list of the checks that fail.
    ///
    /// # Errors
    /// Fails if the state cannot be read.
    pub fn final_state(&mut self) -> Result<(String, Vec<String>)> {
        self.screen.print_step("every VM pings every other VM");
        let mut cluster_state =
            observe::observe_state(&self.plane, &mut self.hosts, &mut self.addresses)?;
        cluster_state.pod_creator = self.virt_controller.name().to_owned();
        cluster_state.pings = self.send_pings(&cluster_state)?;
        Ok((tables::render(&cluster_state), cluster_state.find_problems()))
    }

    fn send_pings(&mut self, cluster_state: &ClusterState) -> Result<Vec<(String, String, bool)>> {
        std::thread::scope(|scope| {
            let all: Vec<_> = HOSTS
                .iter()
                .zip(&mut self.hosts)
                .map(|(demo_host, host)| {
                    let from: Vec<_> =
                        cluster_state.vms.iter().filter(|vm| vm.host == demo_host.name).collect();
                    scope.spawn(move || attach::send_pings(host, &from, &cluster_state.vms))
                })
                .collect();
            let all: Result<Vec<_>> = all.into_iter().map(join_thread).collect();
            Ok(all?.concat())
        })
    }
}

impl Drop for Demo<'_> {
    fn drop(&mut self) {
        self.screen.print_step(&format!("stopping; the logs are in {}", self.logs.display()));
        logs::copy_host_logs(&mut self.hosts, self.logs);
        logs::copy_temporary_logs(self.folder, self.logs);
    }
}

fn join_thread<T>(thread: std::thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    match thread.join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

fn start_control_plane(
    screen: &Screen,
    selection: Selection,
) -> Result<(VirtController, ControlPlane)> {
    let plane = ControlPlane::start(ControlPlaneOptions {
        has_controllers: true,
        has_kubevirt: selection.is_real(),
        has_kubelets: true,
        ..ControlPlaneOptions::default()
    })?;
    let version = plane.version();
    screen.print_step(&format!("Kubernetes {version} is running"));
    let virt_controller = VirtController::start(&plane, selection)?;
    screen.print_step(virt_controller.step());
    manifests::apply_berth_objects(&plane)?;
    screen.print_step("deploy/ is applied: CRDs, RBAC, the controller with a stock kube-scheduler in its pod; three HostProfiles");
    Ok((virt_controller, plane))
}

/// Sets the Node status that virt-handler sets, and the label for the host's purpose, which an administrator sets.
fn set_virt_handler_status(plane: &ControlPlane, demo_host: &DemoHost) -> Result<()> {
    let mut labels = json!({
        PURPOSE_LABEL: demo_host.purpose, "kubevirt.io/schedulable": "true",
        "machine-type.node.kubevirt.io/q35": "true",
    });
    if demo_host.cpu_manager_policy == "static" {
        labels["cpumanager"] = "true".into();
        labels["kubevirt.io/cpumanager"] = "true".into();
    }
    if demo_host.install_method == InstallMethod::Package {
        // The label excludes the host from the DaemonSet, because each host must have only one agent.
        labels["berth.dev/ignore"] = "true".into();
    }
    let patch = json!({"metadata": {"labels": labels}}).to_string();
    plane.kubectl(&["patch", "node", demo_host.name, "--type=merge", "-p", &patch])?;
    // The kubelet does not remove extended resources that other programs add to the capacity, and copies them to
    // allocatable.
    let path = format!("/api/v1/nodes/{}/status", demo_host.name);
    let mut node = plane.get_json(&["node", demo_host.name])?;
    for field in ["capacity", "allocatable"] {
        node["status"][field]["devices.kubevirt.io/tun"] = "1000".into();
    }
    let replace = ["replace", "--raw", &path, "-f", "-"];
    plane.kubectl_with(&plane.kubeconfig(), &replace, &node.to_string())?;
    Ok(())
}

fn set_allocatable_pages(
    plane: &ControlPlane,
    screen: &Screen,
    demo_host: &DemoHost,
    host: &mut Host,
) -> Result<()> {
    let infra = plane.infra_node(demo_host.name);
    if infra["spec"]["hugepages"].as_array().is_none_or(Vec::is_empty) {
        return Ok(());
    }
    host.run_checked("systemctl restart kubelet")?;
    screen.wait_until(
        &format!("Node {} has allocatable huge pages", demo_host.name),
        EMULATION_TIMEOUT,
        || {
            let node = plane.get_json(&["node", demo_host.name])?;
            let pages = node["status"]["allocatable"]["hugepages-2Mi"].as_str().unwrap_or("0");
            let is_ready = condition(&node, "Ready")["status"] == "True";
            Ok((pages != "0" && is_ready).then_some(()))
        },
    )?;
    // The restarted kubelet has dropped the extended resources that do not come from a device plugin. The demo sets
    // them again, because in a real cluster virt-handler's device plugins register again.
    screen.wait_until(&format!("Node {} is patched", demo_host.name), EMULATION_TIMEOUT, || {
        Ok(set_virt_handler_status(plane, demo_host).ok())
    })?;
    screen.print_step(&format!("the kubelet of {} has counted the huge pages", demo_host.name));
    Ok(())
}
