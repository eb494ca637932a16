//! Pods on the host, found without the API server by their control groups.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::{Bytes, PageSize};

use super::kubelet::KubeletFacts;
use super::pod_cgroups;
use super::pod_names::{
    POD_CGROUP_FOLDERS, POD_LOGS_FOLDER, parse_log_folder_name, pod_uid_of_cgroup,
};
use super::processes::Processes;
use crate::root::{ReadError, Root};
use crate::setting::SystemdUnit;

/// Facts about the pods on the host that plans of changes need.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pods {
    /// UIDs of the Guaranteed pods. The kubelet's managers allocate resources to these pods, and allocate them again
    /// when the kubelet starts with another policy.
    pub guaranteed_pods: BTreeSet<String>,
    /// The reason why `guaranteed_pods` is incomplete: the control groups of pods cannot be listed.
    pub control_group_error: Option<ReadError>,
    /// Number of launcher processes of virtual machines.
    pub virt_launcher_count: usize,
    /// True if the processes of the host are visible, so that `virt_launcher_count` is reliable.
    pub are_processes_visible: bool,
    /// Number of huge pages that all pods together may use (`hugetlb.<size>.max` of their control groups), by page
    /// size.
    pub hugepage_limits: BTreeMap<PageSize, u64>,
    /// Units that contain pods or virtual machines, each with a description of one of their processes or control
    /// groups. A value of `AllowedCPUs` for such a unit would also restrict these pods and virtual machines.
    pub units_with_pods: BTreeMap<SystemdUnit, String>,
}

impl Pods {
    /// Returns the reason why the node is not drained; `None` if it is drained. Only Guaranteed pods and virtual
    /// machines matter, because a kubelet with another policy would allocate their resources again. Other pods, such as
    /// those of DaemonSets, may remain on a drained node.
    #[must_use]
    pub fn not_drained_reason(&self) -> Option<String> {
        if !self.are_processes_visible {
            return Some("the host's processes are not visible".to_owned());
        }
        if let Some(error) = &self.control_group_error {
            return Some(error.to_string());
        }
        if self.virt_launcher_count > 0 {
            return Some("virtual machines are running".to_owned());
        }
        let first = self.guaranteed_pods.first()?;
        let n = self.guaranteed_pods.len();
        Some(format!("{n} Guaranteed pods are running, such as the pod with UID {first}"))
    }
}

/// Paths that the kubelet's topmost control group may have: in cgroup v2, then in cgroup v1, with either cgroup driver.
const KUBEPODS_GROUPS: [&str; 6] = [
    "sys/fs/cgroup/kubepods.slice",
    "sys/fs/cgroup/kubepods",
    "sys/fs/cgroup/cpuset/kubepods.slice",
    "sys/fs/cgroup/cpuset/kubepods",
    "sys/fs/cgroup/systemd/kubepods.slice",
    "sys/fs/cgroup/systemd/kubepods",
];

/// Finds pods by their control groups and in the kubelet's checkpoints.
pub fn observe(root: &Root, processes: &Processes, kubelet: &KubeletFacts) -> Pods {
    let mut listings = Vec::new();
    let mut control_group_error = None;
    for top in KUBEPODS_GROUPS {
        match root.list(top) {
            Ok(names) => listings.push(names),
            // A host has the paths of only one version of cgroup and one driver.
            Err(error) if error.is_not_found() => {}
            Err(error) => control_group_error = Some(error),
        }
    }
    let mut guaranteed: BTreeSet<String> =
        listings.iter().flatten().filter_map(|name| pod_uid_of_cgroup(name)).collect();
    // The checkpoints also list pods whose control groups do not exist yet. If no kubelet runs, a pod in a checkpoint
    // counts only if the pod is still on disk.
    let cpu_pods =
        kubelet.cpu_state.iter().flat_map(|state| state.exclusive_cpus_by_pod().into_keys());
    let memory_pods = kubelet.memory_state.iter().flat_map(|state| state.entries.keys());
    let checkpoint_pods = cpu_pods.chain(memory_pods.map(String::as_str));
    let on_disk = (!kubelet.is_running).then(|| read_pods_on_disk(root, kubelet));
    let is_counted = |uid: &&str| on_disk.as_ref().is_none_or(|uids| uids.contains(*uid));
    guaranteed.extend(checkpoint_pods.filter(is_counted).map(str::to_owned));
    Pods {
        guaranteed_pods: guaranteed,
        control_group_error,
        virt_launcher_count: processes
            .entries
            .iter()
            .filter(|p| p.name.starts_with("virt-launcher"))
            .count(),
        are_processes_visible: processes.are_visible,
        hugepage_limits: sum_hugepage_limits(root),
        units_with_pods: pod_cgroups::observe(root),
    }
}

/// Returns the UIDs of the pods that a stopped kubelet has left on disk. The kubelet runs these pods again when it
/// starts, even after a reboot. Pods that are only in a checkpoint may be deleted, because the Memory Manager removes
/// entries of deleted pods only when the kubelet admits another pod.
fn read_pods_on_disk(root: &Root, kubelet: &KubeletFacts) -> BTreeSet<String> {
    match root.list(&format!("{}/pods", kubelet.root_dir)) {
        // In the agent's container, an empty folder may be mounted at this path instead of the host's folder.
        Ok(folders) if !(folders.is_empty() && root.is_from_container()) => {
            return folders.into_iter().collect();
        }
        _ => {}
    }
    // Log folders are less exact: the kubelet removes the log folder of a deleted pod up to a minute after the
    // deletion.
    let logs = root.list(POD_LOGS_FOLDER).unwrap_or_default();
    logs.iter().filter_map(|name| parse_log_folder_name(name)).map(|(uid, _)| uid).collect()
}

/// Returns the sum of the huge page limits of all pods' control groups, in pages, by page size.
fn sum_hugepage_limits(root: &Root) -> BTreeMap<PageSize, u64> {
    let mut total = BTreeMap::new();
    for (size, count) in hugepage_limits_by_pod(root).into_values().flatten() {
        *total.entry(size).or_default() += count;
    }
    total
}

/// Returns the huge page limits of the pods' control groups, in pages, by UID of the pod and by page size. A control
/// group without a limit (`max`) belongs to a pod that requests no huge pages, and its map is empty.
pub(super) fn hugepage_limits_by_pod(root: &Root) -> BTreeMap<String, BTreeMap<PageSize, u64>> {
    let mut pods = BTreeMap::new();
    for (name, folder) in POD_CGROUP_FOLDERS.iter().flat_map(|folder| list_groups(root, folder)) {
        if let Some(uid) = pod_uid_of_cgroup(&name) {
            pods.entry(uid).or_insert_with(|| hugepage_limits(root, &folder));
        }
    }
    pods
}

/// Returns true if a folder with control groups of pods exists. No such folder exists if the kubelet creates the
/// control groups below another group (`cgroupRoot`), or creates none (`cgroupsPerQOS: false`).
pub(super) fn are_control_groups_visible(root: &Root) -> bool {
    POD_CGROUP_FOLDERS.iter().any(|folder| root.list(folder).is_ok())
}

fn list_groups(root: &Root, folder: &str) -> Vec<(String, String)> {
    let names = root.list(folder).unwrap_or_default();
    // The name of a control file has a dot after the name of its controller. The name of a control group ends with
    // `.slice` or has no dot.
    let is_group = |name: &String| !name.contains('.') || name.ends_with(".slice");
    names
        .into_iter()
        .filter(is_group)
        .map(|name| (name.clone(), format!("{folder}/{name}")))
        .collect()
}

fn hugepage_limits(root: &Root, folder: &str) -> BTreeMap<PageSize, u64> {
    let mut limits = BTreeMap::new();
    for (size, name) in [(PageSize::MIB_2, "2MB"), (PageSize::GIB_1, "1GB")] {
        let limit =
            |file: &str| root.read_value::<u64>(&format!("{folder}/hugetlb.{name}.{file}")).ok();
        let Some(bytes) = limit("max").or_else(|| limit("limit_in_bytes")) else { continue };
        // In version 1, the value for no limit is a very large number of bytes: the largest multiple of the page size.
        if Bytes(bytes).0 < 1 << 60 && bytes > 0 {
            limits.insert(size, bytes / size.bytes());
        }
    }
    limits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_is_not_drained_if_its_pods_cannot_be_listed() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::open(folder.path()).unwrap();
        let processes = Processes { are_visible: true, ..Processes::default() };
        let reason = || observe(&root, &processes, &KubeletFacts::default()).not_drained_reason();
        assert_eq!(reason(), None);
        let group = folder.path().join("sys/fs/cgroup/kubepods");
        std::fs::create_dir_all(group.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink("kubepods", &group).unwrap();
        let reason = reason().unwrap_or_default();
        assert!(reason.starts_with("/sys/fs/cgroup/kubepods: "), "{reason}");
    }
}
