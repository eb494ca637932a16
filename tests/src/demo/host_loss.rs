//! Loss of a host: while the host is off, its machines are replaced under other names on other hosts, except a machine
//! with a data disk. Later the host is powered on.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use berth_api::names::condition::HOST_LOST;
use berth_api::names::{HOST_LOST_REMOVAL, REMOVAL_ANNOTATION};
use serde_json::Value;

use super::cluster_state::Vm;
use super::faults::host_index;
use super::hosts::HOSTS;
use super::tenant_cluster::{TENANT, TENANT_NAMESPACE};
use super::timeline::{OBSERVATION_INTERVAL, Timeline, condition_text};
use super::{Demo, EMULATION_TIMEOUT, FailedPods, observe};
use crate::cluster::{ControlPlane, HOST_GATEWAY, condition};

/// Host that is lost. Its agent runs from a package, and restores huge pages and bridges before the kubelet starts.
pub(super) const LOST_HOST: &str = "rack1-31";
/// `spec.replaceAfter` of the tenants.
const REPLACE_AFTER: &str = "60s";
/// Tenant whose machines have data disks.
const DATA_TENANT: &str = "bank";
/// Namespace of the machines with data disks.
const DATA_NAMESPACE: &str = "cluster-bank";
/// Number of machines that the tenant without data disks requests while the host is off.
const REPLICAS: usize = 4;
/// Time for which the machines with data disks are observed after the machines without data disks were replaced.
const OBSERVATION_TIME: Duration = Duration::from_secs(30);

/// Host that has lost power, and what an operator sees since then.
#[derive(Debug)]
pub(super) struct HostLoss<'a> {
    /// VMs that were on the host.
    vms: Vec<Vm>,
    /// Names of all machines of the tenant with data disks.
    data_machines: BTreeSet<String>,
    timeline: Timeline<'a>,
}

impl HostLoss<'_> {
    /// Returns the machines of the host that have no data disks.
    fn vms_without_data_disks(&self) -> impl Iterator<Item = &Vm> {
        self.vms.iter().filter(|vm| vm.tenant == TENANT)
    }

    /// Returns the machines of the host that have data disks.
    fn vms_with_data_disks(&self) -> impl Iterator<Item = &Vm> {
        self.vms.iter().filter(|vm| vm.tenant == DATA_TENANT)
    }

    /// Adds the changes since the last call to the timeline. Returns true if each machine without data disks is marked
    /// for removal, and each machine with data disks is reported as waiting.
    fn observe(&mut self, plane: &ControlPlane) -> Result<bool> {
        let node = plane.get_json(&["node", LOST_HOST])?;
        let ready = condition_text(&node, "Ready");
        self.timeline.observe(&format!("Node {LOST_HOST}, Ready"), &ready);
        let infra_node = plane.infra_node(LOST_HOST);
        for type_ in ["Ready", HOST_LOST] {
            let text = condition_text(&infra_node, type_);
            self.timeline.observe(&format!("InfraNode {LOST_HOST}, {type_}"), &text);
        }
        let mut texts = vec![condition_text(&infra_node, HOST_LOST)];
        for tenant in [TENANT, DATA_TENANT] {
            let text = condition_text(&plane.get_json(&["tenantcluster", tenant])?, HOST_LOST);
            self.timeline.observe(&format!("TenantCluster {tenant}, {HOST_LOST}"), &text);
            texts.push(text);
        }
        let machines = observe::list_items(plane, &["virtualmachines", "-A"])?;
        let mut is_complete = true;
        for vm in &self.vms {
            let machine = observe::find_machine(&machines, vm);
            let removal = machine.map(|one| &one["metadata"]["annotations"][REMOVAL_ANNOTATION]);
            let text = match removal {
                None => "deleted".to_owned(),
                Some(removal) => removal.as_str().map(removal_mark_text).unwrap_or_default(),
            };
            self.timeline.observe(&format!("VM {}/{}", vm.tenant, vm.name), &text);
            is_complete &= if vm.tenant == TENANT {
                text == removal_mark_text(HOST_LOST_REMOVAL)
            } else {
                // The condition `HostLost` of both the host and the tenant names the machine.
                let words = format!("{}/{}: has data disks", vm.namespace, vm.name);
                texts.iter().filter(|text| text.contains(&words)).count() == 2
            };
        }
        Ok(is_complete)
    }

    /// Checks that no machine with a data disk was marked for removal or replaced, and that none of them has two pods
    /// that may run.
    fn check_data_machines(&self, plane: &ControlPlane) -> Result<()> {
        let machines = observe::list_items(plane, &["virtualmachines", "-n", DATA_NAMESPACE])?;
        let names: BTreeSet<String> = machines.iter().map(name_of).collect();
        ensure!(
            names == self.data_machines,
            "machines with data disks: {names:?} in place of {:?}",
            self.data_machines
        );
        let is_marked =
            |one: &&Value| !one["metadata"]["annotations"][REMOVAL_ANNOTATION].is_null();
        let marked = machines.iter().find(is_marked).map(name_of);
        ensure!(marked.is_none(), "machine {marked:?} has data disks, but has a removal mark");
        let pods = ["pods", "-n", DATA_NAMESPACE, "-l", "kubevirt.io=virt-launcher"];
        let pods = observe::list_items(plane, &pods)?;
        for name in &names {
            let may_run = |pod: &&Value| {
                pod["metadata"]["labels"]["vm.kubevirt.io/name"] == name.as_str()
                    && !["Failed", "Succeeded"].iter().any(|end| pod["status"]["phase"] == *end)
            };
            let count = pods.iter().filter(may_run).count();
            ensure!(count == 1, "{name} has {count} launcher pods that may run, not one");
        }
        Ok(())
    }
}

fn name_of(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

fn removal_mark_text(removal: &str) -> String {
    format!("{REMOVAL_ANNOTATION}: {removal}")
}

impl Demo<'_> {
    /// Switches off a host. While the host is off, a tenant requests one more machine.
    pub(super) fn power_off_host(&mut self) -> Result<String> {
        let began = Instant::now();
        for tenant in [TENANT, DATA_TENANT] {
            let patch = format!(r#"{{"spec":{{"replaceAfter":"{REPLACE_AFTER}"}}}}"#);
            let tenant = ["patch", "tenantcluster", tenant, "--type=merge", "-p", &patch];
            self.plane.kubectl(&tenant)?;
        }
        let vms = self.vms_on_host(LOST_HOST)?;
        let data_machines =
            observe::list_items(&self.plane, &["virtualmachines", "-n", DATA_NAMESPACE])?;
        let data_machines = data_machines.iter().map(name_of).collect();
        let mut loss = HostLoss { vms, data_machines, timeline: Timeline::start(self.screen) };
        for (machines, kind) in [
            (loss.vms_without_data_disks().count(), "without"),
            (loss.vms_with_data_disks().count(), "with"),
        ] {
            ensure!(machines > 0, "{LOST_HOST} has no machine {kind} a data disk");
        }
        self.host(LOST_HOST)?.power_off();
        loss.timeline.add("power", &format!("{LOST_HOST} is off"));
        self.screen.wait_until(
            "the condition Ready of its InfraNode is Unknown",
            EMULATION_TIMEOUT,
            || {
                loss.observe(&self.plane)?;
                let infra = self.plane.infra_node(LOST_HOST);
                Ok((condition(&infra, "Ready")["status"] == "Unknown").then_some(()))
            },
        )?;
        let stale = began.elapsed().as_secs();
        let deployment =
            observe::list_items(&self.plane, &["machinedeployments", "-n", TENANT_NAMESPACE])?;
        let name = deployment.first().and_then(|one| one["metadata"]["name"].as_str());
        let patch = format!(r#"{{"spec":{{"replicas":{REPLICAS}}}}}"#);
        self.plane.kubectl(&[
            "patch",
            "machinedeployment",
            "-n",
            TENANT_NAMESPACE,
            name.context("the tenant has no MachineDeployment")?,
            "--type=merge",
            "-p",
            &patch,
        ])?;
        let Self { plane, addresses, attached_pods: attached, screen, .. } = self;
        let new = screen.wait_until("one more VM runs", EMULATION_TIMEOUT, || {
            loss.observe(plane)?;
            screen.sleep(OBSERVATION_INTERVAL)?;
            let mut vms = observe::read_vms(plane, addresses)?.into_iter();
            Ok(vms.find(|vm| vm.phase == "Running" && !attached.contains(&vm.pod_uid)))
        })?;
        ensure!(new.host != LOST_HOST, "the new VM is on the lost host");
        let took = began.elapsed().as_secs();
        self.loss = Some(loss);
        Ok(format!(
            "the report was stale after {stale} s; the new VM runs on {} after {took} s",
            new.host
        ))
    }

    /// Waits until the machines of the lost host are replaced, and checks that machines with data disks are not
    /// replaced.
    pub(super) fn wait_for_replacements(&mut self) -> Result<String> {
        let Self { plane, addresses, screen, loss, .. } = self;
        let loss = loss.as_mut().context("no host has been switched off")?;
        let mut complete_at: Option<Instant> = None;
        screen.wait_until("the machines are replaced", EMULATION_TIMEOUT, || {
            let is_complete = loss.observe(plane)?;
            loss.check_data_machines(plane)?;
            screen.sleep(OBSERVATION_INTERVAL)?;
            let vms = observe::read_vms(plane, addresses)?;
            let runs =
                |vm: &&Vm| vm.tenant == TENANT && vm.host != LOST_HOST && vm.phase == "Running";
            let all: Vec<&str> = vms.iter().filter(runs).map(|vm| vm.name.as_str()).collect();
            loss.timeline.observe(
                &format!("machines of {TENANT} that run on other hosts"),
                &format!("{} of {REPLICAS}", all.len()),
            );
            if is_complete && all.len() == REPLICAS && complete_at.is_none() {
                complete_at = Some(Instant::now());
            }
            Ok(complete_at.is_some_and(|at| at.elapsed() >= OBSERVATION_TIME).then_some(()))
        })?;
        let (replaced, waiting) =
            (loss.vms_without_data_disks().count(), loss.vms_with_data_disks().count());
        Ok(format!(
            "{replaced} machines without data disks have been replaced; {waiting} machines with data disks wait for the host"
        ))
    }

    /// Powers on the lost host, and waits until the machines that were replaced are deleted.
    pub(super) fn power_on_host(&mut self) -> Result<String> {
        let began = Instant::now();
        let before = self.read_renew_times()?;
        let mut loss = self.loss.take().context("no host has been switched off")?;
        loss.check_data_machines(&self.plane)?;
        let index = host_index(LOST_HOST)?;
        let (demo_host, plane) = (HOSTS.get(index).context("unknown host")?, &self.plane);
        let host = self.hosts.get_mut(index).context("unknown host")?;
        host.power_on()?;
        loss.timeline.add("power", &format!("{LOST_HOST} is on"));
        // The agent configures huge pages and the bridge even if it cannot reach the cluster.
        let pages = "cat /sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages";
        let pages = host.run_checked(pages)?;
        ensure!(pages.trim() == "96", "without the cluster, zone 1 has {pages} huge pages, not 96");
        demo_host.configure_uplink(host)?;
        self.screen.wait_until(
            "the bridge exists without the cluster",
            EMULATION_TIMEOUT,
            || {
                let bridges = host.run_checked("ip -o link show type bridge")?;
                Ok(bridges.contains("br-tenant").then_some(()))
            },
        )?;
        host.run_checked("systemctl start containerd")?;
        let server = format!("{HOST_GATEWAY}:{}", plane.port());
        let join =
            host.run_for(&format!("join-cluster {} {server}", demo_host.name), EMULATION_TIMEOUT)?;
        ensure!(join.code == 0, "{}", join.output);
        self.wait_until_ready(demo_host)?;
        self.wait_for_renewals(&before)?;
        if self.virt_controller.is_real() {
            self.wait_until_pods_end(&loss.vms)?;
        }
        self.screen.wait_until("the replaced machines are deleted", EMULATION_TIMEOUT, || {
            loss.observe(&self.plane)?;
            let machines = observe::list_items(&self.plane, &["virtualmachines", "-A"])?;
            let is_deleted = |vm: &Vm| observe::find_machine(&machines, vm).is_none();
            let infra = self.plane.infra_node(LOST_HOST);
            let is_lost = !condition(&infra, HOST_LOST).is_null();
            Ok((loss.vms_without_data_disks().all(is_deleted) && !is_lost).then_some(()))
        })?;
        self.wait_until_vms_run(FailedPods::Allowed)?;
        self.wait_until_tenants_are_ready()?;
        self.timelines.push_str(&loss.timeline.render(&format!("Loss of {LOST_HOST}")));
        Ok(format!("all VMs run after {} s", began.elapsed().as_secs()))
    }

    /// Waits until the kubelet of the lost host has reported that the pods of these VMs do not run. Until then,
    /// virt-controller does not delete the instances of these VMs.
    fn wait_until_pods_end(&mut self, lost: &[Vm]) -> Result<()> {
        let Self { plane, addresses, screen, .. } = self;
        screen.wait_until("the pods of the lost host have ended", EMULATION_TIMEOUT, || {
            let vms = observe::read_vms(plane, addresses)?;
            let runs = |vm: &Vm| {
                vm.phase == "Running" && lost.iter().any(|other| other.pod_uid == vm.pod_uid)
            };
            Ok((!vms.iter().any(runs)).then_some(()))
        })
    }
}
