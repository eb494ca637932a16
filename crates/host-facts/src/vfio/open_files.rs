//! Device nodes that processes of the host have open, from `/proc/<pid>/fd`, and the mounts of these processes.
//!
//! To read the open files of another user's process, root needs the capabilities `CAP_DAC_READ_SEARCH` and
//! `CAP_SYS_PTRACE`, which the agent's sandbox does not have by default.

use std::collections::BTreeMap;

use berth_api::excerpt;

use super::mount_namespaces::MountNamespaces;
use crate::mounts::Mount;
use crate::root::{ReadProblem, Root};

/// Folders, other than `/dev`, in which programs of Kubernetes create device nodes: KubeVirt for hot-plugged disks, and
/// the kubelet for block volumes.
const DEVICE_NODE_FOLDERS: [&str; 2] = ["/kubevirt/hotplug-disks/", "/volumeDevices/"];

/// Device nodes that processes have open.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OpenFiles {
    /// A process that has the device node open, by its device number (`b259:0`) and by its path.
    processes: BTreeMap<String, String>,
    /// Mounts of drives in all mount namespaces.
    pub(super) drive_mounts: Vec<Mount>,
    /// Reason why the open files of a process are unknown; `None` if the files of all processes were read.
    pub incomplete: Option<String>,
}

impl OpenFiles {
    /// Reads the open files of all processes except this one, which may have opened drives exclusively.
    pub(super) fn observe(root: &Root) -> Self {
        let mut open_files = Self::default();
        // On a host, process 2 is always the kernel's thread daemon.
        if !root.read("proc/2/comm").is_ok_and(|name| name == "kthreadd") {
            open_files.incomplete = Some("the host's processes are not visible".to_owned());
        }
        let mut namespaces = MountNamespaces::default();
        // The kernel resolves this link to the id in the PID namespace of the mounted procfs.
        let own_pid = root.try_read_link("proc/self").ok().and_then(|pid| pid.parse().ok());
        match root.list_numbered("proc", "") {
            Ok(processes) => {
                for (pid, _) in processes.into_iter().filter(|(pid, _)| Some(*pid) != own_pid) {
                    open_files.add_process(root, pid, &mut namespaces);
                }
            }
            Err(error) => open_files.set_incomplete(error.to_string()),
        }
        open_files.drive_mounts = namespaces.into_drive_mounts();
        open_files
    }

    /// Returns a process that has a device node with this device number or name open.
    #[must_use]
    pub fn user_of(&self, number: &str, name: &str) -> Option<&str> {
        let by_name = || {
            let path = format!("/dev/{name}");
            self.processes.iter().find(|(open, _)| open.ends_with(&path)).map(|(_, user)| user)
        };
        self.processes.get(number).or_else(by_name).map(String::as_str)
    }

    /// Returns a process that has the device node with this path open.
    #[must_use]
    pub fn user_of_path(&self, path: &str) -> Option<&str> {
        self.processes.get(path).map(String::as_str)
    }

    fn add_process(&mut self, root: &Root, pid: u32, namespaces: &mut MountNamespaces) {
        let Ok(namespace) = namespaces.read_of_process(root, pid) else {
            self.set_unreadable(root, pid);
            return;
        };
        let folder = format!("proc/{pid}/fd");
        let files = match root.list(&folder) {
            Ok(files) => files,
            Err(error) => {
                if !error.is_not_found() {
                    self.set_unreadable(root, pid);
                }
                return;
            }
        };
        for file in files {
            let path = format!("{folder}/{file}");
            let target = match root.try_read_link(&path) {
                Ok(target) => target,
                // The process has closed the file.
                Err(error) if error.is_not_found() => continue,
                // A path that is not UTF-8.
                Err(error) if matches!(error.problem, ReadProblem::Malformed(_)) => "/".to_owned(),
                Err(_) => {
                    self.set_unreadable(root, pid);
                    continue;
                }
            };
            if !target.starts_with('/') || is_common_device(&target) {
                continue;
            }
            // A device node may have any path in a container. The kernel may wait for a server that is down if a file is
            // on a remote file system, so such files are not examined.
            let is_remote = namespace.is_some_and(|namespace| namespace.is_remote(&target));
            let number = if is_remote { None } else { root.device_number(&path) };
            if number.is_none() && !may_be_device_node(&target) {
                continue;
            }
            let name = root.read(&format!("proc/{pid}/comm")).unwrap_or_default();
            let process = format!("process {pid} ({})", excerpt(&name));
            if let Some(number) = number {
                self.processes.entry(number).or_insert_with(|| process.clone());
            }
            self.processes.entry(target).or_insert(process);
        }
    }

    /// Records that the open files of a process cannot be read, unless the process has ended.
    fn set_unreadable(&mut self, root: &Root, pid: u32) {
        if root.exists(&format!("proc/{pid}")) {
            self.set_incomplete(format!(
                "the open files of process {pid} cannot be read: the agent needs root, CAP_DAC_READ_SEARCH and \
                 CAP_SYS_PTRACE (drop-in berth-agent-vfio.conf, component vfio-root-equivalent)"
            ));
        }
    }

    fn set_incomplete(&mut self, reason: String) {
        self.incomplete.get_or_insert(reason);
    }
}

/// Returns true for the paths of device nodes that most processes have open.
fn is_common_device(path: &str) -> bool {
    matches!(path, "/dev/null" | "/dev/zero" | "/dev/urandom" | "/dev/tty")
        || path.starts_with("/dev/pts/")
}

/// Returns true for paths at which device nodes are expected, for files whose device number cannot be read.
fn may_be_device_node(path: &str) -> bool {
    let is_in_device_folder = path.starts_with("/dev/")
        || path.contains("/dev/nvme")
        || DEVICE_NODE_FOLDERS.iter().any(|folder| path.contains(folder));
    path.starts_with('/') && is_in_device_folder && !is_common_device(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_of_device_nodes_are_examined() {
        for path in [
            "/dev/nvme0n1",
            "/dev/vfio/12",
            "/dev/disk0",
            "/rootfs/dev/nvme0n1",
            "/run/kubevirt/hotplug-disks/data",
            "/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/pvc/dev/uid",
        ] {
            assert!(may_be_device_node(path), "{path}");
        }
        for path in
            ["", "socket:[1]", "anon_inode:[eventpoll]", "/dev/null", "/dev/pts/0", "/etc/x"]
        {
            assert!(!may_be_device_node(path), "{path}");
        }
    }

    #[test]
    fn processes_are_found_by_number_and_by_name() {
        let process = |pid: u32| format!("process {pid} (a)");
        let processes = [
            ("b259:0".to_owned(), process(1)),
            ("/host/dev/nvme1n1".to_owned(), process(2)),
            ("/dev/vfio/12".to_owned(), process(3)),
        ];
        let open_files = OpenFiles { processes: processes.into(), ..OpenFiles::default() };
        assert_eq!(open_files.user_of("b259:0", "nvme0n1"), Some("process 1 (a)"));
        assert_eq!(open_files.user_of("b259:4", "nvme1n1"), Some("process 2 (a)"));
        assert_eq!(open_files.user_of("b259:8", "nvme11n1"), None);
        assert_eq!(open_files.user_of_path("/dev/vfio/12"), Some("process 3 (a)"));
        assert_eq!(open_files.user_of_path("/dev/vfio/1"), None);
    }
}
