//! Detection of connections whose other side does not answer.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use tokio::time::interval;

use super::error::StreamError;

/// Time between two pings. Proxies and load balancers close connections that are idle for a minute or more.
pub const PING_INTERVAL: Duration = Duration::from_secs(30);
/// Number of pings without an answer after which the connection counts as lost.
const MAX_MISSING_PONGS: u32 = 2;

/// Signs of life of the server.
#[derive(Debug, Default)]
pub(super) struct Liveness {
    /// Number of ping intervals since the last message.
    count: AtomicU32,
    /// True if no message is read, because the output is blocked.
    is_blocked: AtomicBool,
}

impl Liveness {
    /// Records a message of the server.
    pub(super) fn record_message(&self) {
        self.count.store(0, Ordering::Relaxed);
    }

    /// Records that no messages are read, or that they are read again.
    pub(super) fn set_blocked(&self, is_blocked: bool) {
        self.is_blocked.store(is_blocked, Ordering::Relaxed);
    }

    /// Returns an error when the server has not answered pings.
    pub(super) async fn limit(&self) -> StreamError {
        let mut ticks = interval(PING_INTERVAL);
        // The first tick completes immediately.
        ticks.tick().await;
        loop {
            ticks.tick().await;
            if self.is_blocked.load(Ordering::Relaxed) {
                self.record_message();
            } else if self.count.fetch_add(1, Ordering::Relaxed) >= MAX_MISSING_PONGS {
                return StreamError::Unresponsive;
            }
        }
    }
}
