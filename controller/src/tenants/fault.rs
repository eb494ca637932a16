//! Fault of a part of a tenant, from which a condition and an Event are created.

use berth_api::ConditionReason;

/// Reason why a part of a tenant is not ready, and the message of its condition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Fault {
    /// Reason of the condition and of the Event.
    pub reason: ConditionReason,
    /// Message, which names the object, the field, the value and the remedy.
    pub message: String,
}

impl Fault {
    #[must_use]
    pub const fn new(reason: ConditionReason, message: String) -> Self {
        Self { reason, message }
    }
}

/// Joins the first `limit` texts, and appends the number of the remaining texts.
#[must_use]
pub fn join_first(all: &[String], limit: usize, separator: &str) -> String {
    let joined = all.iter().take(limit).map(String::as_str).collect::<Vec<_>>().join(separator);
    match all.len().saturating_sub(limit) {
        0 => joined,
        more => format!("{joined}{separator}and {more} more"),
    }
}

/// Joins the first four names of a list, and appends the number of the remaining names.
#[must_use]
pub fn join_names_limited(all: &[String]) -> String {
    const MAX_NAMES: usize = 4;
    let joined = all.iter().take(MAX_NAMES).cloned().collect::<Vec<_>>().join(", ");
    match all.len().saturating_sub(MAX_NAMES) {
        0 => joined,
        more => format!("{joined} and {more} more"),
    }
}
