//! Transfer of both directions of a stream.
//!
//! Each direction has a future of its own: a VM that takes no input, or a user who takes no output, blocks neither the
//! other direction nor the end of the stream.

use std::pin::pin;
use std::time::Duration;

use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt as _, StreamExt as _};
use tokio::sync::mpsc::{Receiver, Sender};
use tokio::sync::oneshot;
use tokio::time::{interval, timeout};
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Bytes, Error as SocketError, Message};

use super::error::StreamError;
use super::liveness::{Liveness, PING_INTERVAL};
use super::open::VmStream;
use crate::cli::text::to_single_line;

/// Time for the rest of both directions after the user has left.
pub const GRACE: Duration = Duration::from_secs(2);

/// Input for the VM.
#[derive(Debug)]
pub enum Input {
    /// Bytes that are sent as one message.
    Bytes(Bytes),
    /// The user leaves.
    End,
}

/// Side that has ended a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The user has left.
    User,
    /// The VM or the server has ended the stream, with this reason. The reason may be empty.
    Vm(String),
}

/// Transfers both directions until the VM or the user ends the stream. The capacities of the channels limit the bytes that
/// wait: with full channels, the stream is not read, and no more input is taken. `escaped` also ends the stream, without
/// waiting for the input before it.
///
/// # Errors
/// Returns an error if the connection is lost, or if the server closes it with an error.
pub async fn transfer(
    stream: VmStream,
    input: Receiver<Input>,
    output: Sender<Bytes>,
    escaped: Option<oneshot::Receiver<()>>,
) -> Result<End, StreamError> {
    let (sink, messages) = stream.split();
    let liveness = Liveness::default();
    let mut to_vm = pin!(send_input(sink, input));
    let mut from_vm = pin!(receive_output(messages, output, &liveness));
    let mut lost = pin!(liveness.limit());
    let mut escape = pin!(wait_for_escape(escaped));
    tokio::select! {
        sent = &mut to_vm => {
            // The server confirms the end; if sending failed, its message has the reason.
            let rest = timeout(GRACE, &mut from_vm).await;
            match (sent, rest) {
                (Err(error), Err(_)) => Err(error),
                (Err(_), Ok(rest)) => rest.map(End::Vm),
                (Ok(()), _) => Ok(End::User),
            }
        }
        received = &mut from_vm => received.map(End::Vm),
        () = &mut escape => {
            // The VM may take no input: the user leaves nevertheless.
            drop(timeout(GRACE, &mut to_vm).await);
            Ok(End::User)
        }
        error = &mut lost => Err(error),
    }
}

async fn wait_for_escape(escaped: Option<oneshot::Receiver<()>>) {
    let is_escaped = match escaped {
        Some(escaped) => escaped.await.is_ok(),
        None => false,
    };
    if !is_escaped {
        std::future::pending::<()>().await;
    }
}

/// Sends input and pings. Returns when the user leaves. If the input ends otherwise, only pings are sent.
async fn send_input(
    mut sink: SplitSink<VmStream, Message>,
    mut input: Receiver<Input>,
) -> Result<(), StreamError> {
    let mut pings = interval(PING_INTERVAL);
    // The first tick completes immediately.
    pings.tick().await;
    let mut has_input = true;
    loop {
        let message = tokio::select! {
            next = input.recv(), if has_input => match next {
                Some(Input::Bytes(block)) => Message::Binary(block),
                Some(Input::End) => {
                    // A server that does not confirm the end does not matter.
                    sink.close().await.unwrap_or_default();
                    return Ok(());
                }
                None => {
                    has_input = false;
                    continue;
                }
            },
            _ = pings.tick() => Message::Ping(Bytes::new()),
        };
        sink.send(message).await.map_err(StreamError::ended)?;
    }
}

/// Message of a stream.
enum Received {
    Block(Bytes),
    /// The server has ended the stream, with this reason.
    End(String),
}

/// Passes the messages of the VM to the output. Returns when the stream or the output has ended, with the reason of the
/// server.
async fn receive_output(
    mut messages: SplitStream<VmStream>,
    output: Sender<Bytes>,
    liveness: &Liveness,
) -> Result<String, StreamError> {
    loop {
        let block = match received(messages.next().await)? {
            Received::Block(block) => block,
            Received::End(reason) => return Ok(reason),
        };
        liveness.record_message();
        if block.is_empty() {
            continue;
        }
        liveness.set_blocked(true);
        let sent = output.send(block).await;
        liveness.set_blocked(false);
        if sent.is_err() {
            return Ok(String::new());
        }
    }
}

/// Returns the bytes of a message, or the end of the stream.
fn received(message: Option<Result<Message, SocketError>>) -> Result<Received, StreamError> {
    match message {
        None | Some(Ok(Message::Close(None)) | Err(SocketError::ConnectionClosed)) => {
            Ok(Received::End(String::new()))
        }
        Some(Ok(Message::Close(Some(frame)))) => {
            let reason = to_single_line(&frame.reason);
            if frame.code == CloseCode::Normal {
                Ok(Received::End(reason))
            } else {
                Err(StreamError::Closed { code: frame.code, reason })
            }
        }
        Some(Ok(message @ (Message::Binary(_) | Message::Text(_)))) => {
            Ok(Received::Block(message.into_data()))
        }
        Some(Ok(_)) => Ok(Received::Block(Bytes::new())),
        Some(Err(error)) => Err(StreamError::ended(error)),
    }
}
