//! Reasons why a stream to a VM has ended, which the page shows.

use berth_runtime::vm_stream::{End, StreamError};
use hyper::StatusCode;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

/// Maximum length of a reason, in bytes: a control frame of a WebSocket has 125 bytes, of which the code has two.
const MAX_REASON_BYTES: usize = 123;

/// Reason why a stream has ended, or was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The user has closed the page, or the connection.
    UserLeft,
    /// The session has ended, or the API server does not accept the credential any more.
    SessionEnded,
    /// The API server does not permit the user to open the stream.
    Forbidden,
    /// There is no VirtualMachineInstance with this name.
    NotFound,
    /// KubeVirt or the API server cannot open the stream, for this reason: for example, the VM starts, or has no graphics
    /// card.
    Refused(String),
    /// The user, or all users, have too many streams.
    TooManyStreams,
    /// Another user of this console has opened the same stream. KubeVirt permits one.
    OtherViewer,
    /// The VM was stopped.
    Stopped,
    /// The VM was moved to another host.
    Moved,
    /// The stream ended, and the reason is not known.
    Ended,
    /// KubeVirt has closed the stream for this reason.
    Closed(String),
    /// The API server or KubeVirt does not answer any more.
    Lost,
    /// The API server did not answer.
    Unavailable,
}

impl Ending {
    /// Returns the reason why a stream was not opened.
    pub(crate) fn of_refusal(error: &StreamError) -> Self {
        let StreamError::Refused { reason, status: Some(status), .. } = error else {
            return match error {
                StreamError::InvalidName(_) => Self::NotFound,
                _ => Self::Unavailable,
            };
        };
        match *status {
            StatusCode::UNAUTHORIZED => Self::SessionEnded,
            StatusCode::FORBIDDEN => Self::Forbidden,
            StatusCode::NOT_FOUND => Self::NotFound,
            _ => Self::Refused(reason.clone()),
        }
    }

    /// Returns the reason why an open stream has ended, if the server reports one.
    pub(crate) fn of_end(end: Result<End, StreamError>) -> Self {
        match end {
            Ok(End::User) => Self::UserLeft,
            Ok(End::Vm(reason)) | Err(StreamError::Closed { reason, .. }) if !reason.is_empty() => {
                Self::Closed(reason)
            }
            Err(StreamError::Unresponsive) => Self::Lost,
            Ok(End::Vm(_)) | Err(_) => Self::Ended,
        }
    }

    /// Returns a number for scripts: the page opens the sign-in after 4401.
    const fn code(&self) -> u16 {
        match self {
            Self::UserLeft => 1000,
            Self::SessionEnded => 4401,
            Self::Forbidden => 4403,
            Self::NotFound => 4404,
            Self::Refused(_) => 4409,
            Self::OtherViewer | Self::Stopped | Self::Moved | Self::Ended | Self::Closed(_) => 4410,
            Self::TooManyStreams => 4429,
            Self::Lost => 4502,
            Self::Unavailable => 4503,
        }
    }

    /// Returns the text that the page shows.
    pub(crate) fn text(&self) -> String {
        let text = match self {
            Self::UserLeft => "You have disconnected.",
            Self::SessionEnded => "Your session has ended: sign in again.",
            Self::Forbidden => {
                "You have no permission to open it: ask for the verb get on this subresource of KubeVirt."
            }
            Self::NotFound => "There is no running VM with this name.",
            Self::Refused(reason) => {
                return truncated(&format!("KubeVirt cannot open it: {reason}"));
            }
            Self::TooManyStreams => "Too many consoles and screens are open: close another one.",
            Self::OtherViewer => {
                "Another viewer has opened the same console or screen: KubeVirt permits one."
            }
            Self::Stopped => "The VM was stopped.",
            Self::Moved => "The VM was moved to another host: connect again.",
            Self::Ended => {
                "The connection ended: the VM was stopped or restarted, or another viewer has connected."
            }
            Self::Closed(reason) => {
                return truncated(&format!("KubeVirt has closed the connection: {reason}"));
            }
            Self::Lost => "The connection to the VM is lost.",
            Self::Unavailable => "The API server did not answer: try again later.",
        };
        text.to_owned()
    }

    /// Returns the frame with which the connection of the browser is closed.
    pub(crate) fn frame(&self) -> CloseFrame {
        CloseFrame { code: CloseCode::from(self.code()), reason: self.text().into() }
    }
}

/// Returns the beginning of a text that fits into a frame.
fn truncated(text: &str) -> String {
    let end = text.floor_char_boundary(MAX_REASON_BYTES);
    text.get(..end).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16, reason: &str) -> StreamError {
        StreamError::Refused {
            subresource: berth_runtime::vm_stream::Subresource::Console,
            machine: "a/b".to_owned(),
            reason: reason.to_owned(),
            status: StatusCode::from_u16(status).ok(),
        }
    }

    #[test]
    fn refusals_are_distinguished_by_their_status() {
        for (status, expected) in [
            (401, Ending::SessionEnded),
            (403, Ending::Forbidden),
            (404, Ending::NotFound),
            (409, Ending::Refused("off".to_owned())),
            (500, Ending::Refused("off".to_owned())),
        ] {
            assert_eq!(Ending::of_refusal(&refused(status, "off")), expected, "{status}");
        }
        assert_eq!(Ending::of_refusal(&StreamError::Unresponsive), Ending::Unavailable);
    }

    #[test]
    fn ends_have_the_reason_of_the_server() {
        let closed = StreamError::Closed { code: CloseCode::Away, reason: "the node stops".into() };
        assert_eq!(Ending::of_end(Err(closed)), Ending::Closed("the node stops".to_owned()));
        assert_eq!(Ending::of_end(Ok(End::Vm(String::new()))), Ending::Ended);
        assert_eq!(Ending::of_end(Ok(End::User)), Ending::UserLeft);
        assert_eq!(Ending::of_end(Err(StreamError::Unresponsive)), Ending::Lost);
    }

    #[test]
    fn reasons_fit_into_a_frame() {
        let long = "ä".repeat(200);
        for ending in [
            Ending::UserLeft,
            Ending::SessionEnded,
            Ending::Forbidden,
            Ending::NotFound,
            Ending::Refused(long.clone()),
            Ending::TooManyStreams,
            Ending::OtherViewer,
            Ending::Stopped,
            Ending::Moved,
            Ending::Ended,
            Ending::Closed(long),
            Ending::Lost,
            Ending::Unavailable,
        ] {
            let frame = ending.frame();
            assert!(!frame.reason.is_empty() && frame.reason.len() <= MAX_REASON_BYTES, "{frame}");
            assert!(frame.code.is_allowed(), "{frame}");
        }
    }
}
