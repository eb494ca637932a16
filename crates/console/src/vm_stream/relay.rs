//! Relay of both directions between a browser and a VM.
//!
//! A block is read only when the other side has taken the blocks before it, so that a side that does not read stops the
//! other one, and needs no memory.

use std::pin::pin;
use std::time::Duration;

use berth_runtime::vm_stream::{Bytes, GRACE, Input, PING_INTERVAL, VmStream, transfer};
use futures::{Sink, SinkExt as _, Stream, StreamExt as _};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{interval, timeout};
use tokio_tungstenite::tungstenite::{Error as SocketError, Message};

use super::browser::Browser;
use super::ending::Ending;

/// Number of blocks that wait in each direction.
const PENDING_BLOCKS: usize = 4;
/// Time without a message of the browser, also without answers to pings, after which its connection counts as lost.
const BROWSER_TIMEOUT: Duration = Duration::from_secs(90);

/// Relays both directions until the VM or the browser ends the stream, or until `ended` returns. `on_message` is called with
/// each message of the browser.
pub(crate) async fn relay(
    browser: &mut Browser,
    vm: VmStream,
    on_message: impl Fn(&[u8]),
    ended: impl Future<Output = Ending>,
) -> Ending {
    let (input_sender, input) = channel(PENDING_BLOCKS);
    let (output, blocks) = channel(PENDING_BLOCKS);
    let mut vm = pin!(transfer(vm, input, output, None));
    let Browser { sink, messages } = browser;
    let mut from_browser = pin!(read_browser(messages, input_sender.clone(), on_message));
    let mut to_browser = pin!(write_browser(sink, blocks));
    let mut ended = pin!(ended);
    let leave = || drop(input_sender.try_send(Input::End));
    tokio::select! {
        biased;
        end = &mut vm => {
            // The last output of the VM.
            drop(timeout(GRACE, &mut to_browser).await);
            Ending::of_end(end)
        }
        ending = &mut ended => ending,
        () = &mut from_browser => {
            leave();
            // The VM need not confirm the end.
            drop(timeout(GRACE, &mut vm).await);
            Ending::UserLeft
        }
        () = &mut to_browser => {
            leave();
            drop(timeout(GRACE, &mut vm).await);
            Ending::UserLeft
        }
    }
}

/// Passes the messages of the browser to the VM. Returns when the browser has left.
async fn read_browser(
    messages: &mut (impl Stream<Item = Result<Message, SocketError>> + Unpin),
    input: Sender<Input>,
    on_message: impl Fn(&[u8]),
) {
    while let Ok(Some(Ok(message))) = timeout(BROWSER_TIMEOUT, messages.next()).await {
        match message {
            Message::Binary(block) => {
                on_message(&block);
                if input.send(Input::Bytes(block)).await.is_err() {
                    // The stream to the VM has ended, and its end has a reason.
                    return std::future::pending().await;
                }
            }
            Message::Ping(_) | Message::Pong(_) => {}
            Message::Close(_) | Message::Text(_) | Message::Frame(_) => return,
        }
    }
}

/// Passes the blocks of the VM to the browser, and sends pings. Returns when the VM has ended the stream, or when the browser
/// has left.
async fn write_browser(
    sink: &mut (impl Sink<Message, Error = SocketError> + Unpin),
    mut blocks: Receiver<Bytes>,
) {
    let mut pings = interval(PING_INTERVAL);
    // The first tick completes immediately.
    pings.tick().await;
    loop {
        let message = tokio::select! {
            block = blocks.recv() => match block {
                Some(block) => Message::Binary(block),
                None => return,
            },
            _ = pings.tick() => Message::Ping(Bytes::new()),
        };
        if sink.send(message).await.is_err() {
            return;
        }
    }
}
