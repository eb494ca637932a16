//! Results of reads of the API server.

use berth_runtime::check::Outcome;

/// Reason why objects were not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// RBAC does not permit the user of the kubeconfig to read the objects.
    #[error("the user of the kubeconfig has no permission to read the objects: {0}")]
    Forbidden(String),
    /// The object does not exist, or the API server does not serve its kind.
    #[error("not found")]
    NotFound,
    /// The API server answered with another error.
    #[error("{0}")]
    Refused(String),
    /// The API server did not answer.
    #[error("{0}")]
    Unreachable(String),
    /// The list is too long.
    #[error("more than {0} objects")]
    TooMany(usize),
    /// The objects were not requested.
    #[error("not requested")]
    NotRequested,
}

pub type Read<T> = Result<T, ReadError>;

/// Objects that a check examines, and the reason why they were not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{objects}: {reason}")]
pub struct Unread {
    objects: String,
    reason: ReadError,
}

impl Unread {
    /// Returns the error for these objects.
    pub(super) fn new(objects: impl Into<String>, reason: &ReadError) -> Self {
        Self { objects: objects.into(), reason: reason.clone() }
    }

    /// Returns the outcome of a check whose objects were not read.
    pub(super) fn into_outcome(self) -> Outcome {
        let outcome = match self.reason {
            ReadError::NotRequested => Outcome::skip(format!("{} not requested", self.objects)),
            _ => Outcome::unread(format!("{} could not be read", self.objects)),
        };
        outcome.with_evidence(self.objects, self.reason)
    }
}
