//! Finds the process of the host's kubelet.
//!
//! The kubelet's flags name files that the agent reads, writes and removes as root. So a process that merely has the
//! name `kubelet` is ignored: a process of another user, of a container with a separate PID namespace, or of a pod
//! (`hostPID`).

use crate::processes::{KUBELET, Processes};
use crate::root::Root;

/// Result of the search for the kubelet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    /// No kubelet runs as a separate process.
    None,
    /// The host's kubelet.
    One(u32),
    /// Several processes that may be the host's kubelet.
    Several(Vec<u32>),
}

/// Returns the host's kubelet; of several candidates, returns the only candidate that runs in a service.
pub(super) fn find(root: &Root, processes: &Processes) -> Found {
    let named = processes.found.iter().filter(|process| process.name == KUBELET);
    let mut pids: Vec<u32> = named.map(|process| process.pid).collect();
    if pids.len() > 1 {
        let in_service = pids.iter().copied().filter(|pid| unit(root, *pid).is_some());
        let in_service: Vec<u32> = in_service.collect();
        if in_service.len() == 1 {
            pids = in_service;
        }
    }
    match pids.as_slice() {
        [] => Found::None,
        [pid] => Found::One(*pid),
        _ => Found::Several(pids),
    }
}

/// Returns the unit of a process: the last part of the control group's path that names a service.
pub(super) fn unit(root: &Root, pid: u32) -> Option<String> {
    let groups = root.read(&format!("proc/{pid}/cgroup")).ok()?;
    let service =
        |line: &str| line.rsplit('/').find(|part| part.ends_with(".service")).map(str::to_owned);
    groups.lines().find_map(service)
}
