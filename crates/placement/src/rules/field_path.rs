//! Errors for rules that the API server would have rejected. Such a rule causes an error that names the field, and is
//! never treated as a rule that matches everything.

use std::fmt;

/// An invalid field of a pod or a Node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: `{value}` {problem}")]
pub struct InvalidField {
    /// Path of the field in the object.
    pub field: String,
    pub value: String,
    /// Problem with the value.
    pub problem: String,
}

/// Path of a field in an object. It is formatted only when an error occurs, because rules are compiled very often.
#[derive(Clone, Copy, Debug)]
pub(super) struct FieldPath<'a> {
    parent: Option<&'a Self>,
    name: &'a str,
    index: Option<usize>,
}

impl<'a> FieldPath<'a> {
    pub(super) const fn root(name: &'a str) -> Self {
        Self { parent: None, name, index: None }
    }

    pub(super) const fn field(&'a self, name: &'a str) -> Self {
        Self { parent: Some(self), name, index: None }
    }

    pub(super) const fn item(&'a self, at: usize) -> Self {
        Self { parent: Some(self), name: "", index: Some(at) }
    }

    pub(super) fn invalid_field(
        &self,
        value: impl fmt::Display,
        problem: impl Into<String>,
    ) -> InvalidField {
        InvalidField { field: self.to_string(), value: value.to_string(), problem: problem.into() }
    }
}

impl fmt::Display for FieldPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            parent.fmt(f)?;
        }
        match self.index {
            Some(at) => write!(f, "[{at}]"),
            None if self.parent.is_some() => write!(f, ".{}", self.name),
            None => f.write_str(self.name),
        }
    }
}

/// Checks that a label key is valid.
pub(super) fn validate_label_key(path: &FieldPath<'_>, key: &str) -> Result<(), InvalidField> {
    if is_label_key(key) {
        Ok(())
    } else {
        Err(path
            .invalid_field(key, "is not a valid label key, such as topology.kubernetes.io/zone"))
    }
}

/// Returns true if a label key has the form `[prefix/]name` (apimachinery `content.IsLabelKey`).
#[must_use]
pub fn is_label_key(key: &str) -> bool {
    let (prefix, name) =
        key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    let is_lower_alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_valid_part = |part: &str| {
        part.starts_with(is_lower_alphanumeric)
            && part.ends_with(is_lower_alphanumeric)
            && part.chars().all(|c| is_lower_alphanumeric(c) || c == '-')
    };
    let is_prefix_valid =
        prefix.is_none_or(|prefix| prefix.len() <= 253 && prefix.split('.').all(is_valid_part));
    is_prefix_valid && !name.is_empty() && is_label_value(name)
}

/// Checks that a label value is empty, or has at most 63 letters, digits, `-`, `_` and `.`, and begins and ends with a
/// letter or digit.
pub(super) fn validate_label_value(path: &FieldPath<'_>, value: &str) -> Result<(), InvalidField> {
    if is_label_value(value) {
        Ok(())
    } else {
        Err(path.invalid_field(
            value,
            "is not a valid label value: use at most 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both ends",
        ))
    }
}

fn is_label_value(text: &str) -> bool {
    let is_alphanumeric = |c: char| c.is_ascii_alphanumeric();
    text.is_empty()
        || text.len() <= 63
            && text.starts_with(is_alphanumeric)
            && text.ends_with(is_alphanumeric)
            && text.chars().all(|c| is_alphanumeric(c) || matches!(c, '-' | '_' | '.'))
}
