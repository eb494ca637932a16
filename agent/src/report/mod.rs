//! Converts facts to an InfraNode with its status. The conversion is pure: the same facts yield the
//! same bytes.

mod allocations;
mod api_name;
mod devices;
mod infra_node;
mod links;
pub mod table;
pub mod tree;
mod zones;

pub use infra_node::Report;

use berth_api::infra_node::{AgentStatus, Capabilities, Kubelet, KubeletStart};
use berth_api::{Bytes, CpuSet, InfraNodeStatus};

use berth_host_facts::kubelet::{KubeletConfig, KubeletFacts};
use berth_host_facts::{HostFacts, devices as pci_devices};

/// Name of the InfraNode if the name of the host is unknown.
const UNKNOWN_HOST_NAME: &str = "unknown-host";

/// Returns the host as an InfraNode with its status and an empty spec.
#[must_use]
pub fn report(facts: &HostFacts) -> Report {
    let name = facts.node_name().unwrap_or(UNKNOWN_HOST_NAME);
    let mut status = status(facts);
    status.truncate_to_schema();
    Report::new(name, status)
}

/// Returns the status of an InfraNode with these facts.
#[must_use]
pub fn status(facts: &HostFacts) -> InfraNodeStatus {
    let allocations = allocations::pod_allocations(facts);
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
            sriov: pci_devices::find_physical_functions(&facts.pci),
            gpus: facts.gpus.clone(),
            direct_io: facts.direct_io.clone(),
            kubelet: facts
                .kubelet
                .effective_config()
                .map(|config| kubelet(&facts.kubelet, config, facts.memory.total)),
        },
        zones: zones::zones(facts),
        devices: devices::devices(facts, &allocations),
        allocations,
        unknown: facts.notes.unknown_facts.clone(),
        ..InfraNodeStatus::default()
    }
}

/// Returns the same status as [`status`]; on a host without a kubelet, `reserved` are the CPUs that Berth reserves
/// for the host.
#[must_use]
pub fn status_with_reserved_cpus(facts: &HostFacts, reserved: Option<&CpuSet>) -> InfraNodeStatus {
    let mut status = status(facts);
    if let (Some(reserved), false, None) =
        (reserved, facts.kubelet.is_running, &facts.kubelet.config)
    {
        for zone in &mut status.zones {
            let Some(cpus) = &zone.cpus else { continue };
            zone.reserved_cpus = Some(cpus.intersection(reserved));
            zone.pinnable_cpus = Some(cpus.difference(reserved));
            zone.pinned_cpus = Some(CpuSet::new());
        }
    }
    status
}

fn kubelet(facts: &KubeletFacts, config: &KubeletConfig, memory: Option<Bytes>) -> Kubelet {
    let enabled = |(name, value): (&String, &String)| match value.as_str() {
        "true" => Some(name.clone()),
        "false" => None,
        other => Some(format!("{name}={other}")),
    };
    let known = |field: &str, value: &String| {
        (!config.invalid_fields.contains_key(field)).then(|| value.clone())
    };
    Kubelet {
        cpu_manager_policy: known("cpuManagerPolicy", &config.cpu_manager_policy),
        cpu_manager_policy_options: config
            .cpu_manager_policy_options
            .iter()
            .filter_map(enabled)
            .collect(),
        topology_manager_policy: known("topologyManagerPolicy", &config.topology_manager_policy),
        topology_manager_scope: known("topologyManagerScope", &config.topology_manager_scope),
        topology_manager_policy_options: config
            .topology_manager_policy_options
            .iter()
            .filter_map(enabled)
            .collect(),
        memory_manager_policy: known("memoryManagerPolicy", &config.memory_manager_policy),
        reserved_system_cpus: config.reserved_system_cpus.clone(),
        allocatable_reservation: config.node_reserved_memory(memory),
        started_with: facts.is_running.then(|| {
            let pending = facts.fields_pending_restart();
            KubeletStart {
                current: pending.is_empty(),
                pending_restart: pending.into_iter().map(str::to_owned).collect(),
            }
        }),
    }
}
