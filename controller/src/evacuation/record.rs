//! Status of one evacuation, as an annotation of the VirtualMachine. The times survive a restart of the controller.

use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::decide::Decision;

/// Maximum length of a message, in characters.
const MAX_MESSAGE_LENGTH: usize = 400;

/// What a machine waits for, since when and until when.
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
    /// Description of the reason.
    pub message: String,
}

impl EvacuationRecord {
    /// Returns the record after a decision. `before` is the previous record.
    #[must_use]
    pub fn new(before: Option<&Self>, host: &str, decision: &Decision, now: Timestamp) -> Self {
        let reason = decision.reason.as_str();
        let known = before.filter(|before| before.host == host && before.reason == reason);
        Self {
            host: host.to_owned(),
            reason: reason.to_owned(),
            since: known.map_or_else(|| now.to_string(), |known| known.since.clone()),
            until: decision.until.map(|until| until.to_string()),
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
    use super::super::decide::Action;
    use super::super::reason::EvacuationReason;
    use super::*;

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
