//! Phases of a DataVolume. The binding mode of the StorageClass and the use of populators determine when the import of
//! the image starts (`updateStatus` and `updateStatusPVCPending` of CDI's controller-base.go):
//!
//! * `Immediate`: the PersistentVolumeClaim (here: claim) gets a volume at once.
//! * `WaitForFirstConsumer` without populators: the DataVolume is in phase `WaitForFirstConsumer` until the claim is
//!   bound. In this phase, virt-controller creates a first-consumer pod.
//! * `WaitForFirstConsumer` with populators: the DataVolume is in phase `PendingPopulation` until the claim has a
//!   selected node. In this phase, virt-controller creates the launcher pod, which is bound after the import.

use serde_json::{Value, json};

/// State on which the next phase of a DataVolume depends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Import {
    pub(super) waits_for_consumer: bool,
    pub(super) uses_populator: bool,
    pub(super) has_selected_node: bool,
    pub(super) is_bound: bool,
    pub(super) may_start: bool,
    pub(super) may_complete: bool,
}

/// Returns the next phase of a DataVolume, or the same phase.
pub(super) fn next_phase(phase: &str, import: Import) -> &'static str {
    let has_consumer = import.is_bound || (import.uses_populator && import.has_selected_node);
    match phase {
        "ImportInProgress" if import.may_complete && import.is_bound => "Succeeded",
        "ImportScheduled" | "ImportInProgress" => "ImportInProgress",
        _ if import.may_start && has_consumer => "ImportScheduled",
        _ if !import.waits_for_consumer => "Pending",
        _ if import.uses_populator => "PendingPopulation",
        _ => "WaitForFirstConsumer",
    }
}

/// Returns the status of a DataVolume in a phase. `claim` is the name of its claim.
pub(super) fn new_status(phase: &str, claim: &str, is_bound: bool) -> Value {
    let has_succeeded = phase == "Succeeded";
    let condition = |type_: &str, is: bool| {
        let status = if is { "True" } else { "False" };
        json!({"type": type_, "status": status})
    };
    json!({
        "phase": phase, "claimName": claim, "progress": if has_succeeded { "100.0%" } else { "N/A" },
        "conditions": [
            condition("Bound", is_bound),
            condition("Ready", has_succeeded),
            condition("Running", phase == "ImportInProgress"),
        ],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imports_start_after_the_first_consumer() {
        let unbound = Import {
            waits_for_consumer: true,
            uses_populator: false,
            has_selected_node: false,
            is_bound: false,
            may_start: true,
            may_complete: true,
        };
        assert_eq!(next_phase("", unbound), "WaitForFirstConsumer");
        let selected = Import { has_selected_node: true, ..unbound };
        assert_eq!(next_phase("WaitForFirstConsumer", selected), "WaitForFirstConsumer");
        let bound = Import { is_bound: true, ..selected };
        assert_eq!(next_phase("WaitForFirstConsumer", bound), "ImportScheduled");
        let stopped = Import { may_start: false, may_complete: false, ..bound };
        assert_eq!(next_phase("WaitForFirstConsumer", stopped), "WaitForFirstConsumer");
        assert_eq!(next_phase("ImportScheduled", stopped), "ImportInProgress");
        assert_eq!(next_phase("ImportInProgress", stopped), "ImportInProgress");
        assert_eq!(next_phase("ImportInProgress", bound), "Succeeded");
        let immediate = Import { waits_for_consumer: false, ..unbound };
        assert_eq!(next_phase("", immediate), "Pending");
        let populated = Import { uses_populator: true, ..unbound };
        assert_eq!(next_phase("", populated), "PendingPopulation");
        let populated = Import { has_selected_node: true, ..populated };
        assert_eq!(next_phase("PendingPopulation", populated), "ImportScheduled");
        assert_eq!(next_phase("ImportInProgress", populated), "ImportInProgress");
    }
}
