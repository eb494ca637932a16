//! The whole of Berth on one machine: a control plane, three emulated hosts with real kubelets, two tenants and their VMs.
//!
//! What is not real: the hosts are emulated, virt-controller is simulated (`launchers`), and so is what virt-handler says of
//! its Node (`virt_handler`). The launcher pods sleep in place of guests.

mod attach;
pub mod deployed;
mod faults;
pub mod hosts;
pub mod hub;
pub mod launchers;
pub mod logs;
mod look;
pub mod screen;
mod seen;
mod tables;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::cluster::{ControlPlane, Parts, condition};
use crate::host::Host;
use crate::package;
use attach::Addresses;
use hosts::{By, HOSTS, Kind, PURPOSE};
use hub::Hub;
use launchers::Launchers;
use screen::Screen;
use seen::{Seen, Vm};

/// Under emulation, on a machine that does other things too.
const SLOW: Duration = Duration::from_secs(600);

/// All that runs; ended when it is dropped, and then its logs are kept.
#[derive(Debug)]
pub struct Demo<'a> {
    // In the order in which they end.
    _launchers: Launchers,
    hosts: Vec<Host>,
    plane: ControlPlane,
    _hub: Hub,
    screen: &'a Screen,
    folder: &'a Path,
    logs: &'a Path,
    addresses: Addresses,
    /// Pods by uid.
    attached: BTreeSet<String>,
}

/// Pods that have failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Failures {
    /// There must be none.
    None,
    /// Of hosts that were lost.
    Some,
}

impl<'a> Demo<'a> {
    /// Brings all of it up.
    ///
    /// # Errors
    /// If something does not come up; the message says what, and the folder of logs has the rest.
    pub fn up(screen: &'a Screen, folder: &'a Path, logs: &'a Path) -> Result<Self> {
        screen.say("a Kubernetes control plane and three two-socket hosts begin (the first time ever, their images are built)");
        let hub = Hub::new(folder, HOSTS.len())?;
        let (plane, hosts) = std::thread::scope(|scope| {
            let boots: Vec<_> = HOSTS
                .iter()
                .enumerate()
                .map(|(cable, kind)| {
                    let hub = &hub;
                    scope.spawn(move || kind.boot(hub, cable, screen))
                })
                .collect();
            let plane = control_plane(screen);
            let hosts: Result<Vec<Host>> = boots.into_iter().map(ended).collect();
            anyhow::Ok((plane?, hosts?))
        })?;
        let launchers = Launchers::start(&plane.kubeconfig(), &deployed::kubevirt())?;
        let mut this = Self {
            _launchers: launchers,
            hosts,
            plane,
            _hub: hub,
            screen,
            folder,
            logs,
            addresses: Addresses::default(),
            attached: BTreeSet::new(),
        };
        this.join()?;
        this.shape()?;
        Ok(this)
    }

    /// The control plane's kubeconfig.
    #[must_use]
    pub const fn plane(&self) -> &ControlPlane {
        &self.plane
    }

    /// Hosts become Nodes, and get their agents.
    fn join(&mut self) -> Result<()> {
        let (plane, screen) = (&self.plane, self.screen);
        let images = deployed::images(plane)?;
        std::thread::scope(|scope| {
            let joins: Vec<_> = HOSTS
                .iter()
                .zip(&mut self.hosts)
                .map(|(kind, host)| {
                    let images = &images;
                    scope.spawn(move || {
                        kind.join(host, plane, images, screen)?;
                        if kind.by == By::Package {
                            let kubeconfig = deployed::agent_kubeconfig(plane, kind)?;
                            kind.install(host, &package::newest()?, &kubeconfig)?;
                            screen.say(&format!("{} has the agent's Debian package, and a client certificate for it", kind.name));
                        }
                        anyhow::Ok(())
                    })
                })
                .collect();
            for kind in &HOSTS {
                screen.until(&format!("Node {}", kind.name), SLOW, || {
                    Ok(virt_handler(plane, kind).ok())
                })?;
            }
            plane.apply_file(&crate::repository().join("deploy/base/daemonset.yaml"))?;
            joins.into_iter().try_for_each(ended)
        })
    }

    /// Hosts become what their profiles say.
    fn shape(&mut self) -> Result<()> {
        let (plane, screen) = (&self.plane, self.screen);
        for kind in &HOSTS {
            screen.until(&format!("InfraNode {} as its profile says", kind.name), SLOW, || {
                let infra = plane.infra_node(kind.name);
                let is_answered =
                    infra["status"]["observedGeneration"] == infra["metadata"]["generation"];
                let is_so = infra["spec"]["profile"] == kind.purpose
                    && is_answered
                    && condition(&infra, "Ready")["status"] == "True";
                Ok(is_so.then_some(()))
            })?;
            screen.say(&format!("{} is as HostProfile {} says", kind.name, kind.purpose));
        }
        // A kubelet counts huge pages when it starts, and never again.
        std::thread::scope(|scope| {
            let restarts: Vec<_> = HOSTS
                .iter()
                .zip(&mut self.hosts)
                .map(|(kind, host)| scope.spawn(move || count_pages(plane, screen, kind, host)))
                .collect();
            restarts.into_iter().try_for_each(ended)
        })
    }

    /// Two tenants by one `kubectl apply`, until their VMs run and are attached.
    ///
    /// # Errors
    /// If a VM does not come to run.
    pub fn tenants(&mut self) -> Result<()> {
        let (plane, screen) = (&self.plane, self.screen);
        let apply = ["apply", "--validate=false", "-f", "-"];
        plane.kubectl_with(&plane.kubeconfig(), &apply, &deployed::tenants()?)?;
        screen.say("kubectl apply: two tenants, bank with 2 pinned VMs in huge pages, shop with 3 shared ones");
        self.settled(Failures::None)?;
        self.screen.say("the CNI plugin has attached all VMs to their tenants' VLANs");
        self.tenants_are_ready()
    }

    /// Waits until all VMs run that are asked for, and attaches those that have a new pod.
    fn settled(&mut self, failures: Failures) -> Result<()> {
        let Self { screen, plane, addresses, .. } = self;
        let mut told = Vec::new();
        let vms = screen.until("all VMs run", SLOW, || {
            let asked: u64 = look::asked(plane)?.values().sum();
            let vms = look::vms(plane, addresses)?;
            for vm in &vms {
                let now = (vm.name.clone(), vm.phase.clone(), vm.host.clone());
                if !vm.host.is_empty() && !told.contains(&now) {
                    screen.say(&format!("{} is {} on {}", vm.name, vm.phase, vm.host));
                    told.push(now);
                }
                let is_wrong = failures == Failures::None && vm.phase.starts_with("Failed");
                ensure!(!is_wrong, "{}: its pod is {}", vm.name, vm.phase);
            }
            let run = vms.iter().filter(|vm| vm.phase == "Running").count() as u64;
            Ok((run == asked && vms.len() as u64 == asked).then_some(vms))
        })?;
        self.attach(&vms)
    }

    fn attach(&mut self, vms: &[Vm]) -> Result<()> {
        let Self { plane, hosts, attached, .. } = self;
        let is_new = |vm: &&Vm| !attached.contains(&vm.pod_uid);
        let new: Vec<&Vm> = vms.iter().filter(is_new).collect();
        let (plane, new) = (&*plane, new.as_slice());
        std::thread::scope(|scope| {
            let all: Vec<_> = HOSTS
                .iter()
                .zip(hosts)
                .map(|(kind, host)| {
                    scope.spawn(move || {
                        let mut here = new.iter().filter(|vm| vm.host == kind.name);
                        here.try_for_each(|vm| attach::attach(plane, host, vm))
                    })
                })
                .collect();
            all.into_iter().try_for_each(ended)
        })?;
        attached.extend(new.iter().map(|vm| vm.pod_uid.clone()));
        Ok(())
    }

    /// The MachineDeployments and tenants follow a little later than their VMs.
    fn tenants_are_ready(&self) -> Result<()> {
        self.screen.until("all tenants and machines are Ready", SLOW, || {
            let all = look::items(&self.plane, &["tenantclusters"])?;
            let is_ready = |one: &Value| condition(one, "Ready")["status"] == "True";
            let machines = look::items(&self.plane, &["machinedeployments", "-A"])?;
            let has_all = |one: &Value| one["status"]["readyReplicas"] == one["spec"]["replicas"];
            Ok((all.iter().all(is_ready) && machines.iter().all(has_all)).then_some(()))
        })
    }

    /// What has become of all: the tables, and what is not as it should be.
    ///
    /// # Errors
    /// If it cannot be asked.
    pub fn end(&mut self) -> Result<(String, Vec<String>)> {
        self.screen.say("every VM pings every other one");
        let mut seen = look::look(&self.plane, &mut self.hosts, &mut self.addresses)?;
        seen.pings = self.pings(&seen)?;
        Ok((tables::render(&seen), seen.problems()))
    }

    fn pings(&mut self, seen: &Seen) -> Result<Vec<(String, String, bool)>> {
        std::thread::scope(|scope| {
            let all: Vec<_> = HOSTS
                .iter()
                .zip(&mut self.hosts)
                .map(|(kind, host)| {
                    let from: Vec<_> = seen.vms.iter().filter(|vm| vm.host == kind.name).collect();
                    scope.spawn(move || attach::pings(host, &from, &seen.vms))
                })
                .collect();
            let all: Result<Vec<_>> = all.into_iter().map(ended).collect();
            Ok(all?.concat())
        })
    }
}

impl Drop for Demo<'_> {
    fn drop(&mut self) {
        self.screen.say(&format!("ending; logs are in {}", self.logs.display()));
        logs::of_hosts(&mut self.hosts, self.logs);
        logs::of_files(self.folder, self.logs);
    }
}

fn ended<T>(thread: std::thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    match thread.join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

fn control_plane(screen: &Screen) -> Result<ControlPlane> {
    let plane = ControlPlane::start(Parts { controllers: true, audit: false })?;
    let version = plane.version();
    screen.say(&format!("Kubernetes {version} is up"));
    deployed::apply(&plane)?;
    screen.say("deploy/ is applied: CRDs, rights, the controller with a stock kube-scheduler beside it; three HostProfiles");
    Ok(plane)
}

/// What virt-handler says of its Node; and what its host is for, as an administrator does.
fn virt_handler(plane: &ControlPlane, kind: &Kind) -> Result<()> {
    let mut labels = json!({
        PURPOSE: kind.purpose, "kubevirt.io/schedulable": "true",
        "machine-type.node.kubevirt.io/q35": "true",
    });
    if kind.cpu_manager == "static" {
        labels["cpumanager"] = "true".into();
        labels["kubevirt.io/cpumanager"] = "true".into();
    }
    if kind.by == By::Package {
        // One agent to a host.
        labels["berth.dev/ignore"] = "true".into();
    }
    let patch = json!({"metadata": {"labels": labels}}).to_string();
    plane.kubectl(&["patch", "node", kind.name, "--type=merge", "-p", &patch])?;
    // The kubelet keeps what others say there, and makes it allocatable.
    let path = format!("/api/v1/nodes/{}/status", kind.name);
    let mut node = plane.get(&["node", kind.name])?;
    for field in ["capacity", "allocatable"] {
        node["status"][field]["devices.kubevirt.io/tun"] = "1000".into();
    }
    let replace = ["replace", "--raw", &path, "-f", "-"];
    plane.kubectl_with(&plane.kubeconfig(), &replace, &node.to_string())?;
    Ok(())
}

fn count_pages(plane: &ControlPlane, screen: &Screen, kind: &Kind, host: &mut Host) -> Result<()> {
    let infra = plane.infra_node(kind.name);
    if infra["spec"]["hugepages"].as_array().is_none_or(Vec::is_empty) {
        return Ok(());
    }
    host.must("systemctl restart kubelet")?;
    screen.until(&format!("huge pages of Node {}", kind.name), SLOW, || {
        let node = plane.get(&["node", kind.name])?;
        let pages = node["status"]["allocatable"]["hugepages-2Mi"].as_str().unwrap_or("0");
        let is_ready = condition(&node, "Ready")["status"] == "True";
        Ok((pages != "0" && is_ready).then_some(()))
    })?;
    // It has forgotten what is no plugin's own; virt-handler's plugins register again too.
    screen.until(&format!("Node {}", kind.name), SLOW, || Ok(virt_handler(plane, kind).ok()))?;
    screen.say(&format!("the kubelet of {} counts its huge pages", kind.name));
    Ok(())
}
