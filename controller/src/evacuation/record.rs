//! Status of one evacuation, as an annotation of the VirtualMachine. The times survive a restart of the controller.

use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::decide::Decision;
use super::reason::EvacuationReason;

/// Maximum length of a message, in characters.
const MAX_MESSAGE_LENGTH: usize = 400;

/// Record of a waiting machine: reason, start and latest end of the wait.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvacuationRecord {
    /// Host that the machine must leave.
    pub host: String,
    /// Name of the reason.
    pub reason: String,
    /// Time since which the machine waits for this reason.
    pub since: String,
    /// Time at which the next step happens at the latest, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    /// True if the machine needs an operator, or its removal does not proceed.
    #[serde(default, rename = "blocked", skip_serializing_if = "std::ops::Not::not")]
    pub is_blocked: bool,
    /// Description of the reason.
    pub message: String,
}

impl EvacuationRecord {
    /// Returns the record after a decision. `before` is the previous record.
    #[must_use]
    pub fn new(before: Option<&Self>, host: &str, decision: &Decision, now: Timestamp) -> Self {
        let reason = decision.reason.as_str();
        let known = before.filter(|before| before.host == host && before.reason == reason);
        // After a restart, the report of a removal is not known at once. Until then, the previous record is kept.
        let is_unknown = matches!(decision.reason, EvacuationReason::BeingRemoved(_, None));
        if let Some(known) = known.filter(|_| is_unknown) {
            return known.clone();
        }
        Self {
            host: host.to_owned(),
            reason: reason.to_owned(),
            since: known.map_or_else(|| now.to_string(), |known| known.since.clone()),
            until: decision.until.map(|until| until.to_string()),
            is_blocked: decision.reason.is_blocked(),
            message: decision.reason.to_string().chars().take(MAX_MESSAGE_LENGTH).collect(),
        }
    }

    /// Parses the annotation; `None` if it is malformed.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// Returns the value of the annotation.
    #[must_use]
    pub fn render(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use berth_api::ConditionReason;

    use super::super::decide::Action;
    use super::*;
    use crate::removal::mark::{RemovalMark, RemovalReason};
    use crate::removal::report::RemovalReport;

    #[test]
    fn a_blocked_drain_is_in_the_record() {
        let at = |seconds| Timestamp::from_second(seconds).unwrap();
        let report = RemovalReport {
            reason: ConditionReason::DrainBlocked,
            removal: RemovalMark::new(RemovalReason::HostDrain, at(10)),
            deadline: at(7_210),
            message: "pod shop/web-1: PodDisruptionBudget web permits no eviction".to_owned(),
        };
        let record = |before, report: Option<RemovalReport>| {
            let until = report.as_ref().map(|report| report.deadline);
            let reason = EvacuationReason::BeingRemoved("HostDrain".to_owned(), report);
            let decision = Decision { action: Action::Wait, reason, until };
            EvacuationRecord::new(before, "a", &decision, at(20))
        };
        let blocked = record(None, Some(report));
        assert_eq!(
            blocked.message,
            "the machine is being drained and deleted (HostDrain), DrainBlocked: pod shop/web-1: \
             PodDisruptionBudget web permits no eviction"
        );
        assert_eq!(
            (blocked.is_blocked, blocked.until.clone()),
            (true, Some(at(7_210).to_string()))
        );
        assert!(blocked.render().contains("\"blocked\":true"), "{}", blocked.render());
        // The controller has restarted.
        assert_eq!(record(Some(&blocked), None), blocked);
        assert!(!record(None, None).is_blocked);
    }

    #[test]
    fn time_stays_as_long_as_the_reason() {
        let at = |seconds| Timestamp::from_second(seconds).unwrap();
        let decision = |reason| Decision { action: Action::Wait, reason, until: Some(at(90)) };
        let first = decision(EvacuationReason::MigrationRefused("quota".to_owned()));
        let before = EvacuationRecord::new(None, "a", &first, at(10));
        let parsed = EvacuationRecord::parse(&before.render()).unwrap();
        assert_eq!(parsed, before);
        let second = decision(EvacuationReason::MigrationRefused("another quota".to_owned()));
        let after = EvacuationRecord::new(Some(&parsed), "a", &second, at(20));
        assert_eq!((&after.since, after.message == before.message), (&before.since, false));
        let moved = EvacuationRecord::new(Some(&parsed), "b", &second, at(20));
        assert_eq!(moved.since, at(20).to_string());
        assert_eq!(EvacuationRecord::parse("{\"host\": 7}"), None);
    }
}
