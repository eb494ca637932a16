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
    /// The reason why it is unknown which pods a stopped kubelet has left on disk. All pods in its checkpoints then
    /// count as pods on the host.
    pub pod_folder_error: Option<ReadError>,
    /// Number of launcher processes of virtual machines.
    pub virt_launcher_count: usize,
    /// True if the processes of the host are visible, so that `virt_launcher_count` is reliable.
    pub are_processes_visible: bool,
    /// Number of huge pages that all pods together may use (`hugetlb.<size>.max` of their control groups), by page
    /// size.
    pub hugepage_limits: BTreeMap<PageSize, u64>,
    /// The reason why `hugepage_limits` is incomplete.
    pub hugepage_limits_error: Option<ReadError>,
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
        if let Some(error) = self.control_group_error.as_ref().or(self.pod_folder_error.as_ref()) {
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
    let on_disk = (!kubelet.is_running).then(|| read_pods_on_disk(root, kubelet)).transpose();
    let (on_disk, pod_folder_error) = match on_disk {
        Ok(uids) => (uids, None),
        Err(error) => (None, Some(error)),
    };
    let is_counted = |uid: &&str| on_disk.as_ref().is_none_or(|uids| uids.contains(*uid));
    guaranteed.extend(checkpoint_pods.filter(is_counted).map(str::to_owned));
    let (limits_by_pod, hugepage_limits_error) = read_hugepage_limits(root);
    Pods {
        guaranteed_pods: guaranteed,
        control_group_error,
        pod_folder_error,
        virt_launcher_count: processes
            .entries
            .iter()
            .filter(|p| p.name.starts_with("virt-launcher"))
            .count(),
        are_processes_visible: processes.are_visible,
        hugepage_limits: sum_hugepage_limits(limits_by_pod),
        hugepage_limits_error,
        units_with_pods: pod_cgroups::observe(root),
    }
}

/// Returns the UIDs of the pods that a stopped kubelet has left on disk. The kubelet runs these pods again when it
/// starts, even after a reboot. A pod that is only in a checkpoint may no longer exist, because the Memory Manager
/// removes entries of deleted pods only when the kubelet admits another pod.
fn read_pods_on_disk(root: &Root, kubelet: &KubeletFacts) -> Result<BTreeSet<String>, ReadError> {
    match root.list(&format!("{}/pods", kubelet.root_dir)) {
        // In the agent's container, an empty folder may be mounted at this path instead of the host's folder.
        Ok(folders) if !(folders.is_empty() && root.is_from_container()) => {
            return Ok(folders.into_iter().collect());
        }
        Err(error) if !error.is_not_found() => return Err(error),
        _ => {}
    }
    // Log folders are less exact: the kubelet removes the log folder of a deleted pod up to a minute after the
    // deletion.
    let logs = match root.list(POD_LOGS_FOLDER) {
        Err(error) if error.is_not_found() => Vec::new(),
        listed => listed?,
    };
    Ok(logs.iter().filter_map(|name| parse_log_folder_name(name)).map(|(uid, _)| uid).collect())
}

/// Huge page limits in pages, by UID of the pod and by page size.
type LimitsByPod = BTreeMap<String, BTreeMap<PageSize, u64>>;

/// Returns the sum of the huge page limits of all pods' control groups, in pages, by page size.
fn sum_hugepage_limits(limits: LimitsByPod) -> BTreeMap<PageSize, u64> {
    let mut total = BTreeMap::new();
    for (size, count) in limits.into_values().flatten() {
        *total.entry(size).or_default() += count;
    }
    total
}

/// Returns the huge page limits of the pods' control groups, in pages, by UID of the pod and by page size. A control
/// group without a limit (`max`) belongs to a pod that requests no huge pages, and its map is empty.
pub(super) fn hugepage_limits_by_pod(root: &Root) -> LimitsByPod {
    read_hugepage_limits(root).0
}

/// Returns the huge page limits of the pods' control groups, and the last error because of which they are incomplete.
fn read_hugepage_limits(root: &Root) -> (LimitsByPod, Option<ReadError>) {
    let (mut pods, mut last_error) = (BTreeMap::new(), None);
    for folder in POD_CGROUP_FOLDERS {
        let groups = match list_groups(root, folder) {
            Ok(groups) => groups,
            Err(error) => {
                last_error = Some(error).filter(|error| !error.is_not_found()).or(last_error);
                continue;
            }
        };
        for (name, folder) in groups {
            if let Some(uid) = pod_uid_of_cgroup(&name) {
                pods.entry(uid).or_insert_with(|| hugepage_limits(root, &folder, &mut last_error));
            }
        }
    }
    (pods, last_error)
}

/// Returns true if a folder with control groups of pods exists, and all such folders can be read. No such folder exists
/// if the kubelet creates the control groups below another group (`cgroupRoot`), or creates none (`cgroupsPerQOS:
/// false`).
pub(super) fn are_control_groups_visible(root: &Root) -> bool {
    let listed = POD_CGROUP_FOLDERS.map(|folder| root.list(folder).map(drop));
    let is_unreadable =
        |listed: &Result<(), ReadError>| listed.as_ref().is_err_and(|error| !error.is_not_found());
    listed.iter().any(Result::is_ok) && !listed.iter().any(is_unreadable)
}

fn list_groups(root: &Root, folder: &str) -> Result<Vec<(String, String)>, ReadError> {
    let names = root.list(folder)?;
    // The name of a control file has a dot after the name of its controller. The name of a control group ends with
    // `.slice` or has no dot.
    let is_group = |name: &String| !name.contains('.') || name.ends_with(".slice");
    Ok(names
        .into_iter()
        .filter(is_group)
        .map(|name| (name.clone(), format!("{folder}/{name}")))
        .collect())
}

fn hugepage_limits(
    root: &Root,
    folder: &str,
    last_error: &mut Option<ReadError>,
) -> BTreeMap<PageSize, u64> {
    let mut limits = BTreeMap::new();
    for (size, name) in [(PageSize::MIB_2, "2MB"), (PageSize::GIB_1, "1GB")] {
        let mut limit = |file: &str| match root.read(&format!("{folder}/hugetlb.{name}.{file}")) {
            // The text for no limit is `max`.
            Ok(text) => text.parse::<u64>().ok(),
            Err(error) => {
                if !error.is_not_found() {
                    *last_error = Some(error);
                }
                None
            }
        };
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

    #[test]
    fn node_is_not_drained_if_the_pods_on_disk_cannot_be_listed() {
        for folder in ["var/lib/kubelet/pods", POD_LOGS_FOLDER] {
            let (tree, root) = new_tree();
            let processes = Processes { are_visible: true, ..Processes::default() };
            let kubelet = |is_running: bool| KubeletFacts {
                root_dir: "/var/lib/kubelet".to_owned(),
                is_running,
                ..KubeletFacts::default()
            };
            let reason = |is_running: bool| {
                observe(&root, &processes, &kubelet(is_running)).not_drained_reason()
            };
            assert_eq!(reason(false), None);
            make_unreadable(&tree, folder);
            assert_eq!(reason(true), None, "the checkpoints of a running kubelet are current");
            let reason = reason(false).unwrap_or_default();
            assert!(reason.starts_with(&format!("/{folder}: ")), "{reason}");
        }
    }

    #[test]
    fn huge_page_limits_are_unknown_if_control_groups_cannot_be_read() {
        let group = "sys/fs/cgroup/kubepods/podab12-cd";
        let limit_file = format!("{group}/hugetlb.2MB.max");
        for unreadable in ["sys/fs/cgroup/kubepods/burstable", limit_file.as_str()] {
            let (tree, root) = new_tree();
            std::fs::create_dir_all(tree.path().join(group)).unwrap();
            std::fs::write(tree.path().join(group).join("hugetlb.1GB.max"), "max\n").unwrap();
            let pods = || observe(&root, &Processes::default(), &KubeletFacts::default());
            assert_eq!(pods().hugepage_limits_error, None);
            assert!(are_control_groups_visible(&root));
            make_unreadable(&tree, unreadable);
            let error = pods().hugepage_limits_error;
            assert_eq!(error.map(|error| error.path).as_deref(), Some(unreadable));
            assert_eq!(are_control_groups_visible(&root), unreadable.contains("hugetlb"));
        }
    }

    #[test]
    fn system_slice_that_cannot_be_listed_may_contain_pods() {
        let (tree, root) = new_tree();
        let units = || observe(&root, &Processes::default(), &KubeletFacts::default());
        assert!(units().units_with_pods.is_empty());
        make_unreadable(&tree, "sys/fs/cgroup/system.slice");
        let units = units().units_with_pods;
        assert_eq!(units.keys().copied().collect::<Vec<_>>(), [SystemdUnit::System]);
    }

    fn new_tree() -> (tempfile::TempDir, Root) {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::open(folder.path()).unwrap();
        (folder, root)
    }

    /// Makes a link to itself, which root cannot read either.
    fn make_unreadable(tree: &tempfile::TempDir, path: &str) {
        let link = tree.path().join(path);
        std::fs::create_dir_all(link.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(link.file_name().unwrap(), &link).unwrap();
    }
}
