//! Connects a stream to a VM with standard input and output, or with a local connection.
//!
//! Each direction has a task of its own: a VM that takes no input, or a terminal that takes no output, blocks neither the
//! other direction nor the escape key.

use std::cell::Cell;
use std::io::{ErrorKind, Read as _, Write as _};
use std::pin::pin;
use std::time::Duration;

use berth_runtime::cli::print_error;
use berth_runtime::cli::text::to_single_line;
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::oneshot;
use tokio::time::{interval, timeout};
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Bytes, Error as SocketError, Message};

use super::stream::{StreamError, VmStream};

/// Size of a block that is read from standard input or a connection, in bytes.
const BLOCK_SIZE: usize = 16 * 1024;
/// Number of blocks that wait until they are sent. A key is a block: so many keys can be typed before the escape key, while
/// the VM takes no input.
const PENDING_INPUT: usize = 1024;
/// Number of blocks of output that wait until they are written.
const PENDING_OUTPUT: usize = 16;
/// Time for the rest of both directions after the user has left.
const GRACE: Duration = Duration::from_secs(2);
/// Time between two pings. Proxies and load balancers close connections that are idle for a minute or more.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// Number of pings without an answer after which the connection counts as lost.
const MAX_MISSING_PONGS: u32 = 2;

/// Input for the VM.
enum Input {
    Bytes(Vec<u8>),
    /// The user leaves.
    End,
}

/// Local side of a stream.
struct Local {
    input: Receiver<Input>,
    output: Sender<Vec<u8>>,
    /// Result of the output, after all of it was written.
    written: oneshot::Receiver<std::io::Result<()>>,
    /// Escape key; `None` if no key ends the stream.
    escaped: Option<oneshot::Receiver<()>>,
}

/// Side that has ended a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    User,
    Vm,
}

/// Connects standard input and output with a stream, until it ends. With `escape`, it also ends when the user types this byte;
/// otherwise, when standard input ends.
pub(super) async fn attach_terminal(
    stream: VmStream,
    escape: Option<u8>,
) -> Result<(), StreamError> {
    let (sender, input) = channel(PENDING_INPUT);
    let (escape_sender, escaped) = oneshot::channel();
    let (output, blocks) = channel(PENDING_OUTPUT);
    let (done, written) = oneshot::channel();
    // A read or write cannot be interrupted, so the threads end with the process.
    std::thread::spawn(move || read_stdin(&sender, escape, escape_sender));
    std::thread::spawn(move || done.send(write_stdout(blocks)).unwrap_or_default());
    let escaped = escape.and(Some(escaped));
    attach(stream, Local { input, output, written, escaped }).await
}

/// Connects a local connection with a stream, until one of them ends.
pub(super) async fn attach_connection(
    stream: VmStream,
    connection: TcpStream,
) -> Result<(), StreamError> {
    let (reader, writer) = connection.into_split();
    let (sender, input) = channel(PENDING_OUTPUT);
    let (output, blocks) = channel(PENDING_OUTPUT);
    let (done, written) = oneshot::channel();
    tokio::spawn(read_connection(reader, sender));
    tokio::spawn(async move {
        let result = write_connection(blocks, writer).await;
        done.send(result).unwrap_or_default();
    });
    attach(stream, Local { input, output, written, escaped: None }).await
}

async fn attach(stream: VmStream, local: Local) -> Result<(), StreamError> {
    let Local { input, output, written, escaped } = local;
    let ended = transfer(stream, input, output, escaped).await;
    // All of the VM's output is written, unless the user leaves: the output may be blocked.
    let written = match ended {
        Ok(End::Vm) => written.await,
        _ => timeout(GRACE, written).await.unwrap_or(Ok(Ok(()))),
    };
    ended?;
    match written {
        // A reader that has left is no error.
        Ok(Err(error))
            if !matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) =>
        {
            Err(StreamError::Output(error))
        }
        _ => Ok(()),
    }
}

/// Transfers both directions until the VM or the user ends the stream.
async fn transfer(
    stream: VmStream,
    input: Receiver<Input>,
    output: Sender<Vec<u8>>,
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
                (Err(_), Ok(rest)) => rest.map(|()| End::Vm),
                (Ok(()), _) => Ok(End::User),
            }
        }
        received = &mut from_vm => received.map(|()| End::Vm),
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
                Some(Input::Bytes(block)) => Message::binary(block),
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

/// Passes the messages of the VM to the output. Returns when the stream or the output has ended.
async fn receive_output(
    mut messages: SplitStream<VmStream>,
    output: Sender<Vec<u8>>,
    liveness: &Liveness,
) -> Result<(), StreamError> {
    while let Some(block) = received(messages.next().await)? {
        liveness.count.set(0);
        if block.is_empty() {
            continue;
        }
        liveness.is_paused.set(true);
        let sent = output.send(block).await;
        liveness.is_paused.set(false);
        if sent.is_err() {
            return Ok(());
        }
    }
    Ok(())
}

/// Returns the bytes of a message; `None` if the stream has ended.
fn received(message: Option<Result<Message, SocketError>>) -> Result<Option<Vec<u8>>, StreamError> {
    match message {
        None | Some(Ok(Message::Close(None)) | Err(SocketError::ConnectionClosed)) => Ok(None),
        Some(Ok(Message::Close(Some(frame)))) => {
            let reason = to_single_line(&frame.reason);
            if frame.code != CloseCode::Normal {
                return Err(StreamError::Closed { code: frame.code, reason });
            }
            if !reason.is_empty() {
                print_error(&reason);
            }
            Ok(None)
        }
        Some(Ok(message @ (Message::Binary(_) | Message::Text(_)))) => {
            Ok(Some(message.into_data().to_vec()))
        }
        Some(Ok(_)) => Ok(Some(Vec::new())),
        Some(Err(error)) => Err(StreamError::ended(error)),
    }
}

/// Signs of life of the server.
#[derive(Debug, Default)]
struct Liveness {
    /// Number of ping intervals since the last message.
    count: Cell<u32>,
    /// True if no message is read, because the output is blocked.
    is_paused: Cell<bool>,
}

impl Liveness {
    /// Returns an error when the server has not answered pings.
    async fn limit(&self) -> StreamError {
        let mut ticks = interval(PING_INTERVAL);
        ticks.tick().await;
        loop {
            ticks.tick().await;
            let count = if self.is_paused.get() { 0 } else { self.count.get().saturating_add(1) };
            if count > MAX_MISSING_PONGS {
                return StreamError::Unresponsive;
            }
            self.count.set(count);
        }
    }
}

/// Reads standard input until it ends or, with `escape`, until this byte. Without `escape`, the end of the input ends the
/// stream.
fn read_stdin(sender: &Sender<Input>, escape: Option<u8>, escaped: oneshot::Sender<()>) {
    let mut block = vec![0; BLOCK_SIZE];
    let mut stdin = std::io::stdin().lock();
    loop {
        let count = match stdin.read(&mut block) {
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => 0,
        };
        let read = block.get(..count).unwrap_or_default();
        if read.is_empty() {
            if escape.is_none() {
                sender.blocking_send(Input::End).unwrap_or_default();
            }
            return;
        }
        let end = escape.and_then(|escape| read.iter().position(|byte| *byte == escape));
        let Some(end) = end else {
            if sender.blocking_send(Input::Bytes(read.to_vec())).is_err() {
                return;
            }
            continue;
        };
        // If the VM takes no input, these bytes are lost: the user leaves.
        let before = read.get(..end).unwrap_or_default();
        if !before.is_empty() {
            drop(sender.try_send(Input::Bytes(before.to_vec())));
        }
        drop(sender.try_send(Input::End));
        escaped.send(()).unwrap_or_default();
        return;
    }
}

fn write_stdout(mut blocks: Receiver<Vec<u8>>) -> std::io::Result<()> {
    while let Some(block) = blocks.blocking_recv() {
        let mut stdout = std::io::stdout().lock();
        stdout.write_all(&block)?;
        stdout.flush()?;
    }
    Ok(())
}

/// Reads a connection. Its end, also by an error, ends the stream.
async fn read_connection(mut reader: OwnedReadHalf, sender: Sender<Input>) {
    let mut block = vec![0; BLOCK_SIZE];
    while let Ok(count) = reader.read(&mut block).await {
        let Some(read) = block.get(..count).filter(|read| !read.is_empty()) else { break };
        if sender.send(Input::Bytes(read.to_vec())).await.is_err() {
            return;
        }
    }
    sender.send(Input::End).await.unwrap_or_default();
}

async fn write_connection(
    mut blocks: Receiver<Vec<u8>>,
    mut writer: OwnedWriteHalf,
) -> std::io::Result<()> {
    while let Some(block) = blocks.recv().await {
        writer.write_all(&block).await?;
    }
    // The viewer may have closed the connection already.
    writer.shutdown().await.unwrap_or_default();
    Ok(())
}
