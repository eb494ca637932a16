//! Findings: the checks that ran, with their outcomes.

use serde::Serialize;

use super::outcome::Outcome;

/// A check with its outcome, as `check --output json` prints it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The check's stable id.
    pub id: &'static str,
    /// Title of the check.
    pub title: &'static str,
    /// Outcome of the check.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// Findings of all checks that ran.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Findings {
    /// Number of checks by status.
    pub summary: Summary,
    /// Findings, in the order of the list of checks.
    pub checks: Vec<Finding>,
}

/// Number of checks by status.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Passed.
    pub pass: usize,
    /// Warnings.
    pub warn: usize,
    /// Failed.
    pub fail: usize,
    /// Skipped.
    pub skip: usize,
}
