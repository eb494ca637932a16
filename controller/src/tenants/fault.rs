//! Fault of a part of a tenant, for the condition and the event.

use berth_api::ConditionReason;

/// Reason of a failed condition, and its message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Fault {
    /// Reason of the condition and of the event.
    pub reason: ConditionReason,
    /// Message with object, field, value and remedy.
    pub message: String,
}

impl Fault {
    /// Returns a fault with this reason and message.
    #[must_use]
    pub const fn new(reason: ConditionReason, message: String) -> Self {
        Self { reason, message }
    }
}

/// Formats the first entries of a list, and the number of the remaining entries.
#[must_use]
pub fn join_names_limited(all: &[String]) -> String {
    const NAMED: usize = 4;
    let named = all.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    match all.len().saturating_sub(NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}
