//! Conditions of HostProfiles and InfraNodes.

use std::collections::BTreeSet;

use berth_api::names::condition::{
    PROFILE_CONFLICT, PROFILE_INCOMPLETE, PROFILE_OVERRIDDEN, READY,
};
use berth_api::{Condition, Time};
use berth_api::{ConditionReason, HostProfile, HostProfileStatus};

use super::resolved::{ResolvedProfiles, profile_name};
use super::selection::{Selection, ineligibility_reason};
use super::spec::DesiredInfraNode;

/// A condition to be set in a status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConditionUpdate {
    pub type_: &'static str,
    /// `True`, `False` or `Unknown`.
    pub status: &'static str,
    pub reason: ConditionReason,
    /// Message for an operator, in one sentence.
    pub message: String,
}

/// Maximum number of names that a message lists.
const MAX_NAMES: usize = 8;

/// Returns the condition for the status. `lastTransitionTime` changes only when the status of the condition changes.
/// `now` must be in whole seconds, because times in objects have no fractions.
#[must_use]
pub fn new_condition(
    update: &ConditionUpdate,
    before: &[Condition],
    generation: Option<i64>,
    now: &Time,
) -> Condition {
    let known = before.iter().find(|one| one.type_ == update.type_ && one.status == update.status);
    Condition {
        type_: update.type_.to_owned(),
        status: update.status.to_owned(),
        reason: update.reason.as_str().to_owned(),
        message: update.message.clone(),
        last_transition_time: known.map_or_else(|| *now, |known| known.last_transition_time),
        observed_generation: generation,
    }
}

#[must_use]
pub fn profile_status(
    profile: &HostProfile,
    resolved: &ResolvedProfiles,
    now: &Time,
) -> HostProfileStatus {
    let outcome = resolved.outcome(&profile_name(profile));
    let (status, reason, message) = if let Some(fault) = ineligibility_reason(profile) {
        ("False", ConditionReason::InvalidSpec, fault)
    } else if outcome.ties.is_empty() {
        // The message must not be empty: API servers before 1.21 turn an empty string into null, and then reject
        // null.
        (
            "True",
            ConditionReason::Applied,
            "the profile is applied to the InfraNodes that it selects".to_owned(),
        )
    } else {
        let priority = profile.spec.priority;
        let tie = |(other, nodes): (&String, &BTreeSet<String>)| {
            format!(
                "HostProfile {other} also has priority {priority} and selects the same Nodes: {}",
                join_names(nodes)
            )
        };
        let ties: Vec<String> = outcome.ties.iter().take(MAX_NAMES).map(tie).collect();
        (
            "False",
            ConditionReason::Conflict,
            format!(
                "{}; neither profile is applied to them: increase the priority of one profile",
                ties.join("; ")
            ),
        )
    };
    let update = ConditionUpdate { type_: READY, status, reason, message };
    let before =
        profile.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let generation = profile.metadata.generation;
    HostProfileStatus {
        observed_generation: generation,
        hosts: Some(outcome.hosts),
        conditions: vec![new_condition(&update, before, generation, now)],
    }
}

/// Returns the conditions that the controller sets on an InfraNode; empty if the profile is applied completely.
#[must_use]
pub fn host_conditions(
    selection: &Selection,
    desired: Option<&DesiredInfraNode>,
) -> Vec<ConditionUpdate> {
    let mut all = Vec::new();
    if let Selection::Tie(profiles) = selection {
        let names: BTreeSet<String> =
            profiles.iter().map(|profile| profile_name(profile)).collect();
        let priority = profiles.first().map(|profile| profile.spec.priority).unwrap_or_default();
        let message = format!(
            "HostProfiles {} select this Node with the same priority {priority}: none of them is \
             applied, and the host is not changed",
            join_names(&names)
        );
        all.push(ConditionUpdate {
            type_: PROFILE_CONFLICT,
            status: "True",
            reason: ConditionReason::PriorityConflict,
            message,
        });
    }
    let Some(desired) = desired else { return all };
    if !desired.overridden.is_empty() {
        let fields =
            desired.overridden.iter().map(|(path, manager)| format!("spec.{path} ({manager})"));
        let message = format!(
            "other field managers own these fields with values that differ from the HostProfile, so they are not changed: {}",
            join_names(&fields.collect())
        );
        all.push(ConditionUpdate {
            type_: PROFILE_OVERRIDDEN,
            status: "True",
            reason: ConditionReason::FieldsOwnedByOthers,
            message,
        });
    }
    if !desired.incomplete.is_empty() {
        let message = desired.incomplete.join("; ");
        all.push(ConditionUpdate {
            type_: PROFILE_INCOMPLETE,
            status: "True",
            reason: ConditionReason::PartiallyApplied,
            message,
        });
    }
    all
}

/// Joins the first [`MAX_NAMES`] names, and appends the number of the other names.
fn join_names(all: &BTreeSet<String>) -> String {
    let mut text = all.iter().take(MAX_NAMES).cloned().collect::<Vec<_>>().join(", ");
    if all.len() > MAX_NAMES {
        text.push_str(&format!(" and {} more", all.len() - MAX_NAMES));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use berth_api::{HostProfileSpec, InfraNode, InfraNodeSpec};
    use k8s_openapi::api::core::v1::Node;
    use k8s_openapi::jiff::Timestamp;

    use super::super::resolved::HostObjects;
    use super::*;

    fn time_at(second: i64) -> Time {
        Time(Timestamp::from_second(second).unwrap())
    }

    #[test]
    fn a_tie_is_reported_on_both_profiles_and_keeps_its_time() {
        let profile = |name: &str| {
            let spec = HostProfileSpec { priority: 7, ..HostProfileSpec::default() };
            Arc::new(HostProfile::new(name, spec))
        };
        let (mut p, q) = ((*profile("p")).clone(), profile("q"));
        let mut node = Node::default();
        let agents = InfraNode::new("a", InfraNodeSpec::default());
        let mut nodes = Vec::new();
        for number in 10..20 {
            node.metadata.name = Some(format!("n{number}"));
            nodes.push(node.clone());
        }
        let hosts = || nodes.iter().map(|node| HostObjects { node, infra_node: Some(&agents) });
        let resolved = ResolvedProfiles::new(&[Arc::new(p.clone()), q], hosts());
        let status = profile_status(&p, &resolved, &time_at(5));
        let ready = &status.conditions[0];
        assert_eq!(
            (ready.status.as_str(), ready.reason.as_str(), status.hosts),
            ("False", "Conflict", Some(0))
        );
        for words in ["HostProfile q", "priority 7", "n10, n11", "n17 and 2 more"] {
            assert!(ready.message.contains(words), "{words}: {}", ready.message);
        }
        let updates = host_conditions(resolved.selection("n10"), None);
        assert!(updates.len() == 1 && updates[0].message.contains("p, q"), "{updates:?}");
        // At a later time, an unchanged status keeps its transition time. Then the conflict is resolved, and the time
        // changes.
        p.status = Some(status.clone());
        assert_eq!(profile_status(&p, &resolved, &time_at(9)), status);
        let resolved = ResolvedProfiles::new(&[Arc::new(p.clone())], hosts());
        let status = profile_status(&p, &resolved, &time_at(9));
        assert_eq!((status.hosts, status.conditions[0].status.as_str()), (Some(10), "True"));
        assert_eq!(status.conditions[0].last_transition_time, time_at(9));
    }
}
