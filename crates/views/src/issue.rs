//! Conditions of Berth's objects, and those of them that are not healthy, with remedies.

use std::fmt;

use berth_api::names::condition;
use berth_api::{Condition, ConditionReason, Time};
use serde::Serialize;

use crate::remedy::remedy;

/// Status of a condition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum ConditionState {
    True,
    False,
    /// Unknown, or a value that Kubernetes does not define.
    #[default]
    Unknown,
}

impl ConditionState {
    /// Parses the field `status` of a condition.
    #[must_use]
    pub fn parse(status: &str) -> Self {
        match status {
            "True" => Self::True,
            "False" => Self::False,
            _ => Self::Unknown,
        }
    }
}

impl fmt::Display for ConditionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        };
        f.pad(text)
    }
}

/// Severity of a state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Severity {
    /// Healthy.
    #[default]
    Ok,
    /// In progress, or a limitation that stops no VM.
    Warning,
    /// VMs cannot run, or an operator must act.
    Failure,
}

/// A condition of an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConditionRow {
    #[serde(rename = "type")]
    pub type_: String,
    pub status: ConditionState,
    pub reason: String,
    pub message: String,
    pub severity: Severity,
    pub since: Time,
    /// Action that an operator can take; `None` if the condition is healthy, or if no action is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// Something that is not healthy, with its remedy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Issue {
    pub severity: Severity,
    /// Type of the condition, or the name of another source, such as `Node`.
    pub source: String,
    pub reason: String,
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// Conditions that are healthy while they are absent or `False`.
const ABNORMAL_WHEN_TRUE: [&str; 6] = [
    condition::ADDRESS_CONFLICT,
    condition::DRAINING,
    condition::HOST_LOST,
    condition::PROFILE_CONFLICT,
    condition::PROFILE_INCOMPLETE,
    condition::PROFILE_OVERRIDDEN,
];

impl ConditionRow {
    /// Describes a condition of one of Berth's objects.
    #[must_use]
    pub fn new(condition: &Condition) -> Self {
        let status = ConditionState::parse(&condition.status);
        let severity = severity(&condition.type_, status);
        let reason = condition.reason.parse::<ConditionReason>().ok();
        // A condition may be healthy, and nevertheless have a reason with a remedy: a certificate that expires soon.
        let is_hint = reason == Some(ConditionReason::ExpiresSoon);
        let severity = if is_hint { severity.max(Severity::Warning) } else { severity };
        Self {
            type_: condition.type_.clone(),
            status,
            reason: condition.reason.clone(),
            message: condition.message.clone(),
            severity,
            since: condition.last_transition_time,
            remedy: reason.filter(|_| severity != Severity::Ok).and_then(remedy).map(str::to_owned),
        }
    }

    /// Returns the issue; `None` if the condition is healthy.
    #[must_use]
    pub fn issue(&self) -> Option<Issue> {
        (self.severity != Severity::Ok).then(|| Issue {
            severity: self.severity,
            source: self.type_.clone(),
            reason: self.reason.clone(),
            message: self.message.clone(),
            remedy: self.remedy.clone(),
        })
    }
}

fn severity(type_: &str, status: ConditionState) -> Severity {
    if ABNORMAL_WHEN_TRUE.contains(&type_) {
        let is_failure = [condition::HOST_LOST, condition::ADDRESS_CONFLICT].contains(&type_);
        return match status {
            ConditionState::False => Severity::Ok,
            ConditionState::True if is_failure => Severity::Failure,
            ConditionState::True | ConditionState::Unknown => Severity::Warning,
        };
    }
    match status {
        ConditionState::True => Severity::Ok,
        ConditionState::False => Severity::Failure,
        ConditionState::Unknown => Severity::Warning,
    }
}

/// Returns the conditions of an object, the most severe first.
#[must_use]
pub fn condition_rows(conditions: &[Condition]) -> Vec<ConditionRow> {
    let mut rows: Vec<ConditionRow> = conditions.iter().map(ConditionRow::new).collect();
    rows.sort_by(|a, b| b.severity.cmp(&a.severity).then_with(|| a.type_.cmp(&b.type_)));
    rows
}

/// Returns the issues of an object, the most severe first. The condition Ready is left out if another condition explains
/// it.
#[must_use]
pub fn issues(rows: &[ConditionRow]) -> Vec<Issue> {
    let mut issues: Vec<Issue> = rows.iter().filter_map(ConditionRow::issue).collect();
    let is_ready = |issue: &Issue| issue.source == condition::READY;
    let explains = |issue: &Issue| !is_ready(issue) && issue.severity == Severity::Failure;
    if issues.iter().any(explains) {
        issues.retain(|issue| !is_ready(issue));
    }
    issues
}
