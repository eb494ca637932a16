//! Forwards responses line by line, because the client of a watch handles each line as one event.

use std::io;
use std::sync::Arc;

use anyhow::{Result, bail};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Channel, channel};
use hyper::body::Bytes;
use tokio::net::TcpStream;

use super::{Behaviour, ResponseLimits, Shared};

/// Error of requests and responses.
pub(super) type Error = Box<dyn std::error::Error + Send + Sync>;
/// Body of responses.
pub(super) type Body = BoxBody<Bytes, Error>;

/// Response that is being forwarded.
pub(super) struct ForwardedResponse {
    pub(super) shared: Arc<Shared>,
    pub(super) verb: String,
    /// Number of the request.
    pub(super) number: usize,
    /// Socket of the caller.
    pub(super) socket: Arc<TcpStream>,
}

/// Returns the body that the caller receives.
pub(super) fn forward_body(body: Body, response: ForwardedResponse) -> Body {
    let (mut sender, passed) = Channel::new(1);
    tokio::spawn(async move {
        if let Err(error) = response.run(body, &mut sender).await {
            // Without this setting the kernel closes the connection with FIN instead of RST.
            response.socket.set_zero_linger().unwrap_or_default();
            sender.abort(error.into());
        }
    });
    passed.boxed()
}

impl ForwardedResponse {
    /// Forwards the body. An error means that the connection is to be reset.
    async fn run(&self, mut body: Body, sender: &mut channel::Sender<Bytes, Error>) -> Result<()> {
        let mut closed_responses = self.shared.response_limits.subscribe();
        let mut buffer = Vec::new();
        loop {
            let ResponseLimits { reset_before, stalled_before } =
                *closed_responses.borrow_and_update();
            if self.number < reset_before {
                bail!("the test resets the response");
            }
            let is_stalled = self.number < stalled_before;
            let frame = tokio::select! {
                frame = body.frame() => frame,
                _ = closed_responses.changed() => continue,
            };
            let Some(frame) = frame else {
                if is_stalled {
                    // The API server has completed the response, but the caller must receive a reset and not the end of
                    // the response.
                    closed_responses.wait_for(|ended| self.number < ended.reset_before).await?;
                    bail!("the test resets the response");
                }
                return self.forward_lines(&buffer, sender).await;
            };
            let Ok(data) = frame.map_err(io::Error::other)?.into_data() else { continue };
            if is_stalled {
                continue;
            }
            buffer.extend_from_slice(&data);
            if let Some(end) = buffer.iter().rposition(|byte| *byte == b'\n') {
                let after = buffer.split_off(end + 1);
                self.forward_lines(&buffer, sender).await?;
                buffer = after;
            }
        }
    }

    async fn forward_lines(
        &self,
        lines: &[u8],
        sender: &mut channel::Sender<Bytes, Error>,
    ) -> Result<()> {
        let length = match self.shared.behaviour_for(&self.verb) {
            Behaviour::ReplaceText(from, to) => {
                let garbled = String::from_utf8_lossy(lines).replace(&from, &to);
                sender.send_data(garbled.into()).await?;
                return Ok(());
            }
            Behaviour::Truncate => lines.len() / 2,
            Behaviour::Forward | Behaviour::Respond(..) | Behaviour::Delay(_) => lines.len(),
        };
        if let Some(data) = lines.get(..length).filter(|data| !data.is_empty()) {
            sender.send_data(Bytes::copy_from_slice(data)).await?;
        }
        if length < lines.len() {
            // A reset discards the data that the kernel has not sent yet, so the reset must wait until the kernel has
            // sent the data.
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            bail!("the test cuts off the response");
        }
        Ok(())
    }
}
