//! Sequence of faults of a cluster: components restart while VMs of each tenant ping each other, a profile is
//! edited, a tenant is added and removed, a host is drained ([`super::drain`]), and another host loses power and
//! recovers ([`super::host_loss`]).

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::drain::DRAINED_HOST;
use super::host_loss::LOST_HOST;
use super::hosts::{DemoHost, HOSTS, InstallMethod};
use super::tenant_cluster::TENANT;
use super::{Demo, EMULATION_TIMEOUT, FailedPods, manifests, observe, tables};
use crate::cluster::condition;
use crate::package;

/// Time for which the API server is stopped.
const API_SERVER_DOWNTIME: Duration = Duration::from_secs(15);
/// Leases that are renewed as long as their holders run.
const LEASES: [(&str, &str); 5] = [
    ("berth-system", "rack1-31"),
    ("berth-system", "rack1-32"),
    ("berth-system", "rack1-33"),
    ("berth-system", "berth-controller"),
    ("kube-system", "berth-scheduler"),
];
/// Tenant that is added and removed, derived from the example of another tenant.
const ADDED_TENANT: &str = "lab";

/// Faults and their outcomes.
type FaultOutcomes = Vec<[String; 2]>;

impl Demo<'_> {
    /// Runs all faults and returns a table of the outcomes, and tables of what an operator sees. At the end the state
    /// must be the same as at the start, except for one additional machine and the API server of a tenant.
    ///
    /// # Errors
    /// Fails at the first fault from which the cluster does not recover.
    pub fn run_faults(&mut self) -> Result<String> {
        let mut outcomes = FaultOutcomes::new();
        let pings = self.start_pings()?;
        let title = format!("the API server is stopped for {} s", API_SERVER_DOWNTIME.as_secs());
        self.run_fault(&mut outcomes, &title, Self::restart_api_server)?;
        self.run_fault(&mut outcomes, "kube-scheduler is killed", Self::kill_scheduler)?;
        // Both controllers were started when the cluster had one host. This restart distributes them over several
        // hosts.
        self.run_fault(
            &mut outcomes,
            "controllers are restarted in turn",
            Self::restart_controllers,
        )?;
        self.run_fault(&mut outcomes, "agents are restarted in turn", Self::restart_agents)?;
        self.run_fault(
            &mut outcomes,
            "an agent's package is upgraded",
            Self::upgrade_agent_package,
        )?;
        self.run_fault(&mut outcomes, "pings during these faults", |this| this.stop_pings(&pings))?;
        self.run_fault(
            &mut outcomes,
            "HostProfile density is edited and reverted",
            Self::edit_profile,
        )?;
        self.run_fault(
            &mut outcomes,
            &format!("tenant {ADDED_TENANT} is added"),
            Self::add_tenant,
        )?;
        self.run_fault(
            &mut outcomes,
            &format!("tenant {ADDED_TENANT} is removed"),
            Self::remove_tenant,
        )?;
        let title = format!("tenant {TENANT} gets an API server with a PodDisruptionBudget");
        self.run_fault(&mut outcomes, &title, Self::connect_tenant)?;
        self.run_fault(&mut outcomes, &format!("{DRAINED_HOST} is drained"), Self::drain_host)?;
        self.run_fault(&mut outcomes, &format!("{LOST_HOST} loses power"), Self::power_off_host)?;
        let title = format!("{LOST_HOST} stays off");
        self.run_fault(&mut outcomes, &title, Self::wait_for_replacements)?;
        self.run_fault(&mut outcomes, &format!("{LOST_HOST} is powered on"), Self::power_on_host)?;
        let rows = outcomes.into_iter().map(Vec::from).collect();
        let outcomes = tables::render_table("Faults and outcomes", &["FAULT", "OUTCOME"], rows);
        Ok(outcomes + self.timelines.as_str())
    }

    fn run_fault(
        &mut self,
        outcomes: &mut FaultOutcomes,
        title: &str,
        inject: impl FnOnce(&mut Self) -> Result<String>,
    ) -> Result<()> {
        self.screen.print_step(title);
        let outcome = inject(self).with_context(|| title.to_owned())?;
        self.screen.print_step(&format!("  {outcome}"));
        outcomes.push([title.to_owned(), outcome]);
        Ok(())
    }

    pub(super) fn read_renew_times(&self) -> Result<Vec<Value>> {
        let renew_time = |(namespace, name): &(&str, &str)| {
            Ok(self.plane.get_json(&["lease", "-n", namespace, name])?["spec"]["renewTime"].clone())
        };
        LEASES.iter().map(renew_time).collect()
    }

    /// Waits until the renew time of each Lease differs from its value in `before`.
    pub(super) fn wait_for_renewals(&self, before: &[Value]) -> Result<String> {
        let began = Instant::now();
        self.screen.wait_until(
            "agents, controllers and schedulers renew their Leases",
            EMULATION_TIMEOUT,
            || {
                let now = self.read_renew_times()?;
                Ok(now.iter().zip(before).all(|(now, before)| now != before).then_some(()))
            },
        )?;
        Ok(format!("all Leases have been renewed after {} s", began.elapsed().as_secs()))
    }

    fn restart_api_server(&mut self) -> Result<String> {
        let before = self.read_renew_times()?;
        self.plane.stop_server();
        self.screen.sleep(API_SERVER_DOWNTIME)?;
        self.plane.start_server()?;
        self.wait_for_renewals(&before)
    }

    /// Kills kube-scheduler in the pod of the lease holder and in the other pod.
    fn kill_scheduler(&mut self) -> Result<String> {
        let mut killed = 0;
        for host in &mut self.hosts {
            killed += i32::from(host.run("pkill -KILL -x kube-scheduler")?.code == 0);
        }
        ensure!(killed > 0, "no kube-scheduler ran on any host");
        let before = self.read_renew_times()?;
        self.wait_for_renewals(&before)
    }

    fn restart_rollout(&self, workload: &str) -> Result<()> {
        self.plane.kubectl(&["rollout", "restart", "-n", "berth-system", workload])?;
        let timeout = format!("--timeout={}s", EMULATION_TIMEOUT.as_secs());
        self.plane
            .kubectl(&["rollout", "status", "-n", "berth-system", workload, &timeout])
            .map(drop)
    }

    fn restart_controllers(&mut self) -> Result<String> {
        self.restart_rollout("deployment/berth-controller")?;
        let before = self.read_renew_times()?;
        self.wait_for_renewals(&before)
    }

    fn restart_agents(&mut self) -> Result<String> {
        self.restart_rollout("daemonset/berth-agent")?;
        for (demo_host, host) in HOSTS.iter().zip(&mut self.hosts) {
            if demo_host.install_method == InstallMethod::Package {
                host.run_checked("systemctl restart berth-agent")?;
            }
        }
        let before = self.read_renew_times()?;
        self.wait_for_renewals(&before)
    }

    /// Installs a package with a later version and the same program.
    fn upgrade_agent_package(&mut self) -> Result<String> {
        let package = package::newest_package()?;
        for (_, host) in HOSTS
            .iter()
            .zip(&mut self.hosts)
            .filter(|(demo_host, _)| demo_host.install_method == InstallMethod::Package)
        {
            host.copy_file(&package, "/root/berth-agent.deb")?;
            let result = host.run_for(
                "set -e; cd /root; dpkg-deb -R berth-agent.deb later; sed -i 's/^Version: .*/&+later/' later/DEBIAN/control
                 dpkg-deb -Zgzip -z1 -b later later.deb >/dev/null; dpkg -i later.deb 2>&1
                 rm -r later later.deb berth-agent.deb; systemctl is-active berth-agent
                 dpkg-query -W -f '${Version}' berth-agent | grep later",
                EMULATION_TIMEOUT,
            )?;
            ensure!(result.code == 0, "{}", result.output);
        }
        let before = self.read_renew_times()?;
        self.wait_for_renewals(&before)
    }

    /// Changes the KSM settings in a profile, and reverts the change.
    fn edit_profile(&mut self) -> Result<String> {
        let began = Instant::now();
        let mut took = Vec::new();
        for (mode, is_running) in [("Off", false), ("On", true)] {
            let patch = json!({"spec": {"ksm": {"mode": mode}}}).to_string();
            self.plane.kubectl(&[
                "patch",
                "hostprofile",
                "density",
                "--type=merge",
                "-p",
                &patch,
            ])?;
            self.screen.wait_until(
                &format!("KSM of {DRAINED_HOST} is {mode}"),
                EMULATION_TIMEOUT,
                || {
                    let infra = self.plane.infra_node(DRAINED_HOST);
                    let running = &infra["status"]["capabilities"]["memory"]["ksm"]["running"];
                    Ok((running == is_running).then_some(()))
                },
            )?;
            let file = if is_running { "1" } else { "0" };
            self.host(DRAINED_HOST)?
                .run_checked(&format!("[ $(cat /sys/kernel/mm/ksm/run) = {file} ]"))?;
            took.push(format!("{mode} after {} s", began.elapsed().as_secs()));
        }
        Ok(format!("KSM of the host is {}", took.join(", ")))
    }

    fn add_tenant(&mut self) -> Result<String> {
        let began = Instant::now();
        self.plane.kubectl_with(
            &self.plane.kubeconfig(),
            &["apply", "--validate=false", "-f", "-"],
            &manifests::added_tenant_manifest(ADDED_TENANT)?,
        )?;
        self.screen.wait_until(
            "the machine of the new tenant exists",
            EMULATION_TIMEOUT,
            || {
                Ok((observe::list_items(&self.plane, &["virtualmachines", "-A"])?.len() == 6)
                    .then_some(()))
            },
        )?;
        self.wait_until_vms_run(FailedPods::Forbidden)?;
        self.wait_until_tenants_are_ready()?;
        let vms = observe::read_vms(&self.plane, &mut self.addresses)?;
        let (mut others, mut own) = (Vec::new(), Vec::new());
        for vm in vms {
            if vm.tenant == ADDED_TENANT { own.push(vm) } else { others.push(vm) }
        }
        let vm = own.first().context("the new tenant has no VM")?;
        let from: Vec<&super::Vm> = own.iter().collect();
        let host = self.hosts.get_mut(host_index(&vm.host)?).context("unknown host")?;
        let pings = super::attach::send_pings(host, &from, &others)?;
        let reached = pings.iter().find(|(_, _, is_answered)| *is_answered);
        ensure!(reached.is_none(), "{} reaches a VM of another tenant: {reached:?}", vm.name);
        let vlan = self.plane.get_json(&["tenantcluster", ADDED_TENANT])?["status"]["vlan"].clone();
        Ok(format!(
            "the new VM runs on {} with VLAN {vlan} after {} s, and reaches no VM of another tenant",
            vm.host,
            began.elapsed().as_secs()
        ))
    }

    fn remove_tenant(&mut self) -> Result<String> {
        let began = Instant::now();
        let vlan = self.plane.get_json(&["tenantcluster", ADDED_TENANT])?["status"]["vlan"].clone();
        let timeout = format!("--timeout={}s", EMULATION_TIMEOUT.as_secs());
        self.plane.kubectl(&["delete", "tenantcluster", ADDED_TENANT, &timeout])?;
        self.screen.wait_until(
            "the namespace of the tenant is deleted",
            EMULATION_TIMEOUT,
            || {
                Ok(self
                    .plane
                    .get_json(&["namespace", &format!("cluster-{ADDED_TENANT}")])
                    .err()
                    .map(drop))
            },
        )?;
        for demo_host in &HOSTS {
            let (screen, host) = (self.screen, self.host(demo_host.name)?);
            screen.wait_until(
                &format!("VLAN {vlan} is removed from the uplink of {}", demo_host.name),
                EMULATION_TIMEOUT,
                || {
                    let output = host.run_checked("bridge -j vlan show dev eth1")?;
                    Ok((!output.contains(&format!("\"vlan\":{vlan}"))).then_some(()))
                },
            )?;
        }
        Ok(format!(
            "the network has been removed from all hosts after {} s",
            began.elapsed().as_secs()
        ))
    }

    /// Waits until the kubelet and the agent of a host report Ready, and virt-handler's Node status is set again.
    pub(super) fn wait_until_ready(&self, demo_host: &DemoHost) -> Result<()> {
        self.screen.wait_until(
            &format!("Node {} is Ready", demo_host.name),
            EMULATION_TIMEOUT,
            || {
                let node = self.plane.get_json(&["node", demo_host.name])?;
                let infra = self.plane.infra_node(demo_host.name);
                let is_ready = |object: &Value| condition(object, "Ready")["status"] == "True";
                Ok((is_ready(&node) && is_ready(&infra)).then_some(()))
            },
        )?;
        // This call replaces virt-handler's device plugins, which would register again after a restart of the kubelet.
        self.screen.wait_until(
            &format!("the status that virt-handler would set is on Node {}", demo_host.name),
            EMULATION_TIMEOUT,
            || Ok(super::set_virt_handler_status(&self.plane, demo_host).ok()),
        )
    }

    pub(super) fn host(&mut self, name: &str) -> Result<&mut crate::host::Host> {
        self.hosts.get_mut(host_index(name)?).context("unknown host")
    }

    /// Returns the VMs on a host.
    pub(super) fn vms_on_host(&mut self, name: &str) -> Result<Vec<super::Vm>> {
        let mut vms = observe::read_vms(&self.plane, &mut self.addresses)?;
        vms.retain(|vm| vm.host == name);
        Ok(vms)
    }
}

/// Returns the index of a host in [`HOSTS`].
pub(super) fn host_index(name: &str) -> Result<usize> {
    let index = HOSTS.iter().position(|demo_host| demo_host.name == name);
    index.with_context(|| format!("unknown host {name}"))
}
