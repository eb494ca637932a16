//! Checkpoints of the kubelet's managers: those that the kubelet would refuse, and the huge pages that the kubelet
//! has counted.

use berth_api::PageSize;

use super::action::KubeletAction;
use super::paths::checkpoint_path;
use crate::plan::change::{Action, Change, ChangeReason, Disruption};
use crate::plan::id::ChangeId;
use crate::plan::input::Input;
use berth_host_facts::HostFacts;
use berth_host_facts::kubelet::checkpoints::{find_cpu_state_error, find_memory_state_error};
use berth_host_facts::kubelet::{KubeletConfig, RunningConfig};

/// Returns the checkpoints that a kubelet with this configuration would refuse, each with the
/// reason.
pub(super) fn refused_checkpoints(
    facts: &HostFacts,
    config: &KubeletConfig,
) -> Vec<(&'static str, String)> {
    let kubelet = &facts.kubelet;
    let cpu = kubelet.cpu_state.as_ref();
    let cpu = cpu.and_then(|state| find_cpu_state_error(state, config, &facts.topology.online));
    let memory = kubelet.memory_state.as_ref();
    let memory = memory.and_then(|state| find_memory_state_error(state, config, &facts.zones));
    let all = [("cpu_manager_state", cpu), ("memory_manager_state", memory)];
    all.into_iter().filter_map(|(name, reason)| Some((name, reason?))).collect()
}

/// Requirement of the kubelet's Memory Manager for the number of pages in a pool.
///
/// The Memory Manager counts the pages of every zone when it starts, and stores the numbers in its memory and in its
/// checkpoint. The kubelet refuses to start if the stored numbers differ from the actual numbers
/// (`areMachineStatesEqual` of the Memory Manager's static policy).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PoolClaim {
    /// The Memory Manager has counted no pages of the pool, which may have any number of pages.
    Unclaimed,
    /// The kubelet has counted this number of pages (`None` if it is unknown), but it is stopped and its node is
    /// drained. After the checkpoint with this path is removed, the pool may have any number of pages.
    RemovableCheckpoint(Option<u64>, String),
    /// The kubelet has counted this number of pages (`None` if it is unknown). A change to any other number is blocked
    /// until the steps in this text are done.
    FixedPageCount(Option<u64>, String),
}

/// Returns what the kubelet's Memory Manager requires of the number of pages in a pool.
pub(crate) fn memory_manager_claim(input: Input, zone: u32, size: PageSize) -> PoolClaim {
    let kubelet = &input.facts.kubelet;
    let state = kubelet.memory_state.as_ref();
    let state =
        state.filter(|state| state.policy_name == "Static" && !state.machine_state.is_empty());
    let is_static = |config: &KubeletConfig| config.memory_manager_policy == "Static";
    let runs_static = match &kubelet.running_config {
        RunningConfig::NotRunning => false,
        RunningConfig::Known(config) => is_static(config),
        // The checkpoint may be missing, but a running kubelet has the numbers in its memory.
        RunningConfig::Unknown(_) => kubelet.config.as_ref().is_some_and(is_static),
    };
    if state.is_none() && !runs_static {
        return PoolClaim::Unclaimed;
    }
    let file = checkpoint_path(kubelet, "memory_manager_state");
    let table = state.and_then(|state| state.machine_state.get(&zone));
    let table = table.and_then(|zone| zone.memory_map.get(&size.resource_name()));
    let pages = table.map(|table| table.total / size.bytes());
    let Some(precondition) = input.stop_precondition() else {
        return PoolClaim::RemovableCheckpoint(pages, file);
    };
    let number = pages.map_or_else(|| "the".to_owned(), |pages| pages.to_string());
    let (node, unit) = (input.facts.node_name().unwrap_or("NODE"), &kubelet.systemd_unit);
    let reason = format!(
        "the kubelet's Memory Manager has recorded {number} pages of this zone in {file}, and does not start if the \
         number differs; {precondition}. Steps: kubectl drain {node} --ignore-daemonsets --delete-emptydir-data; systemctl \
         stop {unit}; rm -f {file}; wait until the number of pages has changed; systemctl start {unit}; kubectl uncordon {node}"
    );
    PoolClaim::FixedPageCount(pages, reason)
}

/// Returns the change that removes the Memory Manager's checkpoint, whose numbers of huge pages are neither the actual
/// nor the desired numbers.
pub(crate) fn remove_checkpoint(file: String) -> Change {
    Change {
        id: ChangeId::KubeletCheckpoint,
        was: "with other numbers of huge pages".to_owned(),
        will_be: "none".to_owned(),
        why: ChangeReason::Spec,
        drift: false,
        disruption: Disruption::None,
        effect: "the kubelet counts huge pages again when it starts".to_owned(),
        blocked: None,
        removes: Vec::new(),
        action: Action::Kubelet(KubeletAction::Remove(vec![file])),
    }
}
