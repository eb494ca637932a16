//! Limits of the resources that connections to one server use.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper_util::client::legacy::connect::{Connected, Connection};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::UntrustedError;

/// Largest number of connections, also of those that are being established or closed. A client uses five: for a watch and
/// four requests.
const MAX_CONNECTIONS: usize = 8;

/// Permits for the connections and the lookups of names of one server. The owner of the server chooses how long a TLS
/// handshake, the end of a connection and a lookup take, so clients that replace each other share one set of permits.
#[derive(Clone, Debug)]
pub struct ConnectionSlots {
    connections: Arc<Semaphore>,
    lookups: Arc<Semaphore>,
}

impl Default for ConnectionSlots {
    fn default() -> Self {
        Self {
            connections: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            // A lookup occupies a thread that all lookups and file operations of the process share.
            lookups: Arc::new(Semaphore::new(1)),
        }
    }
}

impl ConnectionSlots {
    pub(super) async fn connection(&self) -> Result<OwnedSemaphorePermit, UntrustedError> {
        acquire(&self.connections).await
    }

    pub(super) async fn lookup(&self) -> Result<OwnedSemaphorePermit, UntrustedError> {
        acquire(&self.lookups).await
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
