//! Errors of streams to VMs.

use hyper::StatusCode;
use tokio_tungstenite::tungstenite::Error as SocketError;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use super::subresource::Subresource;
use crate::cli::{EXIT_BAD_INPUT, EXIT_UNREACHABLE, Failure};

/// Reason why a stream cannot be opened, or ended.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// The namespace or the name cannot be a part of the path of a request.
    #[error("{0} is not the name of a machine")]
    InvalidName(String),
    /// The API server or KubeVirt refused the stream, or cannot be reached.
    #[error("{subresource} of {machine}: {reason}")]
    Refused {
        /// Subresource of the request.
        subresource: Subresource,
        /// Namespace and name of the machine.
        machine: String,
        /// Message of the server, in one line.
        reason: String,
        /// Status of the answer; `None` if there is none.
        status: Option<StatusCode>,
    },
    /// The API server did not answer.
    #[error("{subresource} of {machine}: the API server did not answer in time")]
    Timeout {
        /// Subresource of the request.
        subresource: Subresource,
        /// Namespace and name of the machine.
        machine: String,
    },
    /// The connection ended without a message of the server.
    #[error(
        "the connection ended: the VM was stopped or moved, or another user opened the same console"
    )]
    Ended(#[source] Box<SocketError>),
    /// The server ended the connection because of an error.
    #[error("the server closed the connection with code {code}: {reason}")]
    Closed {
        /// Code of the WebSocket protocol.
        code: CloseCode,
        /// Message of the server, in one line.
        reason: String,
    },
    /// The server does not answer pings.
    #[error("the server does not answer pings: the connection is lost")]
    Unresponsive,
    /// Standard output or the local connection failed.
    #[error("the output cannot be written")]
    Output(#[source] std::io::Error),
}

impl StreamError {
    /// Returns the failure of a command.
    #[must_use]
    pub fn into_failure(self) -> Failure {
        // The API server was reached, and the name or the state of the VM is wrong. Without a permission, or under load,
        // the same command may work for another user or later.
        let is_wrong = |status: StatusCode| {
            status.is_client_error()
                && ![
                    StatusCode::UNAUTHORIZED,
                    StatusCode::FORBIDDEN,
                    StatusCode::REQUEST_TIMEOUT,
                    StatusCode::TOO_MANY_REQUESTS,
                ]
                .contains(&status)
        };
        let is_bad_input = match &self {
            Self::InvalidName(_) => true,
            Self::Refused { status, .. } => status.is_some_and(is_wrong),
            _ => false,
        };
        let exit_code = if is_bad_input { EXIT_BAD_INPUT } else { EXIT_UNREACHABLE };
        Failure { exit_code, error: self.into() }
    }

    pub(super) fn ended(error: SocketError) -> Self {
        Self::Ended(Box::new(error))
    }
}
