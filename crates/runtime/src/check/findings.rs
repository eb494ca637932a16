//! Findings: the checks that ran, with their outcomes.

use serde::Serialize;

use super::definition::Check;
use super::outcome::{Outcome, Status};

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
    /// Findings, in the order in which the checks are defined.
    pub checks: Vec<Finding>,
}

impl Findings {
    /// Runs the checks. `run` must call the function of a check with the input that the function needs.
    pub fn collect<F>(checks: &[Check<F>], run: impl Fn(&F) -> Outcome) -> Self {
        let finding = |check: &Check<F>| Finding {
            id: check.id,
            title: check.title,
            outcome: run(&check.run),
        };
        let checks: Vec<Finding> = checks.iter().map(finding).collect();
        let count =
            |status| checks.iter().filter(|finding| finding.outcome.status == status).count();
        let summary = Summary {
            pass: count(Status::Pass),
            warn: count(Status::Warn),
            fail: count(Status::Fail),
            skip: count(Status::Skip),
            unread: checks.iter().filter(|finding| finding.outcome.unread).count(),
        };
        Self { summary, checks }
    }
}

/// Number of checks by status.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Number of checks that passed.
    pub pass: usize,
    /// Number of checks with a warning.
    pub warn: usize,
    /// Number of checks that failed.
    pub fail: usize,
    /// Number of checks that were skipped.
    pub skip: usize,
    /// Number of checks that were skipped because files or objects could not be read. They are also included in `skip`.
    #[serde(skip_serializing_if = "is_zero")]
    pub unread: usize,
}

const fn is_zero(number: &usize) -> bool {
    *number == 0
}
