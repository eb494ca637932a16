//! What ends one look at a tenant before its end.

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
