//! Limits for the resources that connections to one server use.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::client::legacy::connect::{Connected, Connection};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::error::UntrustedError;

/// Maximum number of connections to one server, including connections that are being established or closed. A client
/// uses five: one for a watch, and four for requests.
const MAX_CONNECTIONS: usize = 8;
/// Maximum size in bytes of a small answer or event, which needs no permit and thus does not wait for the answers of
/// other servers.
pub(super) const MAX_SMALL_ANSWER_LENGTH: usize = 1 << 18;
/// Maximum number of large answers and events that are received at the same time, from all servers together. Each has
/// at most 4 MiB.
const MAX_LARGE_ANSWERS: usize = 16;
/// Time limit for receiving the rest of a large answer or event, once its permit is acquired. With 16 permits, even an
/// answer that waits for the answers of 48 slow servers is complete within `CALL_TIMEOUT`.
const LARGE_ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Permits for large answers and events. Clones share the permits, so that the limit applies to several servers
/// together.
#[derive(Clone, Debug)]
pub struct LargeAnswerPermits(Arc<Semaphore>);

impl Default for LargeAnswerPermits {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_LARGE_ANSWERS)))
    }
}

/// Permit for one large answer or event. Each server can hold at most one permit.
#[derive(Debug)]
pub(super) struct LargeAnswerPermit {
    /// Time until which the answer must be complete.
    pub(super) deadline: Instant,
    _own: OwnedSemaphorePermit,
    _shared: OwnedSemaphorePermit,
}

/// Permits for the connections and the name lookups of one server. The owner of the server determines how long a TLS
/// handshake, the end of a connection and a lookup take. Therefore a client that replaces another client of the same
/// server uses the same permits.
#[derive(Clone, Debug)]
pub struct ConnectionSlots {
    connections: Arc<Semaphore>,
    lookups: Arc<Semaphore>,
    /// Limits this server to one large answer. Without this limit, one server could hold all shared permits.
    large_answer: Arc<Semaphore>,
    large_answers: LargeAnswerPermits,
}

impl Default for ConnectionSlots {
    fn default() -> Self {
        Self::new(LargeAnswerPermits::default())
    }
}

impl ConnectionSlots {
    /// Returns the permits of one server. Servers whose `large_answers` are clones share the permits for large answers.
    #[must_use]
    pub fn new(large_answers: LargeAnswerPermits) -> Self {
        Self {
            connections: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            // One lookup at a time, because each lookup occupies a thread of the pool that all lookups and file
            // operations of the process share.
            lookups: Arc::new(Semaphore::new(1)),
            large_answer: Arc::new(Semaphore::new(1)),
            large_answers,
        }
    }

    pub(super) async fn acquire_connection(&self) -> Result<OwnedSemaphorePermit, UntrustedError> {
        acquire(&self.connections).await
    }

    pub(super) async fn acquire_lookup(&self) -> Result<OwnedSemaphorePermit, UntrustedError> {
        acquire(&self.lookups).await
    }

    /// Waits for the permit for a large answer or event. The caller must limit the time of this call.
    pub(super) async fn acquire_large_answer(&self) -> Result<LargeAnswerPermit, UntrustedError> {
        let own = acquire(&self.large_answer).await?;
        let shared = acquire(&self.large_answers.0).await?;
        let deadline = Instant::now() + LARGE_ANSWER_TIMEOUT;
        Ok(LargeAnswerPermit { deadline, _own: own, _shared: shared })
    }
}

async fn acquire(permits: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, UntrustedError> {
    Arc::clone(permits).acquire_owned().await.map_err(|_| UntrustedError::Closed)
}

/// A connection that holds a permit and returns the permit when the connection is closed.
#[derive(Debug)]
pub(super) struct CountedStream {
    pub(super) stream: TcpStream,
    pub(super) _permit: OwnedSemaphorePermit,
}

impl Connection for CountedStream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for CountedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for CountedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn each_server_gets_one_of_the_shared_permits() {
        let short = Duration::from_millis(20);
        let all = LargeAnswerPermits::default();
        let (first, other) = (ConnectionSlots::new(all.clone()), ConnectionSlots::new(all.clone()));
        let held = first.acquire_large_answer().await.unwrap();
        assert!(timeout(short, first.acquire_large_answer()).await.is_err(), "one for each server");
        drop(other.acquire_large_answer().await.unwrap());
        let mut others = Vec::new();
        for _ in 1..MAX_LARGE_ANSWERS {
            others.push(ConnectionSlots::new(all.clone()).acquire_large_answer().await.unwrap());
        }
        assert!(timeout(short, other.acquire_large_answer()).await.is_err(), "all are in use");
        drop(held);
        assert!(timeout(short, other.acquire_large_answer()).await.is_ok());
    }
}
