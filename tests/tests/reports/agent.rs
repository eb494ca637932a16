//! Agent's report of a recorded host: the agent's own code reads checkpoints and PodResources answers in the
//! kubelet's formats, and reports them.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_agent::report;
use berth_api::infra_node::{HugepagePool, Zone, ZoneDistance};
use berth_api::{Bytes, CpuSet, InfraNode, PageSize};
use berth_host_facts::HostFacts;
use berth_host_facts::kubelet::KubeletConfig;
use berth_host_facts::kubelet::podresources::{
    self, ContainerDevices, ContainerResources, NumaNode, PodResources, PodResourcesList,
    TopologyInfo,
};
use berth_host_facts::pod_allocations::PodAllocations;
use berth_host_facts::topology::{LogicalCpu, Topology};
use serde_json::{Value, json};

use super::case::{
    Case, Container, ContainerAllocation, KubeletState, Pod, ResourceAmounts, ZoneCount,
};

/// Resources of a running pod, as the kubelet stores them.
pub(crate) struct RunningPod {
    pub(crate) pod: Pod,
    pub(crate) allocations: Vec<ContainerAllocation>,
}

impl RunningPod {
    /// Returns true if these resources were allocated to a plain init container.
    pub(crate) fn is_plain_init(&self, allocation: &ContainerAllocation) -> bool {
        let mut inits = self.pod.init_containers.iter().filter(|one| one.is_plain_init());
        inits.any(|one| one.name == allocation.name)
    }

    /// Returns true if a plain init container has devices that no later container has taken over. These devices stay
    /// allocated to the pod, but the kubelet does not list them.
    pub(crate) fn has_hidden_devices(&self) -> bool {
        let sums = |selected: &dyn Fn(&ContainerAllocation) -> bool| {
            let mut sums: BTreeMap<(&str, Option<u32>), u32> = BTreeMap::new();
            for one in self
                .allocations
                .iter()
                .filter(|allocation| selected(allocation))
                .flat_map(|allocation| &allocation.devices)
            {
                let near = one.per_numa_node.iter().map(|n| (Some(n.numa_node_id), n.count));
                for (zone, count) in near.chain([(None, one.without_numa_node)]) {
                    *sums.entry((&one.resource_name, zone)).or_default() += count;
                }
            }
            sums
        };
        // Sidecars do not count: a sidecar that starts before the init containers takes over none of their devices.
        let taken_over =
            sums(&|allocation| self.pod.containers.iter().any(|one| one.name == allocation.name));
        let mut inits = sums(&|allocation| self.is_plain_init(allocation)).into_iter();
        inits.any(|(key, count)| count > taken_over.get(&key).copied().unwrap_or_default())
    }
}

/// Returns the facts of the host without pods.
pub(crate) fn host_facts(case: &Case) -> HostFacts {
    let mut topology = Topology::default();
    topology.are_core_ids_known = true;
    for zone in &case.host.numa_nodes {
        for core in &zone.cores {
            let siblings: Arc<CpuSet> = Arc::new(core.iter().copied().collect());
            for cpu in core {
                topology.online.insert(*cpu);
                let known = LogicalCpu {
                    socket: Some(zone.socket_id),
                    thread_siblings: Arc::clone(&siblings),
                    zone: Some(zone.numa_node_id),
                    ..LogicalCpu::default()
                };
                topology.cpus.insert(*cpu, known);
            }
        }
    }
    let from = &case.kubelet_configuration;
    let to_reserved = |amounts: &ResourceAmounts| {
        let all = [
            ("memory", amounts.memory_bytes),
            ("hugepages-2Mi", amounts.hugepages_2mi),
            ("hugepages-1Gi", amounts.hugepages_1gi),
        ];
        let all = all.into_iter().filter(|(_, bytes)| *bytes > 0);
        all.map(|(name, bytes)| (name.to_owned(), Bytes(bytes))).collect::<BTreeMap<_, _>>()
    };
    let mut facts = HostFacts {
        name: Some("rack1-a".to_owned()),
        zones: case.host.numa_nodes.iter().map(|zone| self::zone_facts(case, zone)).collect(),
        topology,
        ..HostFacts::default()
    };
    facts.kubelet.config = Some(KubeletConfig {
        cpu_manager_policy: from.cpu_manager_policy.clone(),
        cpu_manager_policy_options: from.cpu_manager_policy_options.clone(),
        topology_manager_policy: from.topology_manager_policy.clone(),
        topology_manager_scope: from.topology_manager_scope.clone(),
        topology_manager_policy_options: from.topology_manager_policy_options.clone(),
        memory_manager_policy: from.memory_manager_policy.clone(),
        reserved_system_cpus: Some(parse_cpus(&from.reserved_system_cpus)),
        reserved_memory: from
            .reserved_memory
            .iter()
            .map(|entry| (entry.numa_node, to_reserved(&entry.amounts)))
            .collect(),
        ..KubeletConfig::default()
    });
    facts
}

fn zone_facts(case: &Case, zone: &super::case::Zone) -> Zone {
    let pool = |size: PageSize, bytes: u64| HugepagePool {
        size,
        total: bytes / size.bytes(),
        free: None,
        surplus: None,
        reserved: None,
    };
    let all = case.host.numa_nodes.iter().map(|other| other.numa_node_id);
    let distances = all.zip(&zone.distances);
    Zone {
        id: zone.numa_node_id,
        cpus: Some(zone.cores.iter().flatten().copied().collect()),
        memory: Some(Bytes(zone.memory_bytes)),
        hugepages: vec![
            pool(PageSize::MIB_2, zone.hugepages_2mi),
            pool(PageSize::GIB_1, zone.hugepages_1gi),
        ],
        distances: distances
            .map(|(zone, distance)| ZoneDistance { zone, distance: *distance })
            .collect(),
        ..Zone::default()
    }
}

/// Returns the agent's report for these running pods and this state of the kubelet's managers.
pub(crate) fn report(
    case: &Case,
    facts_without_pods: &HostFacts,
    running: &BTreeMap<String, RunningPod>,
    state: &KubeletState,
) -> InfraNode {
    let mut facts = facts_without_pods.clone();
    let cpu_state = cpu_manager_state(case, running, state).to_string();
    facts.kubelet.cpu_state =
        Some(serde_json::from_str(&cpu_state).expect("the checkpoint is valid"));
    if case.kubelet_configuration.memory_manager_policy == "Static" {
        let memory_state = memory_manager_state(case, running, state).to_string();
        facts.kubelet.memory_state =
            Some(serde_json::from_str(&memory_state).expect("the checkpoint is valid"));
    }
    facts.pod_allocations = PodAllocations {
        pod_resources: Some(list_pod_resources(case, running)),
        pod_names: running
            .keys()
            .map(|uid| (uid.clone(), ("default".to_owned(), pod_name(uid))))
            .collect(),
        hugepage_limits: running
            .iter()
            .map(|(uid, one)| (uid.clone(), cgroup_hugepage_limits(&one.pod)))
            .collect(),
        are_control_groups_visible: true,
    };
    // The InfraNode is parsed as the API server returns it.
    serde_json::from_value(json!(report::report(&facts))).expect("the report is a valid InfraNode")
}

fn pod_name(uid: &str) -> String {
    format!("virt-launcher-{uid}")
}

fn cpu_manager_state(
    case: &Case,
    running: &BTreeMap<String, RunningPod>,
    state: &KubeletState,
) -> Value {
    let policy = &case.kubelet_configuration.cpu_manager_policy;
    let mut entries: BTreeMap<&str, BTreeMap<&str, &str>> = BTreeMap::new();
    for (uid, one) in running {
        for allocation in
            one.allocations.iter().filter(|allocation| !allocation.exclusive_cpus.is_empty())
        {
            entries.entry(uid).or_default().insert(&allocation.name, &allocation.exclusive_cpus);
        }
    }
    let shared = state.default_cpu_set.as_deref().unwrap_or_default();
    json!({"policyName": policy, "defaultCpuSet": shared, "entries": entries, "checksum": 1})
}

fn memory_manager_state(
    case: &Case,
    running: &BTreeMap<String, RunningPod>,
    state: &KubeletState,
) -> Value {
    let mut entries: BTreeMap<&str, BTreeMap<&str, Vec<Value>>> = BTreeMap::new();
    for (uid, one) in running {
        for allocation in
            one.allocations.iter().filter(|allocation| !allocation.memory_blocks.is_empty())
        {
            let blocks = allocation.memory_blocks.iter().map(|block| {
                json!({"numaAffinity": block.numa_nodes, "type": block.kind, "size": block.size_bytes})
            });
            entries.entry(uid).or_default().insert(&allocation.name, blocks.collect());
        }
    }
    let mut zones = BTreeMap::new();
    for (now, before) in state.memory.iter().zip(&case.state_initial.memory) {
        let tables = now.free_bytes().into_iter().zip(before.free_bytes()).map(
            |((kind, free), (_, all))| {
                let table = json!({"total": all, "systemReserved": 0, "allocatable": all,
                "reserved": all.saturating_sub(free), "free": free});
                (kind, table)
            },
        );
        let tables: BTreeMap<&str, Value> = tables.collect();
        zones.insert(
            now.numa_node_id,
            json!({"numberOfAssignments": now.number_of_assignments, "memoryMap": tables, "cells": now.cells}),
        );
    }
    json!({"policyName": "Static", "machineState": zones, "entries": entries, "checksum": 1})
}

/// Returns the answers to `List` and `GetAllocatableResources`, with an entry for each device.
fn list_pod_resources(case: &Case, running: &BTreeMap<String, RunningPod>) -> PodResourcesList {
    let entries = |resource: &str, near: &[ZoneCount], without: u32| {
        let near = near.iter().map(|one| (Some(one.numa_node_id), one.count));
        let mut all = Vec::new();
        for (zone, count) in near.chain([(None, without)]) {
            let topology = zone.map(|id| TopologyInfo { nodes: vec![NumaNode { id: id.into() }] });
            all.extend((0..count).map(|number| ContainerDevices {
                resource_name: resource.to_owned(),
                device_ids: vec![format!("{zone:?}-{number}")],
                topology: topology.clone(),
            }));
        }
        all
    };
    let pools = case.host.device_pools.iter().flat_map(|pool| {
        entries(&pool.resource_name, &pool.devices_per_numa_node, pool.devices_without_numa_node)
    });
    let container = |allocation: &ContainerAllocation| ContainerResources {
        name: allocation.name.clone(),
        cpu_ids: parse_cpus(&allocation.exclusive_cpus).iter().map(Into::into).collect(),
        devices: allocation
            .devices
            .iter()
            .flat_map(|one| entries(&one.resource_name, &one.per_numa_node, one.without_numa_node))
            .collect(),
        ..ContainerResources::default()
    };
    let pods = running.iter().map(|(uid, one)| PodResources {
        name: pod_name(uid),
        namespace: "default".to_owned(),
        // `List` of pkg/kubelet/apis/podresources/server_v1.go leaves plain init containers out.
        containers: one
            .allocations
            .iter()
            .filter(|allocation| !one.is_plain_init(allocation))
            .map(container)
            .collect(),
    });
    PodResourcesList {
        pods: pods.collect(),
        allocatable_cpus: None,
        devices: Some(podresources::DeviceCounts::count_devices(&pools.collect::<Vec<_>>())),
    }
}

/// Returns the huge pages that the pod's control group allows, for any QoS class.
fn cgroup_hugepage_limits(pod: &Pod) -> BTreeMap<PageSize, u64> {
    let sum = |amount: &dyn Fn(&Container) -> u64| {
        let inits = pod.init_containers.iter().map(amount).max().unwrap_or_default();
        pod.containers.iter().map(amount).sum::<u64>().max(inits)
    };
    let all = [
        (PageSize::MIB_2, sum(&|container| container.limits.hugepages_2mi)),
        (PageSize::GIB_1, sum(&|container| container.limits.hugepages_1gi)),
    ];
    let all = all.into_iter().filter(|(_, bytes)| *bytes > 0);
    all.map(|(size, bytes)| (size, bytes / size.bytes())).collect()
}

pub(crate) fn parse_cpus(list: &str) -> CpuSet {
    list.parse().expect("the CPU list is valid")
}
