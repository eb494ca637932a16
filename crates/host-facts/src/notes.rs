//! What observers have to say beside the facts: what they could not find out, and what looks wrong.

use std::fmt;

use berth_api::infra_node::{Unknown, UnknownReason};

use crate::root::ReadError;

/// Collected while observing. A broken sensor never hides the others: each failure ends here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Notes {
    /// Things an administrator should look at.
    pub warnings: Vec<Warning>,
    /// Facts that could not be found out.
    pub unknown: Vec<Unknown>,
}

/// Something that looks wrong with the host or with what it says of itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Warning {
    /// The file or object.
    pub place: String,
    /// What is wrong with it.
    pub message: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.message)
    }
}

impl Notes {
    /// Notes that something looks wrong.
    pub fn warn(&mut self, place: impl Into<String>, message: impl Into<String>) {
        self.warnings.push(Warning { place: place.into(), message: message.into() });
    }

    /// Notes that the fact at `path` of the status is not known.
    pub fn unknown(
        &mut self,
        path: impl Into<String>,
        reason: UnknownReason,
        message: impl Into<String>,
    ) {
        self.unknown.push(Unknown { path: path.into(), reason, message: Some(message.into()) });
    }

    /// Whether the fact at `path` of the status is noted as not known.
    #[must_use]
    pub fn is_unknown(&self, path: &str) -> bool {
        self.unknown.iter().any(|unknown| unknown.path == path)
    }

    /// The value that was read for the fact at `path`; if it could not be, that is noted, and warned
    /// of unless the file is merely absent or closed to this user.
    pub fn fact<T>(&mut self, path: &str, read: Result<T, ReadError>) -> Option<T> {
        let error = match read {
            Ok(value) => return Some(value),
            Err(error) => error,
        };
        self.unknown(path, error.reason(), error.to_string());
        self.warn_unless_ordinary(&error);
        None
    }

    /// The value of a file that many hosts do not have: absence says nothing, garbage is warned of.
    pub fn optional<T>(&mut self, read: Result<T, ReadError>) -> Option<T> {
        match read {
            Ok(value) => Some(value),
            Err(error) => {
                self.warn_unless_ordinary(&error);
                None
            }
        }
    }

    fn warn_unless_ordinary(&mut self, error: &ReadError) {
        if !matches!(error.reason(), UnknownReason::NotFound | UnknownReason::NoPermission) {
            self.warn(format!("/{}", error.path), error.problem.to_string());
        }
    }

    /// Sorted and without repetitions, so that equal hosts give equal reports.
    pub fn tidy(&mut self) {
        self.warnings.sort();
        self.warnings.dedup();
        self.unknown.sort();
        self.unknown.dedup();
    }
}
