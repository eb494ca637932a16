//! What ends one look at a tenant before its end.

use std::time::Duration;

use berth_runtime::reconcile::ReconcileError;

pub(super) use crate::run::calls::found;

/// Why.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Somebody else wrote it in between; the next look sees what.
    #[error("{0} was changed by another at the same time")]
    Changed(String),
    /// The server refused, or could not be reached.
    #[error("{what}: {error}")]
    Server {
        /// Verb and object.
        what: String,
        /// Its words.
        error: Box<kube::Error>,
    },
    /// Objects of the tenant could not be written, as its status says.
    #[error("{0}")]
    Unsettled(String),
    /// Something that never ends has ended.
    #[error("{0} ended")]
    Ended(&'static str),
}

/// Says of which object a server speaks, and tells apart what the next look settles by itself.
pub(super) fn at<T>(what: impl Into<String>, result: kube::Result<T>) -> Result<T, Error> {
    result.map_err(|error| match &error {
        kube::Error::Api(status) if status.code == 409 => Error::Changed(what.into()),
        _ => Error::Server { what: what.into(), error: Box::new(error) },
    })
}

impl ReconcileError for Error {
    fn is_conflict(&self) -> bool {
        matches!(self, Self::Changed(_))
    }

    fn retry_after(&self) -> Duration {
        match self {
            Self::Server { error, .. } => berth_runtime::client::rest(error),
            Self::Changed(_) | Self::Unsettled(_) | Self::Ended(_) => Duration::ZERO,
        }
    }
}
