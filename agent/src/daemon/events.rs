//! Events of one cycle. A cycle emits one Event for each reason, and a problem that lasts causes an Event only once.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::EventReason;
use berth_api::infra_node::ChangeResult;

use crate::apply::Outcome;
use crate::cluster::CycleEvent;
use crate::manifest::Fault;
use crate::plan::{Change, ChangeId};

/// Problems that still exist and whose Events were emitted.
#[derive(Debug, Default)]
pub(super) struct EventLog(BTreeSet<EmittedProblem>);

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct EmittedProblem {
    reason: EventReason,
    /// The change; `None` for a fault in the spec.
    change: Option<ChangeId>,
    sentence: String,
}

impl EventLog {
    /// Returns the events for new outcomes and faults. `pending` contains the changes that are still pending.
    pub(super) fn new_events(
        &mut self,
        outcomes: &[Outcome],
        faults: &[Fault],
        pending: &[Change],
    ) -> Vec<CycleEvent> {
        let mut new: BTreeMap<EventReason, Vec<String>> = BTreeMap::new();
        let mut unresolved = BTreeSet::new();
        for outcome in outcomes {
            let reason = match outcome.result {
                ChangeResult::Done if outcome.drift => EventReason::DriftCorrected,
                ChangeResult::Done => EventReason::Applied,
                ChangeResult::Partial => EventReason::PartiallyApplied,
                ChangeResult::Failed => EventReason::ChangeFailed,
                ChangeResult::Blocked => EventReason::ChangeBlocked,
            };
            let message = outcome
                .message
                .as_deref()
                .map(|message| format!(": {message}"))
                .unwrap_or_default();
            let sentence = format!("{}{message}", outcome.what);
            if outcome.result == ChangeResult::Done {
                // KubeVirt emits Events about VMs. With an Event for each VM that starts, a host on which VMs start all
                // the time would exceed the rate limit.
                if outcome.drift || !outcome.id.follows_from_vms() {
                    new.entry(reason).or_default().push(sentence);
                }
            } else {
                unresolved.insert(EmittedProblem {
                    reason,
                    change: Some(outcome.id.clone()),
                    sentence,
                });
            }
        }
        unresolved.extend(faults.iter().map(|fault| EmittedProblem {
            reason: EventReason::InvalidSpec,
            change: None,
            sentence: fault.to_string(),
        }));
        for problem in unresolved.difference(&self.0) {
            new.entry(problem.reason).or_default().push(problem.sentence.clone());
        }
        // A failed change is retried with backoff, so a cycle may have no outcome for it; blocked changes and
        // faults appear in every cycle.
        let pending_ids: BTreeSet<&ChangeId> = pending.iter().map(|change| &change.id).collect();
        self.0.retain(|problem| {
            matches!(problem.reason, EventReason::ChangeFailed | EventReason::PartiallyApplied)
                && problem.change.as_ref().is_some_and(|change| pending_ids.contains(change))
        });
        self.0.extend(unresolved);
        new.into_iter().map(|(reason, sentences)| CycleEvent { reason, sentences }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::network::id::LinkChangeId;

    #[test]
    fn updates_of_leases_are_emitted_only_if_they_fail() {
        let mut log = EventLog::default();
        let mut reasons = |result: ChangeResult| {
            let id = ChangeId::Links(LinkChangeId::UpdateLeases);
            let what = id.to_string();
            let outcome = Outcome { id, what, result, message: None, drift: false };
            let events = log.new_events(&[outcome], &[], &[]);
            events.into_iter().map(|event| event.reason).collect::<Vec<_>>()
        };
        assert_eq!(reasons(ChangeResult::Done), []);
        assert_eq!(reasons(ChangeResult::Failed), [EventReason::ChangeFailed]);
        assert_eq!(reasons(ChangeResult::Done), []);
    }

    fn outcome_with_description(description: &str, result: ChangeResult, drift: bool) -> Outcome {
        let id = ChangeId::Links(LinkChangeId::SetUp(description.parse().unwrap()));
        Outcome { id, what: description.to_owned(), result, message: None, drift }
    }

    #[test]
    fn a_lasting_problem_is_emitted_once_and_an_applied_change_each_time() {
        let mut log = EventLog::default();
        let blocked = outcome_with_description("a", ChangeResult::Blocked, false);
        let corrected = outcome_with_description("b", ChangeResult::Done, true);
        let mut reasons = |outcomes: &[Outcome]| {
            let events = log.new_events(outcomes, &[], &[]);
            events.into_iter().map(|event| event.reason).collect::<Vec<_>>()
        };
        assert_eq!(
            reasons(&[blocked.clone(), corrected.clone()]),
            [EventReason::DriftCorrected, EventReason::ChangeBlocked]
        );
        assert_eq!(reasons(&[blocked.clone(), corrected]), [EventReason::DriftCorrected]);
        assert_eq!(reasons(&[]), []);
        assert_eq!(reasons(&[blocked]), [EventReason::ChangeBlocked]);
    }
}
