//! Result of a comparison of two settings of a tenant, for a condition that is not a part of `Ready`.

use berth_api::ConditionReason;

/// Status, reason and message of the condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// `True`, `False` or `Unknown`.
    pub status: &'static str,
    pub reason: ConditionReason,
    /// Message of the condition.
    pub message: String,
}
