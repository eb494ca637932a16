//! Definition of a check: its stable ID, title, explanation and function.

use serde::Serialize;

use super::input::Input;
use super::outcome::Outcome;

/// A check.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Check {
    /// Stable name, `group.name`.
    pub id: &'static str,
    /// Short description of the property that the check verifies.
    pub title: &'static str,
    /// Reason for the check and meaning of its results.
    pub explanation: &'static str,
    #[serde(skip)]
    pub(super) run: fn(&Input) -> Outcome,
}
