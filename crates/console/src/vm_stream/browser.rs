//! Connection of a browser: a WebSocket that a page of the console has opened.

use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::Response;
use berth_runtime::vm_stream::GRACE;
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt as _, StreamExt as _};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::server::create_response_with_body;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error as SocketError, Message};

use super::ending::Ending;

/// Maximum size of a message. The page divides long texts that users paste.
const MAX_MESSAGE_BYTES: usize = 64 << 10;
/// Size of the buffer for received bytes, which each stream has.
const READ_BUFFER_BYTES: usize = 8 << 10;
/// Time limit for the browser to begin with the protocol after the response.
const UPGRADE_TIMEOUT: Duration = Duration::from_secs(10);
/// Message to the page after which the messages of the VM follow.
const OPEN: &str = "open";

type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// Connection of a browser.
pub(crate) struct Browser {
    pub(super) sink: SplitSink<Socket, Message>,
    pub(super) messages: SplitStream<Socket>,
}

/// Returns the response that changes the protocol of a connection to WebSocket, and the connection after the response.
///
/// axum's own WebSockets use another version of tungstenite than the streams to VMs: messages would have to be converted, and
/// the program would have both versions.
///
/// # Errors
/// Returns the status code of the response to a request that is no valid handshake.
pub(crate) fn upgrade(mut request: Request) -> Result<(Response, OnUpgrade), StatusCode> {
    let response = create_response_with_body(&request, Body::empty);
    let response = response.map_err(|_| StatusCode::BAD_REQUEST)?;
    let upgrade = request.extensions_mut().remove::<OnUpgrade>();
    Ok((response, upgrade.ok_or(StatusCode::UPGRADE_REQUIRED)?))
}

impl Browser {
    /// Waits for the connection after the response; `None` if the browser has left.
    pub(crate) async fn accept(upgrade: OnUpgrade) -> Option<Self> {
        let upgraded = timeout(UPGRADE_TIMEOUT, upgrade).await.ok()?.ok()?;
        let config = WebSocketConfig::default()
            .read_buffer_size(READ_BUFFER_BYTES)
            .max_message_size(Some(MAX_MESSAGE_BYTES))
            .max_frame_size(Some(MAX_MESSAGE_BYTES));
        let io = TokioIo::new(upgraded);
        let socket = WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await;
        let (sink, messages) = socket.split();
        Some(Self { sink, messages })
    }

    /// Reports to the page that the stream to the VM is open.
    pub(crate) async fn report_open(&mut self) -> Result<(), SocketError> {
        self.sink.send(Message::text(OPEN)).await
    }

    /// Closes the connection with a reason for the page.
    pub(crate) async fn close(mut self, ending: &Ending) {
        let close = async {
            let frame = Message::Close(Some(ending.frame()));
            self.sink.send(frame).await?;
            // A connection with bytes that were not read is reset, and the browser would lose the reason.
            while self.messages.next().await.transpose()?.is_some() {}
            Ok::<_, SocketError>(())
        };
        // The browser may have closed the connection.
        drop(timeout(GRACE, close).await);
    }
}
