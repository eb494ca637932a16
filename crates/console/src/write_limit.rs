//! Time limit for a client to receive what the console has written. hyper has no such limit: without it, a client that does
//! not read would keep its connection.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// A connection with a time limit for each response, and for each event of a stream.
pub(crate) struct WriteLimit<S> {
    stream: S,
    limit: Duration,
    /// End of the limit; `None` while nothing waits to be sent.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S> WriteLimit<S> {
    pub(crate) const fn new(stream: S, limit: Duration) -> Self {
        Self { stream, limit, deadline: None }
    }

    /// Returns an error if the result is pending, and has been incomplete since the last flush for the time of the limit.
    /// Progress alone does not extend the limit, so that a client cannot read one byte at a time.
    fn check<T>(
        &mut self,
        context: &mut Context<'_>,
        result: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if result.is_ready() {
            return result;
        }
        let limit = self.limit;
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep(limit)));
        deadline.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteLimit<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteLimit<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.check(context, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.check(context, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_flush(context);
        if result.is_ready() {
            self.deadline = None;
        }
        self.check(context, result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_shutdown(context);
        self.check(context, result)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    const LIMIT: Duration = Duration::from_millis(50);

    #[tokio::test]
    async fn clients_that_do_not_read_are_disconnected() {
        let (near, far) = duplex(16);
        let mut limited = WriteLimit::new(near, LIMIT);
        limited.write_all(&[0; 16]).await.unwrap();
        limited.flush().await.unwrap();
        let error = limited.write_all(&[0; 16]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(far);
    }

    #[tokio::test]
    async fn clients_that_read_stay_connected() {
        let (near, mut far) = duplex(16);
        let mut limited = WriteLimit::new(near, Duration::from_secs(3600));
        let reading = tokio::spawn(async move {
            let mut read = Vec::new();
            far.read_to_end(&mut read).await.unwrap();
            read.len()
        });
        for _ in 0..10 {
            limited.write_all(&[0; 100]).await.unwrap();
            limited.flush().await.unwrap();
            assert!(limited.deadline.is_none());
        }
        drop(limited);
        assert_eq!(reading.await.unwrap(), 1000);
    }
}
