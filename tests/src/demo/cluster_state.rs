//! State of the cluster at the end of the demo, as plain data, and the checks of this state. This module does not
//! access the cluster.

use std::collections::BTreeMap;

use berth_api::{CpuSet, InfraNode, TenantCluster};
use serde_json::Value;

use super::hosts::{DemoHost, HOSTS};
use crate::cluster::condition;

/// VM and its placement.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Vm {
    pub(super) tenant: String,
    pub(super) namespace: String,
    pub(super) name: String,
    /// Scheduler that placed the pod.
    pub(super) scheduler: String,
    /// Launcher pod of the VM.
    pub(super) pod: String,
    /// Uid of the launcher pod.
    pub(super) pod_uid: String,
    /// `status.phase` of the pod, and the reason if there is one.
    pub(super) phase: String,
    /// Host of the pod; empty if the pod has no host.
    pub(super) host: String,
    /// Thousandths of a CPU that the pod requests.
    pub(super) cpu_millis: u64,
    /// True if the VM is to have exclusive CPUs.
    pub(super) is_pinned: bool,
    /// Exclusive CPUs.
    pub(super) cpus: Option<CpuSet>,
    /// NUMA zones of the exclusive CPUs.
    pub(super) zones: Vec<u32>,
    /// Exclusive CPUs in the checkpoint that the kubelet writes.
    pub(super) checkpoint_cpus: Option<CpuSet>,
    /// Allocated huge pages in bytes.
    pub(super) hugepages: u64,
    /// NetworkAttachmentDefinition of the VM's second interface, as `namespace/name`.
    pub(super) network: String,
    /// Address of the VM's second interface.
    pub(super) address: String,
}

/// State of the whole cluster.
#[derive(Debug, Default)]
pub(super) struct ClusterState {
    /// Hosts by name, and their Nodes.
    pub(super) hosts: BTreeMap<String, (InfraNode, Value)>,
    pub(super) tenants: Vec<TenantCluster>,
    /// MachineDeployments.
    pub(super) deployments: Vec<Value>,
    /// VMs, in the order of their addresses.
    pub(super) vms: Vec<Vm>,
    /// Pings: source, destination, and true if there was an answer.
    pub(super) pings: Vec<(String, String, bool)>,
    /// Pods that a kubelet has refused since the start: name and reason.
    pub(super) refused_pods: Vec<String>,
    /// Holder of the Lease of the scheduler `berth-scheduler`, which binds the pods to hosts.
    pub(super) scheduler: String,
    /// Program that creates the launcher pods.
    pub(super) pod_creator: String,
}

/// Reasons with which a kubelet refuses a pod.
const REFUSAL_REASONS: [&str; 4] =
    ["UnexpectedAdmissionError", "TopologyAffinityError", "OutOf", "NodeAffinity"];

/// Returns true if a kubelet refused a pod for this reason.
#[must_use]
pub(super) fn is_refusal(reason: &str) -> bool {
    REFUSAL_REASONS.iter().any(|word| reason.starts_with(word))
}

impl ClusterState {
    /// Returns the tenant of a VM.
    fn tenant(&self, vm: &str) -> &str {
        self.vms.iter().find(|one| one.name == vm).map_or("", |one| one.tenant.as_str())
    }

    /// Returns a description of each failed check; empty if all checks pass.
    #[must_use]
    pub(super) fn find_problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for demo_host in &HOSTS {
            self.check_host(demo_host, &mut problems);
        }
        self.check_tenants(&mut problems);
        for vm in &self.vms {
            self.check_vm(vm, &mut problems);
        }
        self.check_duplicate_cpus(&mut problems);
        for (from, to, is_answered) in &self.pings {
            let is_own = self.tenant(from) == self.tenant(to);
            if is_own && !is_answered {
                problems.push(format!("{from} does not reach {to} of the same tenant"));
            }
            if !is_own && *is_answered {
                problems.push(format!("{from} reaches {to} of another tenant"));
            }
        }
        let pairs = self.vms.len() * self.vms.len().saturating_sub(1);
        if self.pings.len() != pairs {
            problems.push(format!("{} of {pairs} pings were sent", self.pings.len()));
        }
        let refused = self.refused_pods.iter();
        problems.extend(refused.map(|pod| format!("a kubelet refused {pod}")));
        if self.scheduler.is_empty() {
            problems.push("no process holds the Lease kube-system/berth-scheduler".to_owned());
        }
        problems
    }

    fn check_host(&self, demo_host: &DemoHost, problems: &mut Vec<String>) {
        let Some((infra, node)) = self.hosts.get(demo_host.name) else {
            return problems.push(format!("InfraNode {} does not exist", demo_host.name));
        };
        let profile = infra.spec.profile.as_deref().unwrap_or_default();
        if profile != demo_host.purpose {
            problems.push(format!(
                "{}: profile is `{profile}`, not {}",
                demo_host.name, demo_host.purpose
            ));
        }
        let status = infra.status.clone().unwrap_or_default();
        let find_condition = |name: &str| status.conditions.iter().find(|one| one.type_ == name);
        for name in ["Ready", "HostTuned", "TenantNetworksReady"] {
            match find_condition(name) {
                Some(one) if one.status == "True" => {}
                Some(one) => problems
                    .push(format!("{}: {name} is {}: {}", demo_host.name, one.status, one.message)),
                None => problems.push(format!("{}: {name} is missing", demo_host.name)),
            }
        }
        if status.zones.len() != 2 {
            problems.push(format!("{}: {} NUMA zones, not 2", demo_host.name, status.zones.len()));
        }
        if condition(node, "Ready")["status"] != "True" {
            problems.push(format!("Node {} is not Ready", demo_host.name));
        }
    }

    fn check_tenants(&self, problems: &mut Vec<String>) {
        let mut vlans = BTreeMap::new();
        for tenant in &self.tenants {
            let name = tenant.metadata.name.clone().unwrap_or_default();
            let status = tenant.status.clone().unwrap_or_default();
            let ready = status.conditions.iter().find(|one| one.type_ == "Ready");
            if ready.is_none_or(|one| one.status != "True") {
                let message = ready.map(|one| one.message.clone()).unwrap_or_default();
                problems.push(format!("tenant {name} is not Ready: {message}"));
            }
            match status.vlan {
                None => problems.push(format!("tenant {name} has no VLAN")),
                Some(vlan) => {
                    if let Some(other) = vlans.insert(vlan, name.clone()) {
                        problems.push(format!("tenants {other} and {name} share VLAN {vlan}"));
                    }
                }
            }
        }
        if self.tenants.len() != 2 {
            problems.push(format!("{} tenants, not 2", self.tenants.len()));
        }
        for one in &self.deployments {
            let requested = &one["spec"]["replicas"];
            let ready = &one["status"]["readyReplicas"];
            if requested != ready {
                problems.push(format!(
                    "{}: {ready} of {requested} machines are ready",
                    one["metadata"]["name"]
                ));
            }
        }
    }

    fn check_vm(&self, vm: &Vm, problems: &mut Vec<String>) {
        let name = &vm.name;
        if vm.phase != "Running" {
            return problems.push(format!("{name}: the pod is {}", vm.phase));
        }
        if vm.scheduler != "berth-scheduler" {
            problems.push(format!("{name} was placed by {}", vm.scheduler));
        }
        if !vm.is_pinned {
            return;
        }
        match &vm.cpus {
            None => problems.push(format!("{name} has no exclusive CPUs")),
            Some(cpus) if Some(cpus) != vm.checkpoint_cpus.as_ref() => {
                let checkpoint =
                    vm.checkpoint_cpus.as_ref().map(ToString::to_string).unwrap_or_default();
                problems.push(format!(
                    "{name}: the report has CPUs {cpus}, the kubelet's checkpoint has {checkpoint}"
                ));
            }
            Some(_) => {}
        }
        if vm.zones.len() != 1 {
            problems.push(format!("{name} uses zones {:?}, not one zone", vm.zones));
        }
        let ksm_running = self.hosts.get(&vm.host).and_then(|(infra, _)| {
            let ksm = infra.status.as_ref()?.capabilities.memory.ksm.as_ref()?;
            ksm.running
        });
        if ksm_running == Some(true) {
            problems.push(format!("{name} runs on {}, where KSM is running", vm.host));
        }
    }

    /// Checks that no CPU is allocated to two VMs.
    fn check_duplicate_cpus(&self, problems: &mut Vec<String>) {
        let mut owners = BTreeMap::new();
        for vm in &self.vms {
            for cpu in vm.cpus.iter().flat_map(CpuSet::iter) {
                if let Some(other) = owners.insert((&vm.host, cpu), &vm.name) {
                    problems.push(format!(
                        "CPU {cpu} of {} is allocated to {other} and {}",
                        vm.host, vm.name
                    ));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm(name: &str, tenant: &str) -> Vm {
        Vm {
            name: name.to_owned(),
            tenant: tenant.to_owned(),
            phase: "Running".to_owned(),
            scheduler: "berth-scheduler".to_owned(),
            host: "rack1-31".to_owned(),
            ..Vm::default()
        }
    }

    fn has_problem(cluster_state: &ClusterState, words: &str) -> bool {
        cluster_state.find_problems().iter().any(|problem| problem.contains(words))
    }

    #[test]
    fn problems_are_reported() {
        let mut cluster_state = ClusterState {
            vms: vec![vm("db", "bank"), vm("web", "shop")],
            ..ClusterState::default()
        };
        assert!(has_problem(&cluster_state, "rack1-31 does not exist"));
        assert!(has_problem(&cluster_state, "0 tenants"));
        assert!(has_problem(&cluster_state, "0 of 2 pings"));
        assert!(has_problem(&cluster_state, "no process holds"));
        let ping = |from: &str, to: &str, is| (from.to_owned(), to.to_owned(), is);
        cluster_state.pings = vec![ping("db", "web", false), ping("web", "db", true)];
        assert!(
            has_problem(&cluster_state, "web reaches db of another tenant")
                && !has_problem(&cluster_state, "db reaches web")
        );
        assert!(!has_problem(&cluster_state, "pings were sent"));
        cluster_state.vms[1].tenant = "bank".to_owned();
        assert!(
            has_problem(&cluster_state, "db does not reach web")
                && !has_problem(&cluster_state, "web does not reach db")
        );
        cluster_state.refused_pods = vec!["cluster-bank/db: TopologyAffinityError".to_owned()];
        assert!(has_problem(&cluster_state, "refused cluster-bank/db"));
    }

    #[test]
    fn exclusive_cpus_are_checked() {
        let mut cluster_state =
            ClusterState { vms: vec![vm("a", "bank"), vm("b", "bank")], ..ClusterState::default() };
        for vm in &mut cluster_state.vms {
            vm.is_pinned = true;
        }
        assert!(has_problem(&cluster_state, "a has no exclusive CPUs"));
        for vm in &mut cluster_state.vms {
            vm.cpus = "2-3".parse().ok();
            vm.checkpoint_cpus.clone_from(&vm.cpus);
            vm.zones = vec![1];
        }
        assert!(
            has_problem(&cluster_state, "CPU 2 of rack1-31 is allocated to a and b"),
            "{:?}",
            cluster_state.find_problems()
        );
        cluster_state.vms[1].host = "rack1-33".to_owned();
        assert!(!has_problem(&cluster_state, "CPU 2"));
        cluster_state.vms[1].checkpoint_cpus = "1-2".parse().ok();
        assert!(has_problem(&cluster_state, "checkpoint has 1-2"));
        cluster_state.vms[0].zones = vec![0, 1];
        assert!(has_problem(&cluster_state, "not one zone"));
        cluster_state.vms[0].phase = "Failed TopologyAffinityError".to_owned();
        assert!(has_problem(&cluster_state, "a: the pod is Failed"));
        assert!(
            is_refusal("TopologyAffinityError") && is_refusal("OutOfcpu") && !is_refusal("Evicted")
        );
    }
}
