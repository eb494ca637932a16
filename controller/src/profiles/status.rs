//! What there is to say of profiles and hosts: conditions.

use std::collections::BTreeSet;

use berth_api::names::condition::{
    PROFILE_CONFLICT, PROFILE_INCOMPLETE, PROFILE_OVERRIDDEN, READY,
};
use berth_api::{ConditionReason, HostProfile, HostProfileStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::choice::{Choice, fault};
use super::fleet::{Fleet, name_of};
use super::spec::Wanted;

/// One thing to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    /// Type of the condition.
    pub type_: &'static str,
    /// `True`, `False` or `Unknown`.
    pub status: &'static str,
    /// Reason of the condition.
    pub reason: ConditionReason,
    /// A sentence for an operator.
    pub message: String,
}

/// Names that a message gives of many.
const FEW: usize = 8;

/// The condition that says so; its time changes only with its status. `now` is of whole seconds, as objects carry it.
#[must_use]
pub fn condition(
    said: &Said,
    before: &[Condition],
    generation: Option<i64>,
    now: &Time,
) -> Condition {
    let known = before.iter().find(|one| one.type_ == said.type_ && one.status == said.status);
    Condition {
        type_: said.type_.to_owned(),
        status: said.status.to_owned(),
        reason: said.reason.as_str().to_owned(),
        message: said.message.clone(),
        last_transition_time: known
            .map_or_else(|| now.clone(), |known| known.last_transition_time.clone()),
        observed_generation: generation,
    }
}

/// What became of a profile.
#[must_use]
pub fn profile_status(profile: &HostProfile, fleet: &Fleet, now: &Time) -> HostProfileStatus {
    let outcome = fleet.outcome(&name_of(profile));
    let (status, reason, message) = if let Some(fault) = fault(profile) {
        ("False", ConditionReason::InvalidSpec, fault)
    } else if outcome.ties.is_empty() {
        // Not empty, as servers before 1.21 make null of an empty text and then refuse it.
        ("True", ConditionReason::Applied, "hosts are asked to be as it says".to_owned())
    } else {
        let priority = profile.spec.priority;
        let tie = |(other, nodes): (&String, &BTreeSet<String>)| {
            format!(
                "HostProfile {other} has priority {priority} too and selects the same Nodes: {}",
                few(nodes)
            )
        };
        let ties: Vec<String> = outcome.ties.iter().take(FEW).map(tie).collect();
        (
            "False",
            ConditionReason::Conflict,
            format!("{}; neither is applied to them: give one a higher priority", ties.join("; ")),
        )
    };
    let said = Said { type_: READY, status, reason, message };
    let before =
        profile.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let generation = profile.metadata.generation;
    HostProfileStatus {
        observed_generation: generation,
        hosts: Some(outcome.hosts),
        conditions: vec![condition(&said, before, generation, now)],
    }
}

/// What there is to say of a host, beside what its agent says. Nothing while all is well.
#[must_use]
pub fn said_of_host(choice: &Choice, wanted: Option<&Wanted>) -> Vec<Said> {
    let mut all = Vec::new();
    if let Choice::Tie(profiles) = choice {
        let names: BTreeSet<String> = profiles.iter().map(|profile| name_of(profile)).collect();
        let priority = profiles.first().map(|profile| profile.spec.priority).unwrap_or_default();
        let message = format!(
            "HostProfiles {} select this Node with the same priority {priority}: none is applied, the host stays as it is",
            few(&names)
        );
        all.push(Said {
            type_: PROFILE_CONFLICT,
            status: "True",
            reason: ConditionReason::PriorityConflict,
            message,
        });
    }
    let Some(wanted) = wanted else { return all };
    if !wanted.overridden.is_empty() {
        let fields =
            wanted.overridden.iter().map(|(path, manager)| format!("spec.{path} ({manager})"));
        let message = format!(
            "others hold these fields with other values than the HostProfile's, which are left as they are: {}",
            few(&fields.collect())
        );
        all.push(Said {
            type_: PROFILE_OVERRIDDEN,
            status: "True",
            reason: ConditionReason::FieldsOwnedByOthers,
            message,
        });
    }
    if !wanted.incomplete.is_empty() {
        let message = wanted.incomplete.join("; ");
        all.push(Said {
            type_: PROFILE_INCOMPLETE,
            status: "True",
            reason: ConditionReason::PartiallyApplied,
            message,
        });
    }
    all
}

/// The first few, and how many more there are.
fn few(all: &BTreeSet<String>) -> String {
    let mut text = all.iter().take(FEW).cloned().collect::<Vec<_>>().join(", ");
    if all.len() > FEW {
        text.push_str(&format!(" and {} more", all.len() - FEW));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use berth_api::{HostProfileSpec, InfraNode, InfraNodeSpec};
    use k8s_openapi::api::core::v1::Node;
    use k8s_openapi::jiff::Timestamp;

    use super::super::fleet::Host;
    use super::*;

    fn at(second: i64) -> Time {
        Time(Timestamp::from_second(second).unwrap())
    }

    #[test]
    fn a_tie_is_said_on_both_and_its_time_stays() {
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
        let hosts = || nodes.iter().map(|node| Host { node, infra_node: Some(&agents) });
        let fleet = Fleet::of(&[Arc::new(p.clone()), q], hosts());
        let status = profile_status(&p, &fleet, &at(5));
        let ready = &status.conditions[0];
        assert_eq!(
            (ready.status.as_str(), ready.reason.as_str(), status.hosts),
            ("False", "Conflict", Some(0))
        );
        for words in ["HostProfile q", "priority 7", "n10, n11", "n17 and 2 more"] {
            assert!(ready.message.contains(words), "{words}: {}", ready.message);
        }
        let said = said_of_host(fleet.choice("n10"), None);
        assert!(said.len() == 1 && said[0].message.contains("p, q"), "{said:?}");
        // The same again later, and then the end of it.
        p.status = Some(status.clone());
        assert_eq!(profile_status(&p, &fleet, &at(9)), status);
        let fleet = Fleet::of(&[Arc::new(p.clone())], hosts());
        let status = profile_status(&p, &fleet, &at(9));
        assert_eq!((status.hosts, status.conditions[0].status.as_str()), (Some(10), "True"));
        assert_eq!(status.conditions[0].last_transition_time, at(9));
    }
}
