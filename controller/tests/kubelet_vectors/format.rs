//! Format of the recorded answers of kubelets.

use std::collections::BTreeMap;

use berth_api::{CpuSet, PageSize};
use berth_kubelet_admission::pod::{Container, Pod, Resources};
use berth_kubelet_admission::{
    CoreSpec, CpuOptions, DevicePool, HostSpec, Kubelet, KubeletHost, ReservedMemory,
    TopologyOptions, ZoneSpec,
};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Case {
    pub(crate) case_id: String,
    kubernetes_version: String,
    host: HostRecord,
    pub(crate) kubelet_configuration: Configuration,
    pub(crate) state_initial: StateRecord,
    pub(crate) events: Vec<Event>,
    pub(crate) memory_manager_restart: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct HostRecord {
    numa_nodes: Vec<ZoneRecord>,
    #[serde(default)]
    device_pools: Vec<PoolRecord>,
    node_allocatable: AllocatableRecord,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ZoneRecord {
    numa_node_id: u32,
    socket_id: u32,
    memory_bytes: u64,
    #[serde(rename = "hugepages2MiBytes")]
    hugepages_2mi: u64,
    #[serde(rename = "hugepages1GiBytes")]
    hugepages_1gi: u64,
    cores: Vec<Vec<u32>>,
    #[serde(default)]
    distances: Vec<u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PoolRecord {
    resource_name: String,
    #[serde(default)]
    devices_per_numa_node: Vec<CountRecord>,
    #[serde(default)]
    devices_without_numa_node: u32,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CountRecord {
    pub(crate) numa_node_id: u32,
    pub(crate) count: u32,
}

#[derive(Deserialize)]
struct AllocatableRecord {
    pods: u64,
    #[serde(flatten)]
    amounts: AmountsRecord,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct AmountsRecord {
    cpu_millis: u64,
    memory_bytes: u64,
    #[serde(rename = "hugepages2MiBytes")]
    hugepages_2mi: Option<u64>,
    #[serde(rename = "hugepages1GiBytes")]
    hugepages_1gi: Option<u64>,
    devices: BTreeMap<String, u64>,
}

impl AmountsRecord {
    fn pages(&self) -> BTreeMap<PageSize, u64> {
        let pages = [(PageSize::MIB_2, self.hugepages_2mi), (PageSize::GIB_1, self.hugepages_1gi)];
        pages.into_iter().filter_map(|(size, bytes)| Some((size, bytes?))).collect()
    }

    fn resources(&self) -> Resources {
        Resources {
            cpu_millis: self.cpu_millis,
            memory: self.memory_bytes,
            hugepages: self.pages(),
            extended: self.devices.clone(),
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Configuration {
    cpu_manager_policy: String,
    cpu_manager_policy_options: BTreeMap<String, String>,
    #[serde(rename = "reservedSystemCPUs")]
    reserved_system_cpus: String,
    memory_manager_policy: String,
    reserved_memory: Vec<ReservationRecord>,
    pub(crate) topology_manager_policy: String,
    pub(crate) topology_manager_scope: String,
    topology_manager_policy_options: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReservationRecord {
    numa_node: u32,
    #[serde(flatten)]
    amounts: AmountsRecord,
}

#[derive(Deserialize)]
#[serde(tag = "event", rename_all = "camelCase")]
pub(crate) enum Event {
    #[serde(rename_all = "camelCase")]
    AdmitPod { pod: PodRecord, outcome: OutcomeRecord, state_after: StateRecord },
    #[serde(rename_all = "camelCase")]
    StartContainers { pod_uid: String, containers: Vec<String>, state_after: StateRecord },
    #[serde(rename_all = "camelCase")]
    RemovePod { pod_uid: String, state_after: StateRecord },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PodRecord {
    uid: String,
    #[serde(default)]
    init_containers: Vec<ContainerRecord>,
    containers: Vec<ContainerRecord>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ContainerRecord {
    name: String,
    restart_policy: Option<String>,
    #[serde(default)]
    requests: AmountsRecord,
    #[serde(default)]
    limits: AmountsRecord,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct OutcomeRecord {
    pub(crate) admitted: bool,
    pub(crate) refused_by: Option<String>,
    pub(crate) reason: Option<String>,
    pub(crate) message: Option<String>,
    #[serde(default)]
    pub(crate) containers: Vec<ContainerAllocation>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ContainerAllocation {
    pub(crate) numa_affinity: Option<Vec<u32>>,
    pub(crate) preferred: bool,
    #[serde(default)]
    pub(crate) exclusive_cpus: String,
    #[serde(default)]
    pub(crate) memory_blocks: Vec<BlockRecord>,
    #[serde(default)]
    pub(crate) devices: Vec<DeviceRecord>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BlockRecord {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) size_bytes: u64,
    pub(crate) numa_nodes: Vec<u32>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DeviceRecord {
    pub(crate) resource_name: String,
    #[serde(default)]
    pub(crate) per_numa_node: Vec<CountRecord>,
    #[serde(default)]
    pub(crate) without_numa_node: u32,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct StateRecord {
    pub(crate) default_cpu_set: Option<String>,
    pub(crate) memory: Vec<MemoryRecord>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MemoryRecord {
    pub(crate) numa_node_id: u32,
    pub(crate) number_of_assignments: u32,
    pub(crate) cells: Vec<u32>,
    pub(crate) free_memory_bytes: u64,
    #[serde(rename = "freeHugepages2MiBytes")]
    pub(crate) free_hugepages_2mi: Option<u64>,
    #[serde(rename = "freeHugepages1GiBytes")]
    pub(crate) free_hugepages_1gi: Option<u64>,
}

impl Case {
    pub(crate) fn kubelet(&self) -> Kubelet {
        let from = &self.kubelet_configuration;
        let reserved = from.reserved_memory.iter().map(|entry| ReservedMemory {
            zone: entry.numa_node,
            memory: entry.amounts.memory_bytes,
            hugepages: entry.amounts.pages(),
        });
        Kubelet {
            version: self.kubernetes_version.parse().expect("the version should be valid"),
            cpu_policy: from.cpu_manager_policy.parse().expect("the policy should be valid"),
            cpu_options: CpuOptions::parse(&from.cpu_manager_policy_options)
                .expect("the options should be valid"),
            reserved_cpus: parse_cpus(&from.reserved_system_cpus),
            memory_policy: from.memory_manager_policy.parse().expect("the policy should be valid"),
            reserved_memory: reserved.collect(),
            topology_policy: from
                .topology_manager_policy
                .parse()
                .expect("the policy should be valid"),
            topology_scope: from.topology_manager_scope.parse().expect("the scope should be valid"),
            topology_options: TopologyOptions::parse(&from.topology_manager_policy_options)
                .expect("the options should be valid"),
        }
    }

    pub(crate) fn host(&self) -> KubeletHost {
        let zones = self.host.numa_nodes.iter().map(|zone| ZoneSpec {
            id: zone.numa_node_id,
            cores: zone
                .cores
                .iter()
                .map(|cpus| CoreSpec { cpus: cpus.clone(), socket: zone.socket_id, cache: None })
                .collect(),
            memory: zone.memory_bytes,
            hugepages: [
                (PageSize::MIB_2, zone.hugepages_2mi),
                (PageSize::GIB_1, zone.hugepages_1gi),
            ]
            .into(),
            distances: zone.distances.clone(),
        });
        let devices = self.host.device_pools.iter().map(|pool| DevicePool {
            name: pool.resource_name.clone(),
            zones: pool.devices_per_numa_node.iter().map(|c| (c.numa_node_id, c.count)).collect(),
            count_without_zone: pool.devices_without_numa_node,
        });
        let spec = HostSpec {
            zones: zones.collect(),
            devices: devices.collect(),
            allocatable: self.host.node_allocatable.amounts.resources(),
            max_pods: self.host.node_allocatable.pods,
        };
        KubeletHost::new(&spec, &self.kubelet())
            .unwrap_or_else(|fault| panic!("{}: {fault}", self.case_id))
    }

    /// Returns the zone of a CPU.
    pub(crate) fn zone_of(&self, cpu: u32) -> u32 {
        let zones = &self.host.numa_nodes;
        let mut with = zones.iter().filter(|zone| zone.cores.iter().flatten().any(|&c| c == cpu));
        with.next().map_or(u32::MAX, |zone| zone.numa_node_id)
    }
}

impl PodRecord {
    pub(crate) fn pod(&self) -> Pod {
        let containers = |from: &[ContainerRecord]| {
            let all = from.iter().map(|container| Container {
                name: container.name.clone(),
                is_sidecar: container.restart_policy.as_deref() == Some("Always"),
                requests: container.requests.resources(),
                limits: container.limits.resources(),
            });
            all.collect()
        };
        Pod {
            uid: self.uid.clone(),
            init_containers: containers(&self.init_containers),
            containers: containers(&self.containers),
            overhead: Resources::default(),
        }
    }
}

pub(crate) fn parse_cpus(list: &str) -> CpuSet {
    list.parse().expect("the CPU list should be valid")
}
