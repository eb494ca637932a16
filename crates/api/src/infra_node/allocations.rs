//! Resources that the kubelet has allocated to pods.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Bytes, CpuSet, PageSize};

/// Resources that the kubelet has allocated to one pod.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Allocation {
    /// `metadata.uid` of the pod.
    #[serde(rename = "podUID")]
    pub pod_uid: String,
    /// Namespace of the pod, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Name of the pod, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// True if the pod has a control group. False if the kubelet has not created the control group yet, or has removed
    /// it after the containers ended. Absent if this is unknown: no control group was found, but the kubelet does not
    /// run or was started less than a minute ago, or the folder of the pods' control groups does not exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub has_control_group: Option<bool>,
    /// Exclusive CPUs of the pod and its containers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<CpuSet>,
    /// Zones of the pod's CPUs and memory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub zones: Vec<u32>,
    /// Huge pages guaranteed to the pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hugepages: Vec<AllocatedHugepages>,
    /// Memory that the Memory Manager guarantees to the pod, excluding huge pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Bytes>,
    /// Devices of device plugins, as the kubelet's PodResources API lists them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<AllocatedDevices>,
    /// Resources of each container, with their zones. If the list is empty, only the sums above are reported: no
    /// container has resources with a zone, the pod has too many containers for this list, or the agent is older than
    /// this field.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub containers: Vec<AllocatedContainer>,
}

/// Resources that the kubelet has allocated to one container.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct AllocatedContainer {
    /// Name of the container; empty for resources of the pod as a whole.
    #[schemars(length(max = 63))]
    pub name: String,
    /// Exclusive CPUs of the container.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<CpuSet>,
    /// Memory blocks of the container, as in the Memory Manager's checkpoint.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub memory: Vec<AllocatedMemory>,
    /// Devices of the container by zone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub devices: Vec<AllocatedZoneDevices>,
}

/// Memory of one kind that the Memory Manager has allocated from a set of zones.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct AllocatedMemory {
    /// Size of the huge pages; absent for memory that is not in huge pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_size: Option<PageSize>,
    /// Size in bytes. If later containers reuse the memory of an init container, the size of the init container's block
    /// is reduced accordingly, down to 0.
    pub size: Bytes,
    /// Zones that together provide the memory.
    #[schemars(length(max = 64))]
    pub zones: Vec<u32>,
}

/// Devices of one resource and zone that are allocated to a container.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct AllocatedZoneDevices {
    /// Name of the resource, such as `intel.com/sriov_vf`.
    pub resource: String,
    /// Zone of the devices; absent for devices without a zone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<u32>,
    /// Number of devices.
    pub count: u32,
}

/// Devices of one resource and zone.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ZoneDevices {
    /// Name of the resource, such as `intel.com/sriov_vf`.
    #[schemars(length(max = 317))]
    pub resource: String,
    /// Zone of the devices; absent for devices without a zone, such as `/dev/kvm`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<u32>,
    /// Number of healthy devices, allocated or not.
    pub total: u32,
    /// Number of healthy devices that are not allocated to a container.
    pub free: u32,
}

/// Devices of one resource that are allocated to a pod.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct AllocatedDevices {
    /// Name of the resource, such as `devices.kubevirt.io/kvm`.
    pub resource: String,
    /// Number of devices.
    pub count: u32,
}

/// Huge pages of one size that are guaranteed to a pod.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct AllocatedHugepages {
    /// Page size.
    pub size: PageSize,
    /// Number of pages.
    pub count: u64,
}
