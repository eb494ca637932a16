//! Allocations of pods from sources other than the kubelet's checkpoints: the answers of the kubelet's PodResources
//! API, the names of pods by UID, and the huge page limits of the pods' control groups.

use std::collections::BTreeMap;

use berth_api::PageSize;
use berth_api::infra_node::UnknownReason;

use super::kubelet::podresources::{self, PodResourcesList};
use super::pod_names::{POD_LOGS_FOLDER, parse_log_folder_name};
use super::pods;
use crate::notes::Notes;
use crate::root::Root;
use crate::services::HostServices;

/// Allocations of pods from sources other than the kubelet's checkpoints.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PodAllocations {
    /// Answers of the kubelet's PodResources API; `None` if the API was not called, or if the kubelet did not answer.
    pub pod_resources: Option<PodResourcesList>,
    /// Namespace and name of each pod, by UID.
    pub pod_names: BTreeMap<String, (String, String)>,
    /// Huge page limits of each pod's control group in pages, by UID of the pod and page size. Every pod that has a
    /// control group has an entry, which may be empty.
    pub hugepage_limits: BTreeMap<String, BTreeMap<PageSize, u64>>,
    /// True if the folder of the pods' control groups exists. A pod without an entry in `hugepage_limits` then has no
    /// control group.
    pub are_control_groups_visible: bool,
}

/// Path of the field in the status of the InfraNode that lists devices.
pub const DEVICES_PATH: &str = "devices";

/// Calls the kubelet's PodResources API, and reads the pods' control groups and log folders.
pub fn observe(root: &Root, services: &dyn HostServices, notes: &mut Notes) -> PodAllocations {
    let listed = services.request_pod_resources(root).unwrap_or_else(|error| {
        let message = error.to_string();
        notes.warn(
            format!("/{}", podresources::SOCKET_PATH),
            format!("{message}; the kubelet's checkpoints are read instead"),
        );
        notes.add_unknown("allocations.devices", UnknownReason::Unreadable, message.clone());
        notes.add_unknown(DEVICES_PATH, UnknownReason::Unreadable, message);
        None
    });
    match listed.as_ref().map(|listed| &listed.devices) {
        Some(None) => {
            let message = "the kubelet does not support GetAllocatableResources, which requires Kubernetes 1.23";
            notes.add_unknown(DEVICES_PATH, UnknownReason::NotFound, message);
        }
        Some(Some(devices)) if !devices.multi_zone_resources.is_empty() => {
            let names: Vec<&str> =
                devices.multi_zone_resources.iter().map(String::as_str).collect();
            let message = format!(
                "the devices of {} cannot be counted by zone: some belong to several NUMA zones",
                names.join(", ")
            );
            notes.add_unknown(DEVICES_PATH, UnknownReason::Unreadable, message);
        }
        _ => {}
    }
    let names = notes.value_or_warning(root.list(POD_LOGS_FOLDER)).unwrap_or_default();
    PodAllocations {
        pod_resources: listed,
        pod_names: names.iter().filter_map(|name| parse_log_folder_name(name)).collect(),
        hugepage_limits: pods::hugepage_limits_by_pod(root),
        are_control_groups_visible: pods::are_control_groups_visible(root),
    }
}
