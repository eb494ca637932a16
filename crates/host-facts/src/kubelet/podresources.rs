//! The kubelet's PodResources API, through which the kubelet lists its allocations over a socket.
//!
//! The list identifies pods by name, while the checkpoints identify pods by UID; the names of the pods' log folders
//! contain both. The kubelet may list pods that ended long ago, and old kubelets list shared CPUs as exclusive CPUs.
//! Therefore the list is used only together with checkpoints and control groups.

#[expect(missing_docs, clippy::derive_partial_eq_without_eq, reason = "generated")]
#[rustfmt::skip]
pub mod v1;

use std::collections::{BTreeMap, BTreeSet};

use berth_api::CpuSet;

pub use v1::{
    ContainerDevices, ContainerMemory, ContainerResources, NumaNode, PodResources, TopologyInfo,
};

/// Path of the API's socket.
pub const SOCKET_PATH: &str = "var/lib/kubelet/pod-resources/kubelet.sock";

/// Reason why the list of the kubelet's allocations is not available.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PodResourcesError {
    /// The kubelet did not answer within this number of seconds.
    #[error("the kubelet did not answer within {0} s")]
    Timeout(u64),
    /// The call failed.
    #[error("{0}")]
    CallFailed(String),
}

/// The pods and devices in the kubelet's answers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PodResourcesList {
    /// Pods with the resources of their containers.
    pub pods: Vec<PodResources>,
    /// CPUs that can be allocated exclusively; `None` from kubelets before 1.23.
    pub allocatable_cpus: Option<CpuSet>,
    /// Healthy devices; `None` from kubelets before 1.23.
    pub devices: Option<DeviceCounts>,
}

/// Healthy devices of device plugins, allocated or not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceCounts {
    /// Number of devices by resource and zone; the zone of devices without a zone is `None`.
    pub by_zone: BTreeMap<(String, Option<u32>), u32>,
    /// Names of the resources that have a device with several zones. These resources are not in `by_zone`, because
    /// the kubelet lists such a device for each of its zones.
    pub multi_zone_resources: BTreeSet<String>,
}

impl DeviceCounts {
    /// Counts the devices in the kubelet's list. Depending on its version, the kubelet writes one entry for each
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
