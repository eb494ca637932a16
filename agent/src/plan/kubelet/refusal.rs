//! Would the kubelet start again as things are? And what may be changed below it.

use std::fmt;

use berth_api::PageSize;

use super::super::{Action, Change, ChangeId, Disruption, Input, Why};
use super::KubeletAction;
use berth_host_facts::HostFacts;
use berth_host_facts::kubelet::checkpoints::{cpu_state_fault, memory_state_fault};
use berth_host_facts::kubelet::{KubeletConfig, KubeletFacts, StartedWith};

/// Checkpoints that the kubelet would refuse at its next start, so that a restart is no advice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The reasons, as the kubelet has them.
    pub why: Vec<String>,
    /// What to do about it.
    pub steps: String,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the kubelet would not start again: {}. {}", self.why.join("; "), self.steps)
    }
}

/// Checkpoints that a kubelet which starts now would refuse; `None` if it would take them.
#[must_use]
pub fn next_start(facts: &HostFacts) -> Option<Refused> {
    let config = facts.kubelet.config.as_ref().filter(|config| config.invalid.is_empty())?;
    let (names, why): (Vec<&str>, Vec<String>) = refused_by(facts, config).into_iter().unzip();
    if names.is_empty() {
        return None;
    }
    let files: Vec<String> = names.iter().map(|name| checkpoint(&facts.kubelet, name)).collect();
    Some(Refused { why, steps: drain_stop_remove_start(facts, &files) })
}

/// Checkpoints that a kubelet with this configuration would refuse, each with the reason.
pub(super) fn refused_by(facts: &HostFacts, config: &KubeletConfig) -> Vec<(&'static str, String)> {
    let kubelet = &facts.kubelet;
    let cpu = kubelet.cpu_state.as_ref();
    let cpu = cpu.and_then(|state| cpu_state_fault(state, config, &facts.topology.online));
    let memory = kubelet.memory_state.as_ref();
    let memory = memory.and_then(|state| memory_state_fault(state, config, &facts.zones));
    let all = [("cpu_manager_state", cpu), ("memory_manager_state", memory)];
    all.into_iter().filter_map(|(name, why)| Some((name, why?))).collect()
}

/// The steps for checkpoints that the kubelet refuses. The node must be empty first: without them the kubelet does not know
/// any more which CPUs and pages are whose. And the kubelet must not run, as it would write them again.
#[must_use]
pub(crate) fn drain_stop_remove_start(facts: &HostFacts, files: &[String]) -> String {
    let node = facts.node_name().unwrap_or("NODE");
    let (unit, files) = (&facts.kubelet.unit, files.join(" "));
    format!(
        "kubectl drain {node} --ignore-daemonsets --delete-emptydir-data; on the host: systemctl stop {unit} && \
         rm -f {files} && systemctl start {unit}; then: kubectl uncordon {node}"
    )
}

pub(super) fn checkpoint(kubelet: &KubeletFacts, name: &str) -> String {
    format!("{}/{name}", kubelet.folder)
}

impl Input<'_> {
    /// What must happen first where checkpoints go with a change; `None` if no kubelet runs and the node is drained.
    pub(super) fn waits_for_stop(self) -> Option<String> {
        let unit = &self.facts.kubelet.unit;
        if let Some(why) = self.shape.pods.not_drained() {
            return Some(format!("waits until the node is drained and its kubelet stopped: {why}"));
        }
        self.facts.kubelet.runs.then(|| {
            format!(
                "waits until the kubelet is stopped, which would write its checkpoints again: systemctl stop {unit}"
            )
        })
    }
}

/// What the kubelet's Memory Manager makes of a pool.
///
/// It counts the pages of every zone when it starts, keeps the numbers in its memory and in its checkpoint, and refuses
/// to start where they differ from what is there (`areMachineStatesEqual` of its static policy).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::plan) enum Counted {
    /// There is none: the pool may have any number of pages.
    Not,
    /// It has counted this number, and no kubelet runs on a drained node: any number, once this checkpoint is gone.
    Removable(Option<u64>, String),
    /// It has counted this number, where that is known, and any other waits for this.
    Fixed(Option<u64>, String),
}

/// What the kubelet's Memory Manager makes of a pool now.
pub(in crate::plan) fn counted(input: Input, zone: u32, size: PageSize) -> Counted {
    let kubelet = &input.facts.kubelet;
    let state = kubelet.memory_state.as_ref();
    let state =
        state.filter(|state| state.policy_name == "Static" && !state.machine_state.is_empty());
    let is_static = |config: &KubeletConfig| config.memory_manager_policy == "Static";
    let runs_static = match &kubelet.started_with {
        StartedWith::NotRunning => false,
        StartedWith::Known(config) => is_static(config),
        // The file may be gone, but a running kubelet has the numbers in its memory.
        StartedWith::Unknown(_) => kubelet.config.as_ref().is_some_and(is_static),
    };
    if state.is_none() && !runs_static {
        return Counted::Not;
    }
    let file = checkpoint(kubelet, "memory_manager_state");
    let table = state.and_then(|state| state.machine_state.get(&zone));
    let table = table.and_then(|zone| zone.memory_map.get(&size.resource()));
    let pages = table.map(|table| table.total / size.bytes());
    let Some(waits) = input.waits_for_stop() else { return Counted::Removable(pages, file) };
    let number = pages.map_or_else(|| "the".to_owned(), |pages| pages.to_string());
    let (node, unit) = (input.facts.node_name().unwrap_or("NODE"), &kubelet.unit);
    let why = format!(
        "the kubelet's Memory Manager has counted {number} pages there ({file}), and would refuse to start with another \
         number; {waits}. In this order: kubectl drain {node} --ignore-daemonsets --delete-emptydir-data; systemctl \
         stop {unit}; rm -f {file}; wait for the change of pages; systemctl start {unit}; kubectl uncordon {node}"
    );
    Counted::Fixed(pages, why)
}

/// The removal of a checkpoint that has other pages than there are and are to be.
pub(in crate::plan) fn without_checkpoint(file: String) -> Change {
    Change {
        id: ChangeId::KubeletCheckpoint,
        was: "of other huge pages".to_owned(),
        will_be: "none".to_owned(),
        why: Why::Asked,
        drift: false,
        disruption: Disruption::None,
        effect: "the kubelet counts them again when it starts".to_owned(),
        blocked: None,
        removes: Vec::new(),
        action: Action::Kubelet(KubeletAction::Remove(vec![file])),
    }
}

/// Whether the kubelet must start again to know the huge pages or its configuration files, and the steps. `None` if not, or
/// if that is not known.
pub(crate) fn restart_needed(facts: &HostFacts) -> Option<String> {
    let kubelet = &facts.kubelet;
    let started = kubelet.start.as_ref().map(|start| start.after_boot);
    let changed = facts.ledger.hugepages_changed;
    let mut reasons = Vec::new();
    if started.zip(changed).is_some_and(|(started, changed)| started < changed) {
        reasons.push("huge pages were changed after it had counted them".to_owned());
    }
    let fields = kubelet.pending_restart();
    if !fields.is_empty() {
        reasons.push(format!("{} were changed after it had read them", fields.join(", ")));
    }
    if reasons.is_empty() {
        return None;
    }
    let reasons = reasons.join("; ");
    Some(match next_start(facts) {
        None => {
            format!("kubelet restart needed: {reasons} (systemctl restart {})", kubelet.unit)
        }
        Some(refused) => format!("{reasons}; but {refused}"),
    })
}
