//! What is wrong with an object, so that whoever wrote it can find it; the others are gone on with.

use std::fmt;

/// Something wrong with one object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    /// Kind and name: `InfraNode rack1-a`, `VirtualMachine cluster-abc/web-1`.
    pub object: String,
    /// Path of the field: `status.zones[1].cpus`.
    pub field: String,
    /// What stands there, shortened.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// What is wrong, and what follows from it.
    pub message: String,
    /// Whether something had to be left out because of it.
    pub is_fatal: bool,
}

/// Longest value that is shown.
const LONGEST: usize = 60;

impl Problem {
    /// A problem of a field that has this value.
    pub fn new(
        object: impl Into<String>,
        field: impl Into<String>,
        value: impl fmt::Display,
        message: impl Into<String>,
    ) -> Self {
        let value = value.to_string();
        let mut shown: String = value.chars().take(LONGEST).collect();
        if shown.len() < value.len() {
            shown.push_str("...");
        }
        Self {
            object: object.into(),
            field: field.into(),
            value: shown,
            message: message.into(),
            is_fatal: false,
        }
    }

    /// The same, with what had to be left out because of it.
    #[must_use]
    pub fn leaves_out(mut self, what: &str) -> Self {
        self.message = format!("{}; {what}", self.message);
        self.is_fatal = true;
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { object, field, value, message, .. } = self;
        write!(f, "{object}")?;
        if !field.is_empty() {
            write!(f, ": {field}")?;
        }
        if !value.is_empty() {
            write!(f, ": `{value}`")?;
        }
        write!(f, ": {message}")
    }
}
