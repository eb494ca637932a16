//! What comes out of a check.

use serde::Serialize;

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Status {
    /// Fine.
    Pass,
    /// VMs run, but something will hurt.
    Warn,
    /// VMs do not run, or the kubelet will not start.
    Fail,
    /// Could not be checked here, or does not apply; the message says which.
    Skip,
}

/// A file or object, and what it says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Evidence {
    /// Where it was seen.
    pub path: String,
    /// What was seen.
    pub value: String,
}

/// The outcome of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// How it came out.
    pub status: Status,
    /// One sentence.
    pub message: String,
    /// What the judgement rests on.
    pub evidence: Vec<Evidence>,
    /// Commands or steps a person can paste or follow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Outcome {
    /// Fine.
    pub fn pass(message: impl Into<String>) -> Self {
        Self::new(Status::Pass, message)
    }

    /// To be looked at.
    pub fn warn(message: impl Into<String>) -> Self {
        Self::new(Status::Warn, message)
    }

    /// Stands in the way.
    pub fn fail(message: impl Into<String>) -> Self {
        Self::new(Status::Fail, message)
    }

    /// Not checked.
    pub fn skip(message: impl Into<String>) -> Self {
        Self::new(Status::Skip, message)
    }

    fn new(status: Status, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), evidence: Vec::new(), remedy: None }
    }

    /// Adds a piece of evidence.
    #[must_use]
    pub fn because(mut self, path: impl Into<String>, value: impl ToString) -> Self {
        let value = value.to_string();
        let value = if value.is_empty() { "(empty)".to_owned() } else { value };
        self.evidence.push(Evidence { path: path.into(), value });
        self
    }

    /// Says what to do.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }
}
