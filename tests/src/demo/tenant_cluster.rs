//! API server of one tenant, with a controller manager, a scheduler, and a workload with a PodDisruptionBudget. No
//! guests run, so the kubelets of the tenant's machines are simulated ([`MachineNodes`], [`Kubelets`]).

#![expect(clippy::disallowed_methods, reason = "the demo runs programs and reads its own files")]

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::machine_nodes::MachineNodes;
use super::screen::Screen;
use super::{Demo, EMULATION_TIMEOUT, observe};
use crate::cluster::{ControlPlane, ControlPlaneOptions, Version, condition, spread_workload};
use crate::simulated::Kubelets;

/// Tenant with an API server.
pub(super) const TENANT: &str = "shop";
/// Namespace of the tenant's machines.
pub(super) const TENANT_NAMESPACE: &str = "cluster-shop";
/// Number of pods of the tenant's workload.
pub(super) const PODS: usize = 6;
/// Name of the tenant's Deployment and of its PodDisruptionBudget.
pub(super) const WORKLOAD: &str = "shop";
/// Namespace of the tenant's workload.
const WORKLOAD_NAMESPACE: &str = "default";

/// Running control plane of the tenant, stopped on drop.
#[derive(Debug)]
pub(super) struct TenantPlane {
    // On drop, the parts are stopped in the order of the fields.
    _nodes: MachineNodes,
    kubelets: Kubelets,
    plane: ControlPlane,
}

impl TenantPlane {
    fn start(infra: &ControlPlane) -> Result<Self> {
        let plane = ControlPlane::start(ControlPlaneOptions {
            has_controllers: true,
            // With this option, the controller manager does not mark Nodes without a kubelet as not ready.
            has_kubevirt: true,
            ..ControlPlaneOptions::default()
        })?;
        let nodes =
            MachineNodes::start(&infra.kubeconfig(), &plane.kubeconfig(), TENANT_NAMESPACE)?;
        let kubelets = Kubelets::start(&plane.kubeconfig())?;
        Ok(Self { _nodes: nodes, kubelets, plane })
    }

    /// Grants Berth its permissions in the tenant's cluster, and creates the Secret with Berth's kubeconfig for this
    /// cluster.
    fn connect(&self, infra: &ControlPlane) -> Result<()> {
        let program = crate::program("berth-controller");
        let mut render = Command::new(&program);
        let output = render.args(["render", "--tenant-rbac", "--storage-classes"]).output();
        let output = output.with_context(|| program.display().to_string())?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "render --tenant-rbac: {}", stderr.trim());
        self.plane.apply(&String::from_utf8(output.stdout)?)?;
        let token = self.plane.create_token_in("kube-system", "berth-controller")?;
        // Berth's controllers use this kubeconfig in pods on the hosts.
        let kubeconfig = self.plane.write_kubeconfig("berth", &token, true)?;
        let kubeconfig = std::fs::read_to_string(kubeconfig)?;
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "kubeconfig", "namespace": TENANT_NAMESPACE},
            "stringData": {"kubeconfig": kubeconfig},
        });
        infra.apply(&secret.to_string())?;
        let patch = r#"{"spec":{"kubeconfigSecretRef":{"name":"kubeconfig"}}}"#;
        infra.kubectl(&["patch", "tenantcluster", TENANT, "--type=merge", "-p", patch]).map(drop)
    }

    /// Starts pods on all machines, with a PodDisruptionBudget that permits no eviction.
    fn start_workload(&self, screen: &Screen, machines: usize) -> Result<()> {
        let deployment = spread_workload(WORKLOAD, WORKLOAD_NAMESPACE, PODS);
        self.plane.apply(&deployment.to_string())?;
        self.set_budget(screen, PODS)?;
        screen.wait_until("the tenant's pods run on all machines", EMULATION_TIMEOUT, || {
            let nodes = self.nodes_of_pods()?;
            let is_spread = nodes.iter().collect::<BTreeSet<_>>().len() == machines;
            let is_counted = self.budget()?["status"]["currentHealthy"] == json!(PODS);
            Ok((nodes.len() == PODS && is_spread && is_counted).then_some(()))
        })
    }

    /// Sets `minAvailable` of the PodDisruptionBudget, and waits until the tenant's controllers have updated the
    /// budget.
    pub(super) fn set_budget(&self, screen: &Screen, minimum: usize) -> Result<()> {
        let budget = budget(&self.plane, WORKLOAD_NAMESPACE, WORKLOAD, minimum, "app", WORKLOAD);
        self.plane.apply(&budget.to_string())?;
        screen.wait_until("the tenant's budget is observed", EMULATION_TIMEOUT, || {
            let budget = self.budget()?;
            let is_observed =
                budget["status"]["observedGeneration"] == budget["metadata"]["generation"];
            let desired = &budget["status"]["desiredHealthy"];
            Ok((is_observed && *desired == json!(minimum)).then_some(()))
        })
    }

    fn budget(&self) -> Result<Value> {
        self.plane.get_json(&["pdb", WORKLOAD, "-n", WORKLOAD_NAMESPACE])
    }

    /// Returns the Node of each pod of the workload that runs.
    pub(super) fn nodes_of_pods(&self) -> Result<Vec<String>> {
        let pods = observe::list_items(&self.plane, &["pods", "-n", WORKLOAD_NAMESPACE])?;
        let running = pods.iter().filter(|pod| pod["status"]["phase"] == "Running");
        Ok(running.filter_map(|pod| pod["spec"]["nodeName"].as_str().map(str::to_owned)).collect())
    }

    /// Returns the status of a Node as kubectl prints it; empty if the Node does not exist.
    pub(super) fn node_status(&self, name: &str) -> Result<String> {
        let nodes = observe::list_items(&self.plane, &["nodes"])?;
        let Some(node) = nodes.iter().find(|node| node["metadata"]["name"] == name) else {
            return Ok(String::new());
        };
        let is_ready = condition(node, "Ready")["status"] == "True";
        let ready = if is_ready { "Ready" } else { "NotReady" };
        let is_cordoned = node["spec"]["unschedulable"] == true;
        Ok(format!("{ready}{}", if is_cordoned { ",SchedulingDisabled" } else { "" }))
    }

    /// Returns the simulated kubelets, which record the smallest number of healthy pods.
    pub(super) const fn kubelets(&self) -> &Kubelets {
        &self.kubelets
    }
}

/// Returns a PodDisruptionBudget for the pods with a label.
pub(super) fn budget(
    plane: &ControlPlane,
    namespace: &str,
    name: &str,
    minimum: usize,
    label: &str,
    value: &str,
) -> Value {
    let version = if plane.version() < Version(1, 21) { "policy/v1beta1" } else { "policy/v1" };
    json!({
        "apiVersion": version, "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"minAvailable": minimum, "selector": {"matchLabels": {label: value}}},
    })
}

impl Demo<'_> {
    /// Starts the API server of a tenant, and connects Berth to it. From then on, a machine of the tenant is ready when
    /// its Node is Ready.
    pub(super) fn connect_tenant(&mut self) -> Result<String> {
        let (began, screen) = (Instant::now(), self.screen);
        let tenant = TenantPlane::start(&self.plane)?;
        let machines = screen.wait_until(
            "each machine of the tenant has a Node",
            EMULATION_TIMEOUT,
            || {
                let machines = ["virtualmachines", "-n", TENANT_NAMESPACE];
                let machines = observe::list_items(&self.plane, &machines)?.len();
                let nodes = observe::list_items(&tenant.plane, &["nodes"])?.len();
                Ok((machines > 0 && nodes == machines).then_some(machines))
            },
        )?;
        tenant.connect(&self.plane)?;
        let mut seen = Value::Null;
        let connected = screen.wait_until("Berth is connected", EMULATION_TIMEOUT, || {
            let object = self.plane.get_json(&["tenantcluster", TENANT])?;
            seen = condition(&object, "TenantAccessReady").clone();
            Ok((seen["status"] == "True").then_some(()))
        });
        connected.with_context(|| format!("TenantCluster {TENANT}: {seen}"))?;
        tenant.start_workload(screen, machines)?;
        self.tenant = Some(tenant);
        self.wait_until_tenants_are_ready()?;
        Ok(format!(
            "Berth is connected, and {PODS} pods run on {machines} machines, after {} s",
            began.elapsed().as_secs()
        ))
    }
}
