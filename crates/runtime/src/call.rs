//! Time limit and errors of calls to the API server.

use std::time::Duration;

use crate::cli::text;
use crate::retry_after::RetryAfterRefusal;

/// Time limit for a call to the API server. Watches have separate limits.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// Waits for a call to the API server for at most [`CALL_TIMEOUT`].
///
/// # Errors
/// Returns an error if the call fails, or if the server does not answer in time.
pub async fn with_timeout<T>(
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, CallError> {
    match tokio::time::timeout(CALL_TIMEOUT, call).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(CallError::Timeout),
    }
}

/// Converts the error for an object that does not exist (404) to `None`.
///
/// # Errors
///
/// Returns any other error.
pub fn none_if_not_found<T>(result: kube::Result<T>) -> kube::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns true if the server refused a write because another client wrote the object first (409 with the reason
/// Conflict). A create request for an existing object is also refused with 409, but with the reason AlreadyExists: a
/// retry would fail again.
#[must_use]
pub fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_conflict())
}

/// Error of a write request that was not sent because this process is not the leader.
#[derive(Debug, thiserror::Error)]
#[error("the request was not sent: this process is not the leader")]
pub struct NotLeader;

/// Error of a call to the API server.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The server did not answer within [`CALL_TIMEOUT`].
    #[error("the API server did not answer within {} s", CALL_TIMEOUT.as_secs())]
    Timeout,
    /// The server did not answer within the time limit of the caller.
    #[error("the API server did not answer in time")]
    CallerTimeout,
    /// The server refused the request with a `Retry-After`, or the client did not send the request because the time of
    /// an earlier `Retry-After` has not passed.
    #[error("{0}")]
    Busy(RetryAfterRefusal),
    /// The request was not sent, because this process is not the leader.
    #[error("{0}")]
    NotSent(NotLeader),
    /// The server answered with an error, or the connection failed.
    #[error("{}", error_message(.0))]
    Kube(Box<kube::Error>),
}

impl From<kube::Error> for CallError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Service(inner) => match inner.downcast() {
                Ok(busy) => Self::Busy(*busy),
                Err(inner) if inner.is::<NotLeader>() => Self::NotSent(NotLeader),
                Err(inner) => Self::Kube(Box::new(kube::Error::Service(inner))),
            },
            error => Self::Kube(Box::new(error)),
        }
    }
}

/// Returns the message of an error, and the messages of its sources. `kube::Error` alone does not mention why a
/// connection failed.
fn error_message(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error {
        // If a watch receives an object that cannot be parsed, kube returns an error with code 0 and an empty
        // message.
        if status.code == 0 && status.message.is_empty() {
            return "the API server sent an object that cannot be parsed".to_owned();
        }
        return format!("{} ({})", status.message, status.code);
    }
    text::error_chain(error)
}

impl CallError {
    /// Returns the `Status` object of the server's answer; `None` if the server did not answer.
    #[must_use]
    pub fn status(&self) -> Option<&kube::core::Status> {
        match self {
            Self::Kube(error) => match error.as_ref() {
                kube::Error::Api(status) => Some(status),
                _ => None,
            },
            Self::Timeout | Self::CallerTimeout | Self::Busy(_) | Self::NotSent(_) => None,
        }
    }

    /// Returns the remaining time of the server's `Retry-After`; zero if there was none.
    #[must_use]
    pub fn retry_after(&self) -> Duration {
        match self {
            Self::Busy(busy) => busy.remaining_time(),
            Self::Timeout | Self::CallerTimeout | Self::NotSent(_) | Self::Kube(_) => {
                Duration::ZERO
            }
        }
    }

    /// Returns true if the server refused the object as invalid (422) and its message contains `text`.
    #[must_use]
    pub fn is_invalid(&self, text: &str) -> bool {
        self.status().is_some_and(|status| status.code == 422 && status.message.contains(text))
    }

    /// Returns true if the server refused a write because another client wrote the object first; see [`is_conflict`].
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        match self {
            Self::Kube(error) => is_conflict(error),
            Self::Timeout | Self::CallerTimeout | Self::Busy(_) | Self::NotSent(_) => false,
        }
    }

    /// Returns the HTTP status code of the server's answer.
    #[must_use]
    pub fn status_code(&self) -> Option<u16> {
        self.status().map(|status| status.code)
    }
}

/// Returns the remaining time of the `Retry-After` that caused an error; zero if there was none.
#[must_use]
pub fn retry_after(error: &kube::Error) -> Duration {
    let busy = match error {
        kube::Error::Service(error) => error.downcast_ref::<RetryAfterRefusal>(),
        _ => None,
    };
    busy.map_or(Duration::ZERO, RetryAfterRefusal::remaining_time)
}

#[cfg(test)]
mod tests {
    use kube::core::Status;
    use kube::core::response::reason;

    use super::*;

    #[test]
    fn already_exists_is_not_a_conflict() {
        for (code, reason, expected) in [
            (409, reason::CONFLICT, true),
            (409, reason::ALREADY_EXISTS, false),
            // API servers report a write conflict with the reason `Conflict`, so 409 with another reason is not a write
            // conflict.
            (409, "Other", false),
            (404, reason::NOT_FOUND, false),
            (422, reason::INVALID, false),
        ] {
            let status = Status::failure("refused", reason).with_code(code);
            let error = kube::Error::Api(status.boxed());
            assert_eq!(is_conflict(&error), expected, "{code} {reason}");
            assert_eq!(CallError::from(error).is_conflict(), expected, "{code} {reason}");
        }
        assert!(!CallError::Timeout.is_conflict());
    }
}
