//! Which process is the host's kubelet.
//!
//! Its flags name files that the agent reads, writes and removes as root, so a process that merely has the name is not
//! believed: not one of another user, of a container with processes of its own, or of a pod (`hostPID`).

use crate::pods::pod_uid;
use crate::processes::Processes;
use crate::root::Root;

/// The kernel's name for it.
pub const NAME: &str = "kubelet";

/// Programs that run a kubelet inside themselves: k3s' server and agent, and MicroK8s.
pub const EMBEDDED: [&str; 3] = ["k3s-server", "k3s-agent", "kubelite"];

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    /// No kubelet runs as a process of its own.
    None,
    /// The host's kubelet.
    One(u32),
    /// Processes that could each be it.
    Several(Vec<u32>),
}

/// Whether the process may be the host's kubelet: root's, in the host's PID namespace, and in no pod's control group.
pub fn is_of_host(root: &Root, pid: u32) -> bool {
    let status = root.read(&format!("proc/{pid}/status")).unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.map(|values| values.split_whitespace().collect::<Vec<_>>()).unwrap_or_default()
    };
    let of_root = field("Uid:").get(1) == Some(&"0");
    // One number for each PID namespace that it is in, from this one inwards (Linux 4.1).
    let here = field("NSpid:").len() == 1;
    let Ok(groups) = root.read(&format!("proc/{pid}/cgroup")) else { return false };
    // From within a control group namespace (of the agent's container) a path begins with as many `..` as it takes,
    // and then `kubepods` need not be in it; the pod's own group is.
    let of_pod = |part: &str| part.starts_with("kubepods") || pod_uid(part).is_some();
    of_root && here && !groups.split(['/', '\n']).any(of_pod)
}

/// The host's kubelet. Of several the one that a service runs.
pub(super) fn find(root: &Root, processes: &Processes) -> Found {
    let named = processes.found.iter().filter(|process| process.name == NAME);
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

/// The unit of a process: the last part of its control group that names a service.
pub(super) fn unit(root: &Root, pid: u32) -> Option<String> {
    let groups = root.read(&format!("proc/{pid}/cgroup")).ok()?;
    let service =
        |line: &str| line.rsplit('/').find(|part| part.ends_with(".service")).map(str::to_owned);
    groups.lines().find_map(service)
}
