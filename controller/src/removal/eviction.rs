//! Answers of tenants' API servers to requests of the eviction API. Messages contain no text of these answers, except
//! for the name of a PodDisruptionBudget and the explanation of a refusal.

use std::fmt;

use berth_runtime::object_name::is_valid_name;
use berth_runtime::untrusted::{BoundedVec, Explanation};
use serde::Deserialize;

/// Type of the cause in an answer that names a PodDisruptionBudget.
const BUDGET_CAUSE: &str = "DisruptionBudget";
/// Beginning of the message, before the name of the PodDisruptionBudget, since Kubernetes 1.8
/// (`pkg/registry/core/pod/storage/eviction.go`).
const BUDGET_MESSAGE_PREFIX: &str = "The disruption budget ";
/// Maximum number of causes of an answer that are read.
const MAX_CAUSES: usize = 16;

/// Result of the eviction of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EvictionOutcome {
    /// The API server accepted the eviction, or the pod does not exist any more.
    Accepted,
    /// A PodDisruptionBudget does not permit the eviction now. The value is its name, if it is known.
    Budget(Option<String>),
    /// The API server refused the eviction with this HTTP status and explanation, because of a webhook, a missing
    /// permission, or several PodDisruptionBudgets that select the pod.
    Refused(u16, Explanation),
    /// The API server accepts no requests now.
    Busy,
}

impl fmt::Display for EvictionOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accepted => f.write_str("is stopping"),
            Self::Budget(Some(name)) => write!(f, "PodDisruptionBudget {name} permits no eviction"),
            Self::Budget(None) => f.write_str("a PodDisruptionBudget permits no eviction"),
            Self::Refused(code, explanation) => write!(
                f,
                "the eviction is refused with HTTP status {code}{explanation}; possible causes: \
                 a webhook, a missing permission, several PodDisruptionBudgets"
            ),
            Self::Busy => f.write_str("the API server is busy"),
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    details: Option<Details>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Details {
    causes: Option<BoundedVec<Cause, MAX_CAUSES>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Cause {
    reason: String,
    message: String,
}

/// Returns the outcome for an answer with this HTTP status and body. `explain` returns the explanation in the body.
#[must_use]
pub fn eviction_outcome(
    code: u16,
    body: &[u8],
    explain: impl FnOnce() -> Explanation,
) -> EvictionOutcome {
    match code {
        200..=299 => EvictionOutcome::Accepted,
        // A conflict: a pod with another UID has the name, so the pod does not exist any more.
        404 | 409 => EvictionOutcome::Accepted,
        429 => {
            let status: Status = serde_json::from_slice(body).unwrap_or_default();
            let causes = status.details.and_then(|details| details.causes).unwrap_or_default();
            let budget = causes.items.iter().find(|cause| cause.reason == BUDGET_CAUSE);
            budget.map_or(EvictionOutcome::Busy, |cause| {
                EvictionOutcome::Budget(budget_name(&cause.message))
            })
        }
        503 | 504 => EvictionOutcome::Busy,
        code => EvictionOutcome::Refused(code, explain()),
    }
}

/// Returns the name of the PodDisruptionBudget in the text of a cause.
fn budget_name(text: &str) -> Option<String> {
    let name = text.strip_prefix(BUDGET_MESSAGE_PREFIX)?.split(' ').next()?;
    is_valid_name(name).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn outcome(code: u16, reason: &str, message: &str) -> EvictionOutcome {
        let body = json!({
            "kind": "Status", "code": code, "message": "Cannot evict pod",
            "details": {"causes": [{"reason": reason, "message": message}]},
        });
        eviction_outcome(code, body.to_string().as_bytes(), Explanation::default)
    }

    #[test]
    fn a_budget_is_named() {
        let words = "The disruption budget web needs 2 healthy pods and has 2 currently";
        let named = outcome(429, BUDGET_CAUSE, words);
        assert_eq!(named, EvictionOutcome::Budget(Some("web".to_owned())));
        let pending = "The disruption budget web is still being processed by the server.";
        assert_eq!(outcome(429, BUDGET_CAUSE, pending), named);
        let hostile = "The disruption budget \u{1b}[31m/../ needs";
        assert_eq!(outcome(429, BUDGET_CAUSE, hostile), EvictionOutcome::Budget(None));
        assert_eq!(outcome(429, "Other", words), EvictionOutcome::Busy);
        let malformed = eviction_outcome(429, b"<html>", Explanation::default);
        assert_eq!(malformed, EvictionOutcome::Busy);
    }

    #[test]
    fn other_answers_are_classified() {
        for (code, expected) in [
            (201, EvictionOutcome::Accepted),
            (404, EvictionOutcome::Accepted),
            (409, EvictionOutcome::Accepted),
            (403, EvictionOutcome::Refused(403, Explanation::default())),
            (500, EvictionOutcome::Refused(500, Explanation::default())),
            (503, EvictionOutcome::Busy),
        ] {
            assert_eq!(outcome(code, "", ""), expected);
        }
    }

    proptest! {
        #[test]
        fn any_answer_has_an_outcome(code in 100_u16..600, body in "\\PC{0,80}") {
            drop(eviction_outcome(code, body.as_bytes(), Explanation::default).to_string());
        }
    }
}
