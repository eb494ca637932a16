//! Byte streams to a VM through subresources of KubeVirt, as WebSockets through the API server.

use berth_runtime::call::CALL_TIMEOUT;
use berth_runtime::cli::text::to_single_line;
use berth_runtime::cli::{EXIT_BAD_INPUT, EXIT_UNREACHABLE, Failure};
use berth_views::ObjectName;
use hyper::header::{
    CONNECTION, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use hyper::upgrade::Upgraded;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use kube::client::Body;
use kube::core::Status;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Error as SocketError;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use super::read::Session;
use crate::tenant_object::is_valid_name;

/// Subprotocol of KubeVirt for plain bytes.
const PROTOCOL: &str = "plain.kubevirt.io";

/// A stream to a VM.
pub(super) type VmStream = WebSocketStream<TokioIo<Upgraded>>;

/// Reason why a stream cannot be opened, or ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum StreamError {
    #[error("{0} is not the name of a machine")]
    InvalidName(String),
    #[error("{subresource} of {machine}: {reason}")]
    Refused {
        subresource: String,
        machine: String,
        reason: String,
        /// Status of the answer; `None` if there is none.
        status: Option<StatusCode>,
    },
    #[error("{subresource} of {machine}: the API server did not answer in time")]
    Timeout { subresource: String, machine: String },
    #[error(
        "the connection ended: the VM was stopped or moved, or another user opened the same console"
    )]
    Ended(#[source] Box<SocketError>),
    #[error("the server closed the connection with code {code}: {reason}")]
    Closed { code: CloseCode, reason: String },
    #[error("the server does not answer pings: the connection is lost")]
    Unresponsive,
    #[error("the output cannot be written")]
    Output(#[source] std::io::Error),
}

impl StreamError {
    /// Returns the failure of the command.
    pub(super) fn into_failure(self) -> Failure {
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

/// Opens a subresource of a VirtualMachineInstance, such as `console`.
pub(super) async fn open(
    session: &Session,
    machine: &ObjectName,
    subresource: &str,
) -> Result<VmStream, StreamError> {
    if !is_valid_name(&machine.namespace) || !is_valid_name(&machine.name) {
        return Err(StreamError::InvalidName(machine.to_string()));
    }
    let path = format!(
        "/apis/subresources.kubevirt.io/v1/namespaces/{}/virtualmachineinstances/{}/{subresource}",
        machine.namespace, machine.name
    );
    let refused_with = |reason: String, status: Option<StatusCode>| StreamError::Refused {
        subresource: subresource.to_owned(),
        machine: machine.to_string(),
        reason: to_single_line(&reason),
        status,
    };
    let refused = |reason: String| refused_with(reason, None);
    let key = generate_key();
    let request = Request::get(path)
        .header(CONNECTION, HeaderValue::from_static("Upgrade"))
        .header(UPGRADE, HeaderValue::from_static("websocket"))
        .header(SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"))
        .header(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(PROTOCOL))
        .header(SEC_WEBSOCKET_KEY, &key)
        .body(Body::empty())
        .map_err(|error| refused(error.to_string()))?;
    let answer = timeout(CALL_TIMEOUT, session.client.send(request)).await;
    let answer = answer.map_err(|_| StreamError::Timeout {
        subresource: subresource.to_owned(),
        machine: machine.to_string(),
    })?;
    let response =
        answer.map_err(|error| refused(berth_runtime::cli::text::error_chain(&error)))?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        let code = response.status();
        let body = response.into_body().collect_bytes().await.unwrap_or_default();
        let message = match serde_json::from_slice::<Status>(&body) {
            Ok(status) if !status.message.is_empty() => status.message,
            _ => String::from_utf8_lossy(&body).chars().take(400).collect(),
        };
        return Err(refused_with(format!("{message} ({code})"), Some(code)));
    }
    let accepted = response.headers().get(SEC_WEBSOCKET_ACCEPT);
    if accepted.is_none_or(|accepted| accepted != derive_accept_key(key.as_bytes()).as_str()) {
        return Err(refused("the answer is no WebSocket".to_owned()));
    }
    let upgraded =
        hyper::upgrade::on(response).await.map_err(|error| refused(error.to_string()))?;
    let io = TokioIo::new(upgraded);
    Ok(WebSocketStream::from_raw_socket(io, Role::Client, None).await)
}
