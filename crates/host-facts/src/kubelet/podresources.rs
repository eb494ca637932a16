//! The kubelet's PodResources API, a gRPC API on a Unix socket that lists the resources of pods.
//!
//! The API identifies pods by name, while the kubelet's checkpoints identify pods by UID; the names of the pods' log
//! folders contain both. The API may list pods that ended long ago, and old kubelets list shared CPUs as exclusive
//! CPUs. Therefore its answers are used only together with checkpoints and control groups.

#[expect(clippy::derive_partial_eq_without_eq, reason = "generated")]
#[rustfmt::skip]
pub mod v1;

use std::collections::{BTreeMap, BTreeSet};

use berth_api::CpuSet;

pub use v1::{
    ContainerDevices, ContainerMemory, ContainerResources, NumaNode, PodResources, TopologyInfo,
};

/// Path of the API's Unix socket, relative to the root.
pub const SOCKET_PATH: &str = "var/lib/kubelet/pod-resources/kubelet.sock";

/// Reason why the PodResources API did not answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PodResourcesError {
    /// The kubelet did not answer within this number of seconds.
    #[error("the kubelet did not answer within {0} s")]
    Timeout(u64),
    /// The call failed with this error message.
    #[error("{0}")]
    CallFailed(String),
}

/// The pods, CPUs and devices in the answers of the PodResources API.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PodResourcesList {
    /// Pods with the resources of their containers.
    pub pods: Vec<PodResources>,
    /// CPUs that the kubelet can allocate exclusively; `None` with kubelets before 1.23, which lack this call.
    pub allocatable_cpus: Option<CpuSet>,
    /// Numbers of healthy devices; `None` with kubelets before 1.23, which lack this call.
    pub devices: Option<DeviceCounts>,
}

/// Numbers of healthy devices of device plugins. Allocated devices are included.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceCounts {
    /// Number of devices by resource name and NUMA zone. The zone is `None` for devices without a zone.
    pub by_zone: BTreeMap<(String, Option<u32>), u32>,
    /// Names of the resources that have a device with several zones. These resources are omitted from `by_zone`,
    /// because the kubelet lists such a device once for each of its zones.
    pub multi_zone_resources: BTreeSet<String>,
}

impl DeviceCounts {
    /// Counts the devices in the answer of the API. Depending on its version, the kubelet writes an entry for each
    /// device, or combines several devices in one entry.
    #[must_use]
    pub fn count_devices(listed: &[ContainerDevices]) -> Self {
        let mut devices = Self::default();
        for entry in listed {
            match device_zones(entry).as_slice() {
                [_, _, ..] => {
                    devices.multi_zone_resources.insert(entry.resource_name.clone());
                }
                one => {
                    let key = (entry.resource_name.clone(), one.first().copied());
                    let count: &mut u32 = devices.by_zone.entry(key).or_default();
                    *count = count.saturating_add(crate::kernel_files::saturating_u32(
                        entry.device_ids.len(),
                    ));
                }
            }
        }
        let multi_zone_resources = &devices.multi_zone_resources;
        devices.by_zone.retain(|(resource, _), _| !multi_zone_resources.contains(resource));
        devices
    }
}

/// Returns the numbers of the devices' zones in ascending order; empty if the device plugin reports no zones. A device
/// plugin may report zone -1 for a device without a zone.
#[must_use]
pub fn device_zones(devices: &ContainerDevices) -> Vec<u32> {
    let nodes = devices.topology.iter().flat_map(|topology| &topology.nodes);
    let zones: BTreeSet<u32> = nodes.filter_map(|node| u32::try_from(node.id).ok()).collect();
    zones.into_iter().collect()
}

/// Converts CPU numbers to a set; returns `None` if a number is not a valid CPU number.
#[must_use]
pub fn to_cpu_set(ids: &[i64]) -> Option<CpuSet> {
    ids.iter().map(|id| u32::try_from(*id).ok()).collect()
}
