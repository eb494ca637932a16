//! Finds the process of the host's kubelet.
//!
//! The kubelet's flags name files that the agent reads, writes and removes as root. Therefore a process is not
//! trusted just because its name is `kubelet`. Processes of other users, of containers with a separate PID namespace,
//! and of pods (`hostPID`) are ignored.

use crate::processes::{KUBELET_PROCESS_NAME, Processes};
use crate::root::Root;

/// Result of the search for the kubelet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum KubeletProcess {
    /// No kubelet runs as a separate process.
    None,
    /// Id of the process of the host's kubelet.
    Single(u32),
    /// Ids of several processes, each of which may be the host's kubelet.
    Multiple(Vec<u32>),
}

/// Searches for the process of the host's kubelet. If several processes may be the kubelet, selects the process that
/// runs in a systemd service, if there is exactly one.
pub(super) fn find_kubelet(root: &Root, processes: &Processes) -> KubeletProcess {
    let kubelets = processes.entries.iter().filter(|process| process.name == KUBELET_PROCESS_NAME);
    let mut pids: Vec<u32> = kubelets.map(|process| process.pid).collect();
    if pids.len() > 1 {
        let in_service = pids.iter().copied().filter(|pid| read_systemd_unit(root, *pid).is_some());
        let in_service: Vec<u32> = in_service.collect();
        if in_service.len() == 1 {
            pids = in_service;
        }
    }
    match pids.as_slice() {
        [] => KubeletProcess::None,
        [pid] => KubeletProcess::Single(*pid),
        _ => KubeletProcess::Multiple(pids),
    }
}

/// Returns the systemd unit of a process: in the path of the process's control group, the last component that ends with
/// `.service`.
pub(super) fn read_systemd_unit(root: &Root, pid: u32) -> Option<String> {
    let groups = root.read(&format!("proc/{pid}/cgroup")).ok()?;
    let service =
        |line: &str| line.rsplit('/').find(|part| part.ends_with(".service")).map(str::to_owned);
    groups.lines().find_map(service)
}
