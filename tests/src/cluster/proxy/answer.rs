//! What passes of an answer: line by line, as the lines of a watch are what its reader acts on.

use std::io;
use std::sync::Arc;

use anyhow::{Result, bail};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Channel, channel};
use hyper::body::Bytes;
use tokio::net::TcpStream;

use super::{Ended, Mood, Shared};

/// Of requests and answers.
pub(super) type Error = Box<dyn std::error::Error + Send + Sync>;
/// Of answers.
pub(super) type Body = BoxBody<Bytes, Error>;

/// An answer that is under way.
pub(super) struct Passing {
    pub(super) shared: Arc<Shared>,
    pub(super) verb: String,
    /// Of the request.
    pub(super) number: usize,
    /// Of the caller.
    pub(super) socket: Arc<TcpStream>,
}

/// The body as it reaches the caller.
pub(super) fn pass(body: Body, passing: Passing) -> Body {
    let (mut sender, passed) = Channel::new(1);
    tokio::spawn(async move {
        if let Err(error) = passing.run(body, &mut sender).await {
            // Without this, the connection would end in order.
            passing.socket.set_zero_linger().unwrap_or_default();
            sender.abort(error.into());
        }
    });
    passed.boxed()
}

impl Passing {
    /// An error is for a connection that is to be reset.
    async fn run(&self, mut body: Body, sender: &mut channel::Sender<Bytes, Error>) -> Result<()> {
        let mut ended = self.shared.ended.subscribe();
        let mut rest = Vec::new();
        loop {
            let Ended { reset_before, silent_before } = *ended.borrow_and_update();
            if self.number < reset_before {
                bail!("reset");
            }
            let silent = self.number < silent_before;
            let frame = tokio::select! {
                frame = body.frame() => frame,
                _ = ended.changed() => continue,
            };
            let Some(frame) = frame else {
                if silent {
                    // Until it is reset.
                    ended.wait_for(|ended| self.number < ended.reset_before).await?;
                    bail!("reset");
                }
                return self.lines(&rest, sender).await;
            };
            let Ok(data) = frame.map_err(io::Error::other)?.into_data() else { continue };
            if silent {
                continue;
            }
            rest.extend_from_slice(&data);
            if let Some(end) = rest.iter().rposition(|byte| *byte == b'\n') {
                let after = rest.split_off(end + 1);
                self.lines(&rest, sender).await?;
                rest = after;
            }
        }
    }

    async fn lines(&self, lines: &[u8], sender: &mut channel::Sender<Bytes, Error>) -> Result<()> {
        let cut = match self.shared.mood_for(&self.verb) {
            Mood::Garble(from, to) => {
                let garbled = String::from_utf8_lossy(lines).replace(&from, &to);
                sender.send_data(garbled.into()).await?;
                return Ok(());
            }
            Mood::Cut => lines.len() / 2,
            Mood::Well | Mood::Answer(..) | Mood::Slow(_) => lines.len(),
        };
        if let Some(data) = lines.get(..cut).filter(|data| !data.is_empty()) {
            sender.send_data(Bytes::copy_from_slice(data)).await?;
        }
        if cut < lines.len() {
            // What was sent must leave before the reset takes it back.
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            bail!("cut");
        }
        Ok(())
    }
}
