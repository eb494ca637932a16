//! Outcome of a check.

use serde::Serialize;

use crate::cli::text::to_single_line;

/// Maximum number of characters of a message, of a path, and of a value. Without a limit, an object's value could have
/// any length.
const MAX_TEXT_CHARS: usize = 500;

/// Status of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Status {
    /// No problem was found.
    Pass,
    /// VMs can run, but with a disadvantage.
    Warn,
    /// VMs cannot run, a kubelet will not start, or tenants are not isolated.
    Fail,
    /// The check is not possible in this environment, or does not apply; the message contains the reason.
    Skip,
}

/// A file or object and its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Evidence {
    /// Path of the file, or name of the object.
    pub path: String,
    /// Value of the file or object.
    pub value: String,
}

/// The outcome of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// Status of the check.
    pub status: Status,
    /// Result in one sentence.
    pub message: String,
    /// Files and objects from which the status was derived.
    pub evidence: Vec<Evidence>,
    /// Commands or steps that solve the problem; `None` if there is no problem or no known solution.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// True if the check was skipped because its files or objects could not be read. False if the check does not apply.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unread: bool,
}

impl Outcome {
    /// Returns an outcome with the status [`Status::Pass`].
    pub fn pass(message: impl Into<String>) -> Self {
        Self::new(Status::Pass, message)
    }

    /// Returns an outcome with the status [`Status::Warn`].
    pub fn warn(message: impl Into<String>) -> Self {
        Self::new(Status::Warn, message)
    }

    /// Returns an outcome with the status [`Status::Fail`].
    pub fn fail(message: impl Into<String>) -> Self {
        Self::new(Status::Fail, message)
    }

    /// Returns an outcome with the status [`Status::Skip`].
    pub fn skip(message: impl Into<String>) -> Self {
        Self::new(Status::Skip, message)
    }

    /// Returns the outcome of a check that was skipped because its files or objects could not be read.
    pub fn unread(message: impl Into<String>) -> Self {
        Self { unread: true, ..Self::skip(message) }
    }

    fn new(status: Status, message: impl Into<String>) -> Self {
        let message = shorten(&message.into());
        Self { status, message, evidence: Vec::new(), remedy: None, unread: false }
    }

    /// Adds a piece of evidence.
    #[must_use]
    pub fn with_evidence(mut self, path: impl Into<String>, value: impl ToString) -> Self {
        let value = shorten(&value.to_string());
        let value = if value.is_empty() { "(empty)".to_owned() } else { value };
        self.evidence.push(Evidence { path: shorten(&path.into()), value });
        self
    }

    /// Sets the remedy.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(to_single_line(&remedy.into()));
        self
    }
}

/// Returns the beginning of a text, on one line. Control characters are replaced, because terminals would interpret
/// them.
fn shorten(text: &str) -> String {
    let line = to_single_line(text);
    if line.chars().nth(MAX_TEXT_CHARS).is_none() {
        return line;
    }
    line.chars().take(MAX_TEXT_CHARS).chain("...".chars()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_objects_are_short_and_have_no_control_characters() {
        let outcome = Outcome::warn("a\nb\u{1b}[2J")
            .with_evidence("path\u{7f}", "\u{9f}c\r\n")
            .with_evidence("long", "é".repeat(501))
            .with_evidence("longest", "é".repeat(500))
            .with_evidence("none", "")
            .remedy("x\u{80}\ny");
        assert_eq!(outcome.message, "a b\u{fffd}[2J");
        assert_eq!(outcome.evidence[0].path, "path\u{fffd}");
        assert_eq!(outcome.evidence[0].value, "\u{fffd}c\u{fffd} ");
        assert_eq!(outcome.evidence[1].value, "é".repeat(500) + "...");
        assert_eq!(outcome.evidence[2].value, "é".repeat(500));
        assert_eq!(outcome.evidence[3].value, "(empty)");
        assert_eq!(outcome.remedy.as_deref(), Some("x\u{fffd} y"));
    }
}
