//! What can go wrong between the controller and the server; time may mend all of it.

use std::time::Duration;

pub(super) use crate::run::calls::found;

/// What was tried, and what the server said.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {error}")]
pub(super) struct Error {
    what: String,
    error: kube::Error,
}

impl Error {
    /// Returns how long the server wants to be left alone.
    pub(super) fn rest(&self) -> Duration {
        berth_kit::client::rest(&self.error)
    }
}

/// The result of a call, with what it was.
pub(super) fn at<T>(what: impl FnOnce() -> String, result: kube::Result<T>) -> Result<T, Error> {
    result.map_err(|error| Error { what: what(), error })
}

/// What is there already is no error.
pub(super) fn made<T>(result: kube::Result<T>) -> kube::Result<Option<T>> {
    match result {
        Ok(made) => Ok(Some(made)),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(None),
        Err(error) => Err(error),
    }
}
