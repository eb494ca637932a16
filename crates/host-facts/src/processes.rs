//! Finds running daemons that affect Berth, such as the kubelet and ksmtuned.

use crate::pod_names::pod_uid_of_cgroup;
use crate::root::Root;

/// Name of a kubelet process in `/proc/<pid>/comm`.
pub const KUBELET_PROCESS_NAME: &str = "kubelet";

/// Names, in `/proc/<pid>/comm`, of processes that contain a kubelet: k3s' server and agent, and MicroK8s.
pub const KUBELET_EMBEDDERS: [&str; 3] = ["k3s-server", "k3s-agent", "kubelite"];

/// Names, in `/proc/<pid>/comm`, of the processes to search for. The kernel shortens names to 15 bytes.
const SEARCHED_NAMES: [&str; 11] = [
    KUBELET_PROCESS_NAME,
    "k3s-server",
    "k3s-agent",
    "kubelite",
    "ksmtuned",
    "virt-handler",
    "virt-launcher",
    "virt-launcher-m",
    "irqbalance",
    "NetworkManager",
    "systemd-network",
];

/// A running process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// Name of the process in `/proc/<pid>/comm`.
    pub name: String,
}

/// Running processes that affect Berth, in ascending order of their ids.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Processes {
    /// Processes with one of the searched names. A process with the name `kubelet` is included only if it may be the
    /// host's kubelet.
    pub entries: Vec<Process>,
    /// True if the processes of the host are visible. They are not visible in most captures, in a container with a
    /// separate PID namespace, and if `/proc` hides the processes of other users (`hidepid`).
    pub are_visible: bool,
}

impl Processes {
    /// Returns the first process with this name.
    #[must_use]
    pub fn find_by_name(&self, name: &str) -> Option<&Process> {
        self.entries.iter().find(|process| process.name == name)
    }

    /// Returns true if a kubelet runs on the host, as a separate process or as a part of another program.
    #[must_use]
    pub fn is_kubelet_running(&self) -> bool {
        self.find_by_name(KUBELET_PROCESS_NAME).is_some()
            || KUBELET_EMBEDDERS.iter().any(|name| self.find_by_name(name).is_some())
    }
}

/// Returns the CPU time of the current process in seconds and its resident memory in bytes, from its `stat` and
/// `statm`.
#[must_use]
pub fn read_own_resource_usage(root: &Root) -> Option<(f64, f64)> {
    let stat = root.read("proc/self/stat").ok()?;
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut times = after_name.split_whitespace().skip(11);
    let ticks: f64 = times.next()?.parse::<f64>().ok()? + times.next()?.parse::<f64>().ok()?;
    let statm = root.read("proc/self/statm").ok()?;
    let pages: f64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    let page_size: f64 =
        nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok()??.to_string().parse().ok()?;
    Some((ticks / 100.0, pages * page_size))
}

/// Returns true if a process may be the host's kubelet: it runs as root and in the host's PID namespace, but not in the
/// control group of a pod.
pub fn is_host_process(root: &Root, pid: u32) -> bool {
    let status = root.read(&format!("proc/{pid}/status")).unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.map(|values| values.split_whitespace().collect::<Vec<_>>()).unwrap_or_default()
    };
    let runs_as_root = field("Uid:").get(1) == Some(&"0");
    // `NSpid` has one number for each PID namespace that contains the process, beginning with the namespace to which
    // this `/proc` belongs (Linux 4.1).
    let in_this_pid_namespace = field("NSpid:").len() == 1;
    let Ok(groups) = root.read(&format!("proc/{pid}/cgroup")) else { return false };
    // In a separate cgroup namespace, such as that of the agent's container, the paths of other processes begin with
    // `..` and may lack `kubepods`, but they contain the name of the pod's own control group.
    let is_pod_group =
        |part: &str| part.starts_with("kubepods") || pod_uid_of_cgroup(part).is_some();
    runs_as_root && in_this_pid_namespace && !groups.split(['/', '\n']).any(is_pod_group)
}

/// Finds the processes with the searched names in `/proc/*/comm`.
pub fn observe(root: &Root) -> Processes {
    let Ok(pids) = root.list_numbered("proc", "") else { return Processes::default() };
    let matching_process = |(pid, folder): &(u32, String)| {
        let name = root.read(&format!("proc/{folder}/comm")).ok()?;
        let is_match = SEARCHED_NAMES.contains(&name.as_str())
            && (name != KUBELET_PROCESS_NAME || is_host_process(root, *pid));
        is_match.then_some(Process { pid: *pid, name })
    };
    let found: Vec<Process> = pids.iter().filter_map(matching_process).collect();
    // On a host, process 2 is always the kernel's thread daemon. It is never visible in a container with its own PID
    // namespace.
    let has_kthreadd = root.read("proc/2/comm").is_ok_and(|name| name == "kthreadd");
    Processes { are_visible: has_kthreadd || !found.is_empty(), entries: found }
}
