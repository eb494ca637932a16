//! Byte streams to a VM through subresources of KubeVirt, as WebSockets through the API server.

use std::io::{Read as _, Write as _};

use berth_runtime::call::CALL_TIMEOUT;
use berth_runtime::cli::text::to_single_line;
use berth_runtime::cli::{EXIT_UNREACHABLE, Failure};
use berth_views::ObjectName;
use futures::{SinkExt as _, StreamExt as _};
use hyper::header::{
    CONNECTION, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use hyper::upgrade::Upgraded;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use kube::client::Body;
use kube::core::Status;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc::{Receiver, channel};
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_tungstenite::tungstenite::{Error as SocketError, Message};

use super::read::Session;
use crate::tenant_object::is_valid_name;

/// Subprotocol of KubeVirt for plain bytes.
const PROTOCOL: &str = "plain.kubevirt.io";
/// Size of a block that is read from standard input or a connection, in bytes.
const BLOCK_SIZE: usize = 16 * 1024;
/// Number of blocks of standard input that wait until they are sent.
const PENDING_BLOCKS: usize = 16;

/// A stream to a VM.
pub(super) type VmStream = WebSocketStream<TokioIo<Upgraded>>;

/// Reason why a stream cannot be opened, or ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum StreamError {
    #[error("{0} is not the name of a machine")]
    InvalidName(String),
    #[error("{subresource} of {machine}: {reason}")]
    Refused { subresource: String, machine: String, reason: String },
    #[error("{subresource} of {machine}: the API server did not answer in time")]
    Timeout { subresource: String, machine: String },
    #[error(
        "the connection ended: the VM was stopped or moved, or another user opened the same console"
    )]
    Ended(#[source] Box<SocketError>),
    #[error("standard output cannot be written")]
    Output(#[source] std::io::Error),
    #[error("the local connection failed")]
    Local(#[source] std::io::Error),
}

impl StreamError {
    /// Returns the failure of the command.
    pub(super) fn into_failure(self) -> Failure {
        Failure { exit_code: EXIT_UNREACHABLE, error: self.into() }
    }

    fn ended(error: SocketError) -> Self {
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
    let refused = |reason: String| StreamError::Refused {
        subresource: subresource.to_owned(),
        machine: machine.to_string(),
        reason: to_single_line(&reason),
    };
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
        return Err(refused(format!("{message} ({code})")));
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

/// Connects standard input and output with a stream, until it ends or, with `escape`, until the user types this byte.
pub(super) async fn attach_terminal(
    stream: VmStream,
    escape: Option<u8>,
) -> Result<(), StreamError> {
    let (mut sink, mut messages) = stream.split();
    let mut input = read_stdin();
    let mut has_input = true;
    loop {
        tokio::select! {
            block = input.recv(), if has_input => {
                let Some(mut block) = block else {
                    has_input = false;
                    continue;
                };
                let end = escape.and_then(|escape| block.iter().position(|byte| *byte == escape));
                if let Some(end) = end {
                    block.truncate(end);
                }
                if !block.is_empty() {
                    sink.send(Message::binary(block)).await.map_err(StreamError::ended)?;
                }
                if end.is_some() {
                    // The user leaves; a server that does not confirm the end does not matter.
                    sink.close().await.unwrap_or_default();
                    return Ok(());
                }
            }
            message = messages.next() => match received(message)? {
                Some(block) => write_stdout(&block).map_err(StreamError::Output)?,
                None => return Ok(()),
            },
        }
    }
}

/// Connects a local connection with a stream, until one of them ends.
pub(super) async fn attach_connection(
    stream: VmStream,
    connection: TcpStream,
) -> Result<(), StreamError> {
    let (mut sink, mut messages) = stream.split();
    let (mut reader, mut writer) = connection.into_split();
    let to_vm = async {
        let mut block = vec![0; BLOCK_SIZE];
        loop {
            let count = reader.read(&mut block).await.map_err(StreamError::Local)?;
            let Some(read) = block.get(..count).filter(|read| !read.is_empty()) else {
                sink.close().await.unwrap_or_default();
                return Ok::<(), StreamError>(());
            };
            let message = Message::binary(read.to_vec());
            sink.send(message).await.map_err(StreamError::ended)?;
        }
    };
    let from_vm = async {
        while let Some(block) = received(messages.next().await)? {
            writer.write_all(&block).await.map_err(StreamError::Local)?;
        }
        Ok::<(), StreamError>(())
    };
    tokio::select! {
        ended = to_vm => ended,
        ended = from_vm => ended,
    }
}

/// Returns the bytes of a message; `None` if the stream has ended.
fn received(message: Option<Result<Message, SocketError>>) -> Result<Option<Vec<u8>>, StreamError> {
    match message {
        None | Some(Ok(Message::Close(_)) | Err(SocketError::ConnectionClosed)) => Ok(None),
        Some(Ok(message @ (Message::Binary(_) | Message::Text(_)))) => {
            Ok(Some(message.into_data().to_vec()))
        }
        Some(Ok(_)) => Ok(Some(Vec::new())),
        Some(Err(error)) => Err(StreamError::ended(error)),
    }
}

/// Reads standard input in a thread of its own. A read cannot be interrupted, so the thread ends with the process.
fn read_stdin() -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel(PENDING_BLOCKS);
    std::thread::spawn(move || {
        let mut block = vec![0; BLOCK_SIZE];
        let mut stdin = std::io::stdin().lock();
        while let Ok(count) = stdin.read(&mut block) {
            let Some(read) = block.get(..count).filter(|read| !read.is_empty()) else { return };
            if sender.blocking_send(read.to_vec()).is_err() {
                return;
            }
        }
    });
    receiver
}

fn write_stdout(block: &[u8]) -> std::io::Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(block)?;
    stdout.flush()
}
