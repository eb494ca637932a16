//! Paths of the kubelet's files.

use berth_host_facts::kubelet::KubeletFacts;

pub(super) fn checkpoint_path(kubelet: &KubeletFacts, name: &str) -> String {
    format!("{}/{name}", kubelet.root_dir)
}

/// Returns the paths of the checkpoints of the CPU Manager and the Memory Manager.
pub(super) fn checkpoint_paths(kubelet: &KubeletFacts) -> Vec<String> {
    ["cpu_manager_state", "memory_manager_state"].map(|name| checkpoint_path(kubelet, name)).into()
}
