//! Problems of objects. A problem is reported to users, and does not prevent that other objects are processed.

use std::fmt;

use crate::excerpt::excerpt;

/// A problem of one field of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    /// Kind and name: `InfraNode rack1-a`, `VirtualMachine cluster-abc/web-1`.
    pub object: String,
    /// Path of the field: `status.zones[1].cpus`.
    pub field: String,
    /// Beginning of the field's value: at most 60 characters, without control characters.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// Description of the problem and its consequence.
    pub message: String,
    /// True if the whole object or a part of it is ignored because of the problem.
    pub is_fatal: bool,
}

impl Problem {
    /// Creates a problem of a field with this value.
    pub fn new(
        object: impl Into<String>,
        field: impl Into<String>,
        value: impl fmt::Display,
        message: impl Into<String>,
    ) -> Self {
        Self {
            object: object.into(),
            field: field.into(),
            value: excerpt(&value.to_string()),
            message: message.into(),
            is_fatal: false,
        }
    }

    /// Marks the problem as fatal, and adds `consequence` to the message.
    #[must_use]
    pub fn into_fatal(mut self, consequence: &str) -> Self {
        self.message = format!("{}; {consequence}", self.message);
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
