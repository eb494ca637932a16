//! Format of the recorded answers, limited to the fields that the test needs.

use std::collections::BTreeMap;

use serde::Deserialize;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Case {
    pub(crate) case_id: String,
    pub(crate) kubernetes_version: String,
    pub(crate) host: Host,
    pub(crate) kubelet_configuration: KubeletConfiguration,
    pub(crate) state_initial: KubeletState,
    pub(crate) events: Vec<Event>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Host {
    pub(crate) numa_nodes: Vec<Zone>,
    #[serde(default)]
    pub(crate) device_pools: Vec<DevicePool>,
    pub(crate) node_allocatable: Allocatable,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Zone {
    pub(crate) numa_node_id: u32,
    pub(crate) socket_id: u32,
    pub(crate) memory_bytes: u64,
    #[serde(rename = "hugepages2MiBytes")]
    pub(crate) hugepages_2mi: u64,
    #[serde(rename = "hugepages1GiBytes")]
    pub(crate) hugepages_1gi: u64,
    pub(crate) cores: Vec<Vec<u32>>,
    #[serde(default)]
    pub(crate) distances: Vec<u32>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DevicePool {
    pub(crate) resource_name: String,
    #[serde(default)]
    pub(crate) devices_per_numa_node: Vec<ZoneCount>,
    #[serde(default)]
    pub(crate) devices_without_numa_node: u32,
}

#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ZoneCount {
    pub(crate) numa_node_id: u32,
    pub(crate) count: u32,
}

#[derive(Deserialize)]
pub(crate) struct Allocatable {
    pub(crate) pods: u64,
    #[serde(flatten)]
    pub(crate) amounts: ResourceAmounts,
}

#[derive(Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ResourceAmounts {
    pub(crate) cpu_millis: u64,
    pub(crate) memory_bytes: u64,
    #[serde(rename = "hugepages2MiBytes")]
    pub(crate) hugepages_2mi: u64,
    #[serde(rename = "hugepages1GiBytes")]
    pub(crate) hugepages_1gi: u64,
    pub(crate) devices: BTreeMap<String, u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct KubeletConfiguration {
    pub(crate) cpu_manager_policy: String,
    pub(crate) cpu_manager_policy_options: BTreeMap<String, String>,
    #[serde(rename = "reservedSystemCPUs")]
    pub(crate) reserved_system_cpus: String,
    pub(crate) memory_manager_policy: String,
    pub(crate) reserved_memory: Vec<ReservedMemory>,
    pub(crate) topology_manager_policy: String,
    pub(crate) topology_manager_scope: String,
    pub(crate) topology_manager_policy_options: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ReservedMemory {
    pub(crate) numa_node: u32,
    #[serde(flatten)]
    pub(crate) amounts: ResourceAmounts,
}

#[derive(Deserialize)]
#[serde(tag = "event", rename_all = "camelCase")]
pub(crate) enum Event {
    #[serde(rename_all = "camelCase")]
    AdmitPod { pod: Pod, outcome: AdmissionOutcome, state_after: KubeletState },
    #[serde(rename_all = "camelCase")]
    StartContainers { pod_uid: String, containers: Vec<String>, state_after: KubeletState },
    #[serde(rename_all = "camelCase")]
    RemovePod { pod_uid: String, state_after: KubeletState },
}

#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Pod {
    pub(crate) uid: String,
    #[serde(default)]
    pub(crate) init_containers: Vec<Container>,
    pub(crate) containers: Vec<Container>,
}

#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Container {
    pub(crate) name: String,
    pub(crate) restart_policy: Option<String>,
    #[serde(default)]
    pub(crate) requests: ResourceAmounts,
    #[serde(default)]
    pub(crate) limits: ResourceAmounts,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AdmissionOutcome {
    pub(crate) admitted: bool,
    pub(crate) reason: Option<String>,
    pub(crate) message: Option<String>,
    #[serde(default)]
    pub(crate) containers: Vec<ContainerAllocation>,
}

/// Resources that the kubelet allocated to a container.
#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ContainerAllocation {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) exclusive_cpus: String,
    #[serde(default)]
    pub(crate) memory_blocks: Vec<MemoryBlock>,
    #[serde(default)]
    pub(crate) devices: Vec<Devices>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MemoryBlock {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) size_bytes: u64,
    pub(crate) numa_nodes: Vec<u32>,
}

#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Devices {
    pub(crate) resource_name: String,
    #[serde(default)]
    pub(crate) per_numa_node: Vec<ZoneCount>,
    #[serde(default)]
    pub(crate) without_numa_node: u32,
}

#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct KubeletState {
    #[serde(default)]
    pub(crate) default_cpu_set: Option<String>,
    #[serde(default)]
    pub(crate) memory: Vec<ZoneMemory>,
}

#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ZoneMemory {
    pub(crate) numa_node_id: u32,
    pub(crate) number_of_assignments: u64,
    pub(crate) cells: Vec<u32>,
    pub(crate) free_memory_bytes: u64,
    #[serde(rename = "freeHugepages2MiBytes", default)]
    pub(crate) free_2mi: u64,
    #[serde(rename = "freeHugepages1GiBytes", default)]
    pub(crate) free_1gi: u64,
}

impl Container {
    /// Returns true if the init container ends before the containers of the pod start.
    pub(crate) fn is_plain_init(&self) -> bool {
        self.restart_policy.as_deref() != Some("Always")
    }
}

impl ZoneMemory {
    /// Returns the kubelet's name of each memory resource, and its free bytes.
    pub(crate) const fn free_bytes(&self) -> [(&'static str, u64); 3] {
        [
            ("memory", self.free_memory_bytes),
            ("hugepages-2Mi", self.free_2mi),
            ("hugepages-1Gi", self.free_1gi),
        ]
    }
}
