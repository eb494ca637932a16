//! Opens a stream to a VM.

use hyper::header::{
    CONNECTION, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use hyper::upgrade::Upgraded;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use kube::Client;
use kube::client::Body;
use kube::core::Status;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use super::error::StreamError;
use super::subresource::Subresource;
use crate::call::CALL_TIMEOUT;
use crate::cli::text::{error_chain, to_single_line};
use crate::object_name::is_valid_name;

/// Subprotocol of KubeVirt for plain bytes.
const PROTOCOL: &str = "plain.kubevirt.io";
/// Maximum size of a message of the server. KubeVirt copies blocks of 32 KiB.
const MAX_MESSAGE_BYTES: usize = 1 << 20;
/// Size of the buffer for received bytes, which each stream has.
const READ_BUFFER_BYTES: usize = 32 << 10;
/// Maximum number of characters of an answer that is no `Status`.
const MAX_ANSWER_LENGTH: usize = 400;

/// A stream to a VM.
pub type VmStream = WebSocketStream<TokioIo<Upgraded>>;

/// Opens a subresource of a VirtualMachineInstance.
///
/// # Errors
/// Returns an error if the server cannot be reached, or refuses the stream.
pub async fn open(
    client: &Client,
    namespace: &str,
    name: &str,
    subresource: Subresource,
) -> Result<VmStream, StreamError> {
    let machine = format!("{namespace}/{name}");
    if !is_valid_name(namespace) || !is_valid_name(name) {
        return Err(StreamError::InvalidName(machine));
    }
    let path = format!(
        "/apis/subresources.kubevirt.io/v1/namespaces/{namespace}/virtualmachineinstances/{name}/{subresource}"
    );
    let refused_with = |reason: String, status: Option<StatusCode>| StreamError::Refused {
        subresource,
        machine: machine.clone(),
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
    let answer = timeout(CALL_TIMEOUT, client.send(request)).await;
    let answer =
        answer.map_err(|_| StreamError::Timeout { subresource, machine: machine.clone() })?;
    let response = answer.map_err(|error| refused(error_chain(&error)))?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        let code = response.status();
        let body = response.into_body().collect_bytes().await.unwrap_or_default();
        let message = match serde_json::from_slice::<Status>(&body) {
            Ok(status) if !status.message.is_empty() => status.message,
            _ => String::from_utf8_lossy(&body).chars().take(MAX_ANSWER_LENGTH).collect(),
        };
        return Err(refused_with(format!("{message} ({code})"), Some(code)));
    }
    let accepted = response.headers().get(SEC_WEBSOCKET_ACCEPT);
    if accepted.is_none_or(|accepted| accepted != derive_accept_key(key.as_bytes()).as_str()) {
        return Err(refused("the answer is no WebSocket".to_owned()));
    }
    let upgraded =
        hyper::upgrade::on(response).await.map_err(|error| refused(error.to_string()))?;
    let config = WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER_BYTES)
        .max_message_size(Some(MAX_MESSAGE_BYTES))
        .max_frame_size(Some(MAX_MESSAGE_BYTES));
    let io = TokioIo::new(upgraded);
    Ok(WebSocketStream::from_raw_socket(io, Role::Client, Some(config)).await)
}
