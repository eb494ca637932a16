//! From facts to the InfraNode that says them. Pure: same facts, same bytes.

mod allocations;
mod links;
pub mod table;
pub mod tree;

use berth_api::infra_node::{AgentStatus, Capabilities, Kubelet, Zone};
use berth_api::{CpuSet, InfraNode, InfraNodeSpec, InfraNodeStatus};

use crate::observe::kubelet::{KubeletConfig, KubeletFacts};
use crate::observe::{HostFacts, devices};

/// Name of the InfraNode when the tree does not tell the host's.
const NAMELESS: &str = "unknown-host";

/// The host as an InfraNode with its status and an empty spec.
#[must_use]
pub fn infra_node(facts: &HostFacts) -> InfraNode {
    let name = facts.node_name().unwrap_or(NAMELESS);
    let mut node = InfraNode::new(name, InfraNodeSpec::default());
    node.status = Some(status(facts));
    node
}

/// What `status` of the InfraNode says of these facts.
#[must_use]
pub fn status(facts: &HostFacts) -> InfraNodeStatus {
    InfraNodeStatus {
        agent: Some(AgentStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            boot_id: facts.boot_id.clone(),
        }),
        capabilities: Capabilities {
            machine: facts.machine.clone(),
            cpu: facts.cpu.clone(),
            kvm: facts.kvm.clone(),
            memory: facts.memory.clone(),
            iommu: facts.iommu.clone(),
            cgroup: facts.cgroup.clone(),
            uplinks: links::uplinks(&facts.links),
            links: links::virtual_links(&facts.links),
            nvme: facts.nvme.clone(),
            sriov: devices::physical_functions(&facts.pci),
            gpus: facts.gpus.clone(),
            direct_io: facts.direct_io.clone(),
            kubelet: facts.kubelet.config.as_ref().map(kubelet),
        },
        zones: zones(&facts.zones, &facts.kubelet),
        allocations: allocations::allocations(facts),
        unknown: facts.notes.unknown.clone(),
        ..InfraNodeStatus::default()
    }
}

/// As [`status`], on a host that is shaped: where no kubelet says which CPUs are kept, the reservation does.
#[must_use]
pub fn status_with(facts: &HostFacts, reserved: Option<&CpuSet>) -> InfraNodeStatus {
    let mut status = status(facts);
    if let (Some(reserved), None, None) = (reserved, facts.kubelet.pid, &facts.kubelet.config) {
        for zone in &mut status.zones {
            let Some(cpus) = &zone.cpus else { continue };
            zone.reserved_cpus = Some(cpus.intersection(reserved));
            zone.pinnable_cpus = Some(cpus.difference(reserved));
            zone.pinned_cpus = Some(CpuSet::new());
        }
    }
    status
}

fn kubelet(config: &KubeletConfig) -> Kubelet {
    let on = |(name, value): (&String, &String)| match value.as_str() {
        "true" => Some(name.clone()),
        "false" => None,
        other => Some(format!("{name}={other}")),
    };
    let known =
        |field: &str, value: &String| (!config.invalid.contains_key(field)).then(|| value.clone());
    Kubelet {
        cpu_manager_policy: known("cpuManagerPolicy", &config.cpu_manager_policy),
        cpu_manager_policy_options: config
            .cpu_manager_policy_options
            .iter()
            .filter_map(on)
            .collect(),
        topology_manager_policy: known("topologyManagerPolicy", &config.topology_manager_policy),
        topology_manager_scope: known("topologyManagerScope", &config.topology_manager_scope),
        topology_manager_policy_options: config
            .topology_manager_policy_options
            .iter()
            .filter_map(on)
            .collect(),
        memory_manager_policy: known("memoryManagerPolicy", &config.memory_manager_policy),
        reserved_system_cpus: config.reserved_system_cpus.clone(),
    }
}

/// Adds to every zone what the kubelet keeps, may hand out and has handed out of its CPUs.
///
/// Pinnable are CPUs only under the static policy, and only where it is known by name which CPUs are
/// reserved: with amounts (`kubeReserved`) the kubelet chooses, and its checkpoint does not say which.
fn zones(zones: &[Zone], kubelet: &KubeletFacts) -> Vec<Zone> {
    let config = kubelet.config.as_ref();
    let reserved = config.and_then(|config| config.reserved_system_cpus.as_ref());
    let sound = config.filter(|config| config.invalid.is_empty());
    let policy_is_static = sound.map(|config| config.cpu_manager_policy == "static");
    let pinned = match (policy_is_static, &kubelet.cpu_state) {
        (Some(true), Some(state)) => Some(state.exclusive()),
        (Some(false), _) => Some(CpuSet::new()),
        _ => None,
    };
    zones
        .iter()
        .map(|zone| {
            let cpus = zone.cpus.as_ref();
            let within =
                |set: Option<&CpuSet>| cpus.zip(set).map(|(cpus, set)| cpus.intersection(set));
            let pinnable = match policy_is_static {
                Some(true) => cpus.zip(reserved).map(|(cpus, reserved)| cpus.difference(reserved)),
                Some(false) => cpus.map(|_| CpuSet::new()),
                None => None,
            };
            Zone {
                reserved_cpus: within(reserved),
                pinnable_cpus: pinnable,
                pinned_cpus: within(pinned.as_ref()),
                ..zone.clone()
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_named_reservations_nothing_is_called_pinnable() {
        let zone = Zone { cpus: Some("0-3".parse().unwrap()), ..Zone::default() };
        let facts = |policy: &str, reserved: Option<&str>| KubeletFacts {
            config: Some(KubeletConfig {
                cpu_manager_policy: policy.to_owned(),
                reserved_system_cpus: reserved.map(|set| set.parse().unwrap()),
                ..KubeletConfig::default()
            }),
            ..KubeletFacts::default()
        };
        let pinnable = |facts: &KubeletFacts| {
            zones(std::slice::from_ref(&zone), facts)[0]
                .pinnable_cpus
                .as_ref()
                .map(CpuSet::to_string)
        };
        assert_eq!(pinnable(&facts("static", Some("0-1,9"))).as_deref(), Some("2-3"));
        assert_eq!(pinnable(&facts("static", None)), None);
        assert_eq!(pinnable(&facts("none", Some("0"))).as_deref(), Some(""));
        assert_eq!(pinnable(&KubeletFacts::default()), None);
    }
}
