//! Drain of a host with `kubectl drain`, while the PodDisruptionBudget of a tenant first permits no eviction.
//!
//! virt-api refuses the evictions of launcher pods and writes the evacuated host to the VirtualMachineInstances. Where
//! virt-controller is simulated, a PodDisruptionBudget refuses these evictions, and [`DrainView`] writes the host for
//! each refusal that kubectl reports. The condition LiveMigratable, which virt-handler sets, is simulated in both
//! cases.

#![expect(clippy::disallowed_methods, reason = "the demo reads its own files")]

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use berth_api::names::EVACUATION_ANNOTATION;
use berth_api::names::condition::DRAINING;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::cluster_state::Vm;
use super::tenant_cluster::{PODS, TENANT_NAMESPACE, TenantPlane, WORKLOAD, budget};
use super::timeline::{OBSERVATION_INTERVAL, Timeline, condition_text};
use super::{Demo, EMULATION_TIMEOUT, FailedPods, observe};
use crate::cluster::{ControlPlane, condition};
use crate::plan::run_plan;
use crate::running::Running;

pub(super) const DRAINED_HOST: &str = "rack1-32";
/// Time for which the tenant's PodDisruptionBudget still blocks the drain before the demo relaxes the budget.
const BLOCKED_TIME: Duration = Duration::from_secs(30);
/// PodDisruptionBudget that refuses evictions in place of virt-api.
const SIMULATED_WEBHOOK: &str = "simulated-virt-api";

/// Running `kubectl drain`, stopped on drop.
#[derive(Debug)]
struct KubectlDrain {
    program: Running,
    log: PathBuf,
    printed_lines: BTreeSet<String>,
}

impl KubectlDrain {
    fn start(plane: &ControlPlane, log: PathBuf) -> Result<Self> {
        let file = File::create(&log).with_context(|| log.display().to_string())?;
        let mut command = Running::command(&plane.assets().join("kubectl"), None);
        command.arg("--kubeconfig").arg(plane.kubeconfig()).args([
            "drain",
            DRAINED_HOST,
            "--ignore-daemonsets",
            "--delete-emptydir-data",
            "--force",
            "--timeout=1800s",
        ]);
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        Ok(Self { program: Running::spawn(command)?, log, printed_lines: BTreeSet::new() })
    }

    /// Returns the lines that this drain has not printed before, because kubectl repeats lines.
    fn read_new_lines(&mut self) -> Result<Vec<String>> {
        let output = fs::read_to_string(&self.log)?;
        let complete = output.rsplit_once('\n').map_or("", |(complete, _)| complete);
        let new = complete.lines().filter(|line| self.printed_lines.insert((*line).to_owned()));
        Ok(new.map(str::to_owned).collect())
    }

    /// Returns true if the drain has succeeded, and false if it is still running.
    fn has_succeeded(&mut self) -> Result<bool> {
        let Some(status) = self.program.process.try_wait()? else { return Ok(false) };
        ensure!(status.success(), "kubectl drain: {status}: {}", fs::read_to_string(&self.log)?);
        Ok(true)
    }
}

/// View of an operator who drains the host: output of kubectl, conditions, and states of machines.
struct DrainView<'v, 'a> {
    plane: &'v ControlPlane,
    tenant: &'v TenantPlane,
    /// VMs that were on the host at the start.
    vms: &'v [Vm],
    is_webhook_simulated: bool,
    drain: KubectlDrain,
    timeline: Timeline<'a>,
}

impl DrainView<'_, '_> {
    /// Adds the changes since the last call to the timeline. Returns true if a PodDisruptionBudget of the tenant
    /// refuses an eviction.
    fn observe(&mut self) -> Result<bool> {
        for line in self.drain.read_new_lines()? {
            self.timeline.add("kubectl drain", &line);
            if self.is_webhook_simulated {
                self.set_evacuation_node(&line)?;
            }
        }
        let infra_node = self.plane.infra_node(DRAINED_HOST);
        let draining = condition_text(&infra_node, DRAINING);
        self.timeline.observe(&format!("InfraNode {DRAINED_HOST}, {DRAINING}"), &draining);
        let machines = observe::list_items(self.plane, &["virtualmachines", "-A"])?;
        for vm in self.vms {
            let machine = observe::find_machine(&machines, vm).unwrap_or(&Value::Null);
            let record = machine["metadata"]["annotations"][EVACUATION_ANNOTATION].as_str();
            let text = record.map(render_evacuation_status).unwrap_or_default();
            self.timeline.observe(&format!("VM {}/{}", vm.tenant, vm.name), &text);
            let node = self.tenant.node_status(&vm.name)?;
            self.timeline.observe(&format!("Node of {} in the tenant", vm.name), &node);
        }
        let deployment = read_deployment(self.plane)?;
        let removed = condition_text(&deployment, "MachinesRemoved");
        self.timeline.observe("MachineDeployment, MachinesRemoved", &removed);
        let words = format!("PodDisruptionBudget {WORKLOAD} permits no eviction");
        let reason = &condition(&deployment, "MachinesRemoved")["reason"];
        Ok(reason == "DrainBlocked" && removed.contains(&words))
    }

    /// Sets `evacuationNodeName` of the instance, as virt-api does when it refuses an eviction. `line` is a line of
    /// kubectl's output.
    fn set_evacuation_node(&self, line: &str) -> Result<()> {
        let is_refused = |vm: &&Vm| {
            line.contains("error when evicting") && line.contains(&format!("\"{}\"", vm.pod))
        };
        let Some(vm) = self.vms.iter().find(is_refused) else { return Ok(()) };
        let patch = json!({"status": {"evacuationNodeName": DRAINED_HOST}}).to_string();
        let instance = ["patch", "vmi", &vm.name, "-n", &vm.namespace, "--type=merge"];
        self.plane.kubectl(&[&instance[..], &["-p", &patch]].concat()).map(drop)
    }

    /// Waits until the tenant's budget blocks the drain, and checks that no pod of the tenant was evicted.
    fn wait_until_blocked(&mut self) -> Result<()> {
        let screen = self.timeline.screen();
        let mut blocked_at: Option<Instant> = None;
        screen.wait_until("the tenant's budget blocks the drain", EMULATION_TIMEOUT, || {
            let is_blocked = self.observe()?;
            ensure!(!self.drain.has_succeeded()?, "the drain has ended despite the budget");
            if blocked_at.is_none() && is_blocked {
                blocked_at = Some(Instant::now());
            }
            screen.sleep(OBSERVATION_INTERVAL)?;
            Ok(blocked_at.is_some_and(|at| at.elapsed() >= BLOCKED_TIME).then_some(()))
        })?;
        let healthy = self.tenant.kubelets().fewest_healthy_pods();
        ensure!(healthy >= PODS, "only {healthy} of {PODS} pods of the tenant were healthy");
        let draining = self.plane.infra_node(DRAINED_HOST);
        ensure!(condition(&draining, DRAINING)["status"] == "True", "the host is not Draining");
        let nodes = self.tenant.nodes_of_pods()?;
        let is_kept = self.vms.iter().any(|vm| nodes.contains(&vm.name));
        ensure!(is_kept, "no pod of the tenant runs on the machines of {DRAINED_HOST}: {nodes:?}");
        Ok(())
    }

    /// Permits one eviction at a time, and waits for the end of the drain.
    fn relax_budget(&mut self) -> Result<()> {
        let screen = self.timeline.screen();
        let (before, after) = (PODS, PODS - 1);
        let text = format!("minAvailable of PodDisruptionBudget {WORKLOAD}: {before} -> {after}");
        self.timeline.add("the tenant", &text);
        self.tenant.set_budget(screen, after)?;
        screen.wait_until("kubectl drain ends", EMULATION_TIMEOUT, || {
            self.observe()?;
            let infra_node = self.plane.infra_node(DRAINED_HOST);
            let is_draining = !condition(&infra_node, DRAINING).is_null();
            screen.sleep(OBSERVATION_INTERVAL)?;
            Ok((self.drain.has_succeeded()? && !is_draining).then_some(()))
        })?;
        let healthy = self.tenant.kubelets().fewest_healthy_pods();
        ensure!(healthy >= after, "only {healthy} pods of the tenant were healthy, not {after}");
        self.timeline.add("kubectl drain", "has ended with exit code 0");
        Ok(())
    }
}

fn read_deployment(plane: &ControlPlane) -> Result<Value> {
    let all = observe::list_items(plane, &["machinedeployments", "-n", TENANT_NAMESPACE])?;
    all.into_iter().next().context("the tenant has no MachineDeployment")
}

/// Renders the status of an evacuation, which is JSON.
fn render_evacuation_status(record: &str) -> String {
    let record: Value = serde_json::from_str(record).unwrap_or_default();
    let text = |field: &str| record[field].as_str().unwrap_or_default();
    let until = record["until"].as_str().map(|until| format!(" until {until}"));
    format!("{}{}: {}", text("reason"), until.unwrap_or_default(), text("message"))
}

/// Renders the result of `berth-controller plan --drain`.
fn render_plan(plan: &Value) -> String {
    let drain = &plan["drain"];
    let count = |field: &str| drain[field].as_array().map_or(0, Vec::len);
    let moved = drain["moved"].as_array().into_iter().flatten();
    let moved = moved.map(|one| {
        let text = |field: &str| one[field].as_str().unwrap_or_default();
        format!("; {} fits on {}", text("vm"), text("host"))
    });
    let replaced = drain["replaced"].as_array().into_iter().flatten();
    let replaced = replaced.map(|one| {
        let text = |field: &str| one[field].as_str().unwrap_or_default();
        format!("; {} is replaced on {}: {}", text("vm"), text("host"), text("reason"))
    });
    let stuck = drain["stuck"].as_array().into_iter().flatten();
    let stuck = stuck.map(|one| format!("; {}", one["reason"].as_str().unwrap_or_default()));
    let details: String = moved.chain(replaced).chain(stuck).collect();
    let fitting = count("moved") + count("replaced");
    format!("{fitting} VMs fit on other hosts, {} do not{details}", count("stuck"))
}

impl Demo<'_> {
    /// Drains a host whose machines cannot be migrated, and returns the outcome.
    pub(super) fn drain_host(&mut self) -> Result<String> {
        let began = Instant::now();
        let vms = self.vms_on_host(DRAINED_HOST)?;
        ensure!(!vms.is_empty(), "no VM is on {DRAINED_HOST}");
        self.set_not_migratable(&vms)?;
        let is_simulated = !self.virt_controller.is_real();
        let namespaces: BTreeSet<&str> = vms.iter().map(|vm| vm.namespace.as_str()).collect();
        if is_simulated {
            for namespace in &namespaces {
                let (label, value) = ("kubevirt.io", "virt-launcher");
                let refusing =
                    budget(&self.plane, namespace, SIMULATED_WEBHOOK, 1000, label, value);
                self.plane.apply(&refusing.to_string())?;
            }
        }
        let table = self.show_drain(&vms, is_simulated)?;
        self.timelines.push_str(&table);
        if is_simulated {
            for namespace in &namespaces {
                self.plane.kubectl(&["delete", "pdb", SIMULATED_WEBHOOK, "-n", namespace])?;
            }
        }
        self.wait_until_vms_run(FailedPods::Allowed)?;
        ensure!(self.vms_on_host(DRAINED_HOST)?.is_empty(), "the drained host still has VMs");
        let (count, took) = (vms.len(), began.elapsed().as_secs());
        self.plane.kubectl(&["uncordon", DRAINED_HOST])?;
        self.wait_until_tenants_are_ready()?;
        Ok(format!(
            "the tenant's budget blocks the drain for {} s; its {count} VMs are replaced on other hosts after {took} s",
            BLOCKED_TIME.as_secs()
        ))
    }

    /// Drains the host, and returns a table of what the operator sees.
    fn show_drain(&self, vms: &[Vm], is_webhook_simulated: bool) -> Result<String> {
        let mut timeline = Timeline::start(self.screen);
        let plan = self.plan_drain()?;
        timeline.add("plan --drain", &render_plan(&plan));
        let tenant = self.tenant.as_ref().context("no tenant has an API server")?;
        tenant.kubelets().reset_fewest_healthy_pods();
        let drain = KubectlDrain::start(&self.plane, self.logs.join("kubectl-drain.log"))?;
        let plane = &self.plane;
        let mut view = DrainView { plane, tenant, vms, is_webhook_simulated, drain, timeline };
        view.wait_until_blocked()?;
        view.relax_budget()?;
        Ok(view.timeline.render(&format!("Drain of {DRAINED_HOST}")))
    }

    /// Returns the result of `berth-controller plan --drain` for this cluster.
    fn plan_drain(&self) -> Result<Value> {
        let kubeconfig = self.plane.kubeconfig();
        let arguments =
            [Path::new("--kubeconfig"), &kubeconfig, Path::new("--drain"), Path::new(DRAINED_HOST)];
        let plan = run_plan(&arguments)?;
        ensure!(plan["drain"]["isKnown"] == true, "plan --drain: unknown host: {}", plan["drain"]);
        Ok(plan)
    }

    /// Sets the condition LiveMigratable of VMs to False, as virt-handler does for a disk that only one host can
    /// access.
    fn set_not_migratable(&self, vms: &[Vm]) -> Result<()> {
        let kubeconfig = self.virt_controller.instance_kubeconfig(&self.plane);
        let write = |vm: &Vm| -> Result<()> {
            let (name, namespace) = (vm.name.as_str(), vm.namespace.as_str());
            let mut instance = self.plane.get_json(&["vmi", name, "-n", namespace])?;
            let conditions = instance["status"]["conditions"].as_array().cloned();
            let mut conditions = conditions.unwrap_or_default();
            conditions.retain(|one| one["type"] != "LiveMigratable");
            let now = Timestamp::now();
            let now = Timestamp::from_second(now.as_second()).unwrap_or(now).to_string();
            conditions.push(json!({
                "type": "LiveMigratable", "status": "False", "reason": "DisksNotLiveMigratable",
                "message": format!("cannot migrate VMI: PVC {name} is not shared"),
                "lastProbeTime": null, "lastTransitionTime": now,
            }));
            instance["status"]["conditions"] = conditions.into();
            // A merge patch would drop the fields with the value null from the list, but virt-controller compares these
            // fields.
            let replace = ["replace", "--validate=false", "-f", "-"];
            self.plane.kubectl_with(&kubeconfig, &replace, &instance.to_string()).map(drop)
        };
        vms.iter().try_for_each(|vm| {
            let what = format!("{} is not migratable", vm.name);
            // Another program may write the instance at the same time, so a conflict is retried.
            self.screen.wait_until(&what, EMULATION_TIMEOUT, || Ok(write(vm).ok()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plan_and_status_are_rendered_in_one_line() {
        let plan = json!({"drain": {
            "moved": [{"vm": "cluster-shop/web-1", "host": "rack1-33"}],
            "replaced": [{"vm": "cluster-shop/web-2", "host": "rack1-34", "reason": "NotMigratable"}],
            "stuck": [{"reason": "NoHostFits", "vm": "cluster-bank/db-1"}],
        }});
        assert_eq!(
            render_plan(&plan),
            "2 VMs fit on other hosts, 1 do not; cluster-shop/web-1 fits on rack1-33; \
             cluster-shop/web-2 is replaced on rack1-34: NotMigratable; NoHostFits"
        );
        let record = json!({"reason": "BeingRemoved", "message": "the machine is being drained"});
        let rendered = render_evacuation_status(&record.to_string());
        assert_eq!(rendered, "BeingRemoved: the machine is being drained");
    }
}
