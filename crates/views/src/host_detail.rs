//! Everything about one host.

use std::net::IpAddr;

use berth_api::infra_node::{
    ChangeResult, ChangeStatus, KvmState, Neighbor, NetworkScenario, NetworkStatus, TrunkState,
    UnknownFact,
};
use berth_api::{CpuSet, InfraNode, VlanRanges};
use serde::Serialize;

use crate::hosts::{self, HostRow};
use crate::issue::{ConditionRow, condition_rows};
use crate::kind::Kind;
use crate::machines::{MachineIndex, MachineState, tenant_of_namespace};
use crate::objects::ObjectName;
use crate::snapshot::Snapshot;

/// Kinds that the details of a host need.
pub const KINDS: [Kind; 5] = [
    Kind::InfraNode,
    Kind::Node,
    Kind::VirtualMachine,
    Kind::VirtualMachineInstance,
    Kind::LauncherPod,
];

/// A host with its hardware, conditions, networks and VMs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HostDetail {
    #[serde(flatten)]
    pub row: HostRow,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// Keys of the taints of the Node that repel pods.
    pub taints: Vec<String>,
    pub hardware: HostHardware,
    pub kubelet: HostKubelet,
    /// Version of the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    pub conditions: Vec<ConditionRow>,
    pub networks: Vec<HostNetworkRow>,
    /// Switch ports that announce themselves with LLDP.
    pub neighbors: Vec<Neighbor>,
    /// Last changes of the host that were not completed.
    pub changes: Vec<ChangeStatus>,
    /// Facts that the agent could not determine.
    pub unknown: Vec<UnknownFact>,
    pub machines: Vec<HostMachineRow>,
}

/// Hardware and operating system of a host. Absent values are unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HostHardware {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub product: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub os: Option<String>,
    #[serde(rename = "cpuModel", skip_serializing_if = "Option::is_none")]
    pub cpu_model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sockets: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cores: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kvm: Option<KvmState>,
}

/// Version and policies of the kubelet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HostKubelet {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_manager_policy: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology_manager_policy: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_manager_policy: Option<String>,
}

/// A host network on one host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HostNetworkRow {
    pub name: String,
    /// `None` if the spec of the InfraNode does not have the network any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scenario: Option<NetworkScenario>,
    /// Numbers of tenant networks.
    pub ready: u32,
    pub pending: u32,
    pub failed: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trunk: Option<TrunkState>,
    /// VLANs in which probes of other hosts are missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing_vlans: Option<VlanRanges>,
    /// Hosts whose probes are missing.
    pub missing_from: Vec<String>,
    /// Tenant networks that are not ready: name and message.
    pub not_ready: Vec<NotReadyNetwork>,
}

/// A tenant network that is not ready on a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NotReadyNetwork {
    pub name: String,
    pub message: String,
}

/// A VM on a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HostMachineRow {
    #[serde(flatten)]
    pub name: ObjectName,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    pub state: MachineState,
    /// Exclusive CPUs of the VM, as a CPU list; empty if it has none.
    pub cpus: String,
    /// Zones of its CPUs and memory.
    pub zones: Vec<u32>,
}

/// Returns the details of a host; `None` if neither an InfraNode nor a Node has this name.
#[must_use]
pub fn detail(snapshot: &Snapshot, name: &str) -> Option<HostDetail> {
    let row = hosts::find(snapshot, name)?;
    let infra: Option<&InfraNode> = snapshot.infra_nodes.get(name).map(AsRef::as_ref);
    let node = snapshot.nodes.get(name);
    let status = infra.and_then(|infra| infra.status.as_ref());
    let capabilities = status.map(|status| &status.capabilities);
    let kubelet = capabilities.and_then(|all| all.kubelet.as_ref());
    let hardware = capabilities.map(|all| HostHardware {
        product: all.machine.product.clone(),
        kernel: all.machine.kernel.clone(),
        os: all.machine.os.clone(),
        cpu_model: all.cpu.model.clone(),
        sockets: all.cpu.sockets,
        cores: all.cpu.cores,
        threads: all.cpu.threads,
        kvm: all.kvm.state,
    });
    Some(HostDetail {
        row,
        address: node.and_then(|node| node.address),
        taints: node.map(|node| node.taints.clone()).unwrap_or_default(),
        hardware: hardware.unwrap_or_default(),
        kubelet: HostKubelet {
            version: node.and_then(|node| node.kubelet_version.clone()),
            cpu_manager_policy: kubelet.and_then(|all| all.cpu_manager_policy.clone()),
            topology_manager_policy: kubelet.and_then(|all| all.topology_manager_policy.clone()),
            memory_manager_policy: kubelet.and_then(|all| all.memory_manager_policy.clone()),
        },
        agent: status.and_then(|status| Some(status.agent.as_ref()?.version.clone())),
        conditions: status.map(|status| condition_rows(&status.conditions)).unwrap_or_default(),
        networks: infra.map(networks).unwrap_or_default(),
        neighbors: status.map(|status| status.neighbors.clone()).unwrap_or_default(),
        changes: status.map(|status| unfinished_changes(&status.changes)).unwrap_or_default(),
        unknown: status.map(|status| status.unknown.clone()).unwrap_or_default(),
        machines: machines(snapshot, name, infra),
    })
}

fn unfinished_changes(changes: &[ChangeStatus]) -> Vec<ChangeStatus> {
    changes.iter().filter(|one| one.result != ChangeResult::Done).cloned().collect()
}

fn networks(infra: &InfraNode) -> Vec<HostNetworkRow> {
    let reported = infra.status.iter().flat_map(|status| &status.networks);
    let scenario = |name: &str| {
        let found = infra.spec.networks.iter().find(|network| network.name == name);
        found.map(|network| network.scenario)
    };
    reported.map(|network| network_row(network, scenario(&network.name))).collect()
}

fn network_row(network: &NetworkStatus, scenario: Option<NetworkScenario>) -> HostNetworkRow {
    let trunk = network.trunk.as_ref();
    let not_ready = network.not_ready.iter().map(|one| NotReadyNetwork {
        name: one.tenant.clone(),
        message: one.message.clone().unwrap_or_default(),
    });
    HostNetworkRow {
        name: network.name.clone(),
        scenario,
        ready: network.ready,
        pending: network.pending,
        failed: network.failed,
        mtu: network.mtu,
        trunk: trunk.map(|trunk| trunk.state),
        missing_vlans: trunk.and_then(|trunk| trunk.vlans.clone()),
        missing_from: trunk.map(|trunk| trunk.from.clone()).unwrap_or_default(),
        not_ready: not_ready.collect(),
    }
}

/// Returns the VMs on a host with the CPUs and zones that the agent reports for their launcher pods.
fn machines(snapshot: &Snapshot, host: &str, infra: Option<&InfraNode>) -> Vec<HostMachineRow> {
    let allocations =
        || infra.iter().flat_map(|infra| &infra.status).flat_map(|one| &one.allocations);
    let index = MachineIndex::new(snapshot);
    let on_host = snapshot.instances.iter();
    let on_host =
        on_host.filter(|(_, one)| one.host.as_deref() == Some(host) && !one.is_terminal());
    let row = |name: &ObjectName| {
        let own = allocations().filter(|allocation| {
            let pod = ObjectName::new(
                allocation.namespace.as_deref().unwrap_or_default(),
                allocation.pod.as_deref().unwrap_or_default(),
            );
            let pod_vm = snapshot.pods.get(&pod).and_then(|pod| pod.vm.as_ref());
            pod.namespace == name.namespace && pod_vm == Some(&name.name)
        });
        let (mut cpus, mut zones) = (CpuSet::default(), Vec::<u32>::new());
        for allocation in own {
            cpus = cpus.union(&allocation.cpus.clone().unwrap_or_default());
            zones.extend(&allocation.zones);
        }
        zones.sort_unstable();
        zones.dedup();
        HostMachineRow {
            tenant: tenant_of_namespace(&name.namespace).map(str::to_owned),
            state: index.state(name),
            cpus: cpus.to_string(),
            zones,
            name: name.clone(),
        }
    };
    on_host.map(|(name, _)| row(name)).collect()
}
