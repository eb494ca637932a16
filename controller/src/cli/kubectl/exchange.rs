//! Connects a stream to a VM with standard input and output, or with a local connection.

use std::io::{ErrorKind, Read as _, Write as _};

use berth_runtime::cli::print_error;
use berth_runtime::vm_stream::{Bytes, End, GRACE, Input, StreamError, VmStream, transfer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Size of a block that is read from standard input or a connection, in bytes.
const BLOCK_SIZE: usize = 16 * 1024;
/// Number of blocks that wait until they are sent. A key is a block: so many keys can be typed before the escape key, while
/// the VM takes no input.
const PENDING_INPUT: usize = 1024;
/// Number of blocks of output that wait until they are written.
const PENDING_OUTPUT: usize = 16;

/// Local side of a stream.
struct Local {
    input: Receiver<Input>,
    output: Sender<Bytes>,
    /// Result of the output, after all of it was written.
    written: oneshot::Receiver<std::io::Result<()>>,
    /// Escape key; `None` if no key ends the stream.
    escaped: Option<oneshot::Receiver<()>>,
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
        Ok(End::Vm(_)) => written.await,
        _ => timeout(GRACE, written).await.unwrap_or(Ok(Ok(()))),
    };
    if let End::Vm(reason) = ended?
        && !reason.is_empty()
    {
        print_error(&reason);
    }
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
            if sender.blocking_send(Input::Bytes(Bytes::copy_from_slice(read))).is_err() {
                return;
            }
            continue;
        };
        // If the VM takes no input, these bytes are lost: the user leaves.
        let before = read.get(..end).unwrap_or_default();
        if !before.is_empty() {
            drop(sender.try_send(Input::Bytes(Bytes::copy_from_slice(before))));
        }
        drop(sender.try_send(Input::End));
        escaped.send(()).unwrap_or_default();
        return;
    }
}

fn write_stdout(mut blocks: Receiver<Bytes>) -> std::io::Result<()> {
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
        if sender.send(Input::Bytes(Bytes::copy_from_slice(read))).await.is_err() {
            return;
        }
    }
    sender.send(Input::End).await.unwrap_or_default();
}

async fn write_connection(
    mut blocks: Receiver<Bytes>,
    mut writer: OwnedWriteHalf,
) -> std::io::Result<()> {
    while let Some(block) = blocks.recv().await {
        writer.write_all(&block).await?;
    }
    // The viewer may have closed the connection already.
    writer.shutdown().await.unwrap_or_default();
    Ok(())
}
