//! Notes of an observation: facts that could not be read, and values that seem wrong.

use std::fmt;

use berth_api::infra_node::{UnknownFact, UnknownReason};

use crate::root::ReadError;

/// Notes of one observation. Errors are collected here, so that a fact that cannot be read does not prevent the other
/// facts from being read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Notes {
    /// Problems that an administrator should check.
    pub warnings: Vec<Warning>,
    /// Facts that could not be read.
    pub unknown_facts: Vec<UnknownFact>,
}

/// A problem of the host or of the values that it reports.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Warning {
    /// The file or object that has the problem.
    pub location: String,
    /// Description of the problem.
    pub message: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.location, self.message)
    }
}

impl Notes {
    /// Adds a warning.
    pub fn warn(&mut self, location: impl Into<String>, message: impl Into<String>) {
        self.warnings.push(Warning { location: location.into(), message: message.into() });
    }

    /// Adds a fact that could not be read. `path` is the path of the fact in the status of the InfraNode.
    pub fn add_unknown(
        &mut self,
        path: impl Into<String>,
        reason: UnknownReason,
        message: impl Into<String>,
    ) {
        self.unknown_facts.push(UnknownFact {
            path: path.into(),
            reason,
            message: Some(message.into()),
        });
    }

    /// Returns true if the fact at `path` in the status could not be read.
    #[must_use]
    pub fn is_unknown(&self, path: &str) -> bool {
        self.unknown_facts.iter().any(|unknown| unknown.path == path)
    }

    /// Returns the value that was read for the fact at `path` in the status. If `result` is an error, notes the fact as
    /// unknown. Also adds a warning, unless the file is missing or this user may not read it.
    pub fn value_or_unknown<T>(&mut self, path: &str, result: Result<T, ReadError>) -> Option<T> {
        let error = match result {
            Ok(value) => return Some(value),
            Err(error) => error,
        };
        self.add_unknown(path, error.reason(), error.to_string());
        self.warn_if_unexpected(&error);
        None
    }

    /// Returns the value of a file that many hosts lack. If `result` is an error, adds a warning, unless the file is
    /// missing or this user may not read it.
    pub fn value_or_warning<T>(&mut self, result: Result<T, ReadError>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.warn_if_unexpected(&error);
                None
            }
        }
    }

    fn warn_if_unexpected(&mut self, error: &ReadError) {
        if !matches!(error.reason(), UnknownReason::NotFound | UnknownReason::NoPermission) {
            self.warn(format!("/{}", error.path), error.problem.to_string());
        }
    }

    /// Sorts the notes and removes duplicates, so that hosts with the same facts have equal reports.
    pub fn sort_and_dedup(&mut self) {
        self.warnings.sort();
        self.warnings.dedup();
        self.unknown_facts.sort();
        self.unknown_facts.dedup();
    }
}
