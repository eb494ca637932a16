//! Limits of the resources that connections to one server use.

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

/// Largest number of connections, also of those that are being established or closed. A client uses five: for a watch and
/// four requests.
const MAX_CONNECTIONS: usize = 8;
/// Number of bytes of an answer or an event that need no permit, so it waits for no answer of another server.
pub(super) const SMALL_LENGTH: usize = 1 << 18;
/// Largest number of larger answers and events of all servers at the same time. Each has at most 4 MiB.
const MAX_LARGE_ANSWERS: usize = 16;
/// Time in which the rest of a larger answer or event must arrive. An answer that waits for those of 48 slow servers is
/// still in time.
const LARGE_ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Permits for large answers and events, which several servers share.
#[derive(Clone, Debug)]
pub struct LargeAnswers(Arc<Semaphore>);

impl Default for LargeAnswers {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_LARGE_ANSWERS)))
    }
}

/// Permit for a large answer or event. A server gets one at the same time.
#[derive(Debug)]
pub(super) struct LargeAnswer {
    /// Time until which the answer must be complete.
    pub(super) deadline: Instant,
    _own: OwnedSemaphorePermit,
    _shared: OwnedSemaphorePermit,
}

/// Permits for the connections and the lookups of names of one server. The owner of the server chooses how long a TLS
/// handshake, the end of a connection and a lookup take, so clients that replace each other share one set of permits.
#[derive(Clone, Debug)]
pub struct ConnectionSlots {
    connections: Arc<Semaphore>,
    lookups: Arc<Semaphore>,
    /// Without it, one server could wait for all shared permits.
    large_answer: Arc<Semaphore>,
    large_answers: LargeAnswers,
}

impl Default for ConnectionSlots {
    fn default() -> Self {
        Self::new(LargeAnswers::default())
    }
}

impl ConnectionSlots {
    /// Returns the permits of one server. Several servers share the permits for large answers.
    #[must_use]
    pub fn new(large_answers: LargeAnswers) -> Self {
        Self {
            connections: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            // A lookup occupies a thread that all lookups and file operations of the process share.
            lookups: Arc::new(Semaphore::new(1)),
            large_answer: Arc::new(Semaphore::new(1)),
            large_answers,
        }
    }

    pub(super) async fn connection(&self) -> Result<OwnedSemaphorePermit, UntrustedError> {
        acquire(&self.connections).await
    }

    pub(super) async fn lookup(&self) -> Result<OwnedSemaphorePermit, UntrustedError> {
        acquire(&self.lookups).await
    }

    /// Waits for the permit for a large answer or event. The caller limits the time.
    pub(super) async fn large_answer(&self) -> Result<LargeAnswer, UntrustedError> {
        let own = acquire(&self.large_answer).await?;
        let shared = acquire(&self.large_answers.0).await?;
        let deadline = Instant::now() + LARGE_ANSWER_TIMEOUT;
        Ok(LargeAnswer { deadline, _own: own, _shared: shared })
    }
}

async fn acquire(permits: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, UntrustedError> {
    Arc::clone(permits).acquire_owned().await.map_err(|_| UntrustedError::Closed)
}

/// A connection that returns its permit when it is closed.
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
        let all = LargeAnswers::default();
        let (first, other) = (ConnectionSlots::new(all.clone()), ConnectionSlots::new(all.clone()));
        let held = first.large_answer().await.unwrap();
        assert!(timeout(short, first.large_answer()).await.is_err(), "one for each server");
        drop(other.large_answer().await.unwrap());
        let mut others = Vec::new();
        for _ in 1..MAX_LARGE_ANSWERS {
            others.push(ConnectionSlots::new(all.clone()).large_answer().await.unwrap());
        }
        assert!(timeout(short, other.large_answer()).await.is_err(), "all are in use");
        drop(held);
        assert!(timeout(short, other.large_answer()).await.is_ok());
    }
}
