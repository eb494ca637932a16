//! HTTP server, with limits for slow clients and for the number of connections.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::client_address::limit_key;
use crate::keyed_limit::KeyedLimit;
use crate::requests::Peer;
use crate::tls::ServerCertificate;
use crate::write_limit::WriteLimit;

/// Maximum number of connections. Further ones are closed at once. If they waited, the queue of the kernel would become full,
/// and the kubelet, which connects to find out whether the console runs, would restart it.
const MAX_CONNECTIONS: usize = 2000;
/// Maximum number of connections of an address. A browser opens six.
pub(crate) const MAX_ADDRESS_CONNECTIONS: usize = 64;
/// Time limit for the TLS handshake, and for receiving the head of a request. It also ends idle connections.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of the buffer of a connection, and so of the head of a request. hyper's default is 400 KiB, which all
/// connections together do not have.
const MAX_BUFFER_BYTES: usize = 32 << 10;
/// Time limit for a client to receive a response, or an event of a stream.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// Accepts connections until the future is dropped. An address may have `address_connections` connections; further ones are
/// closed at once.
pub(crate) async fn serve(
    listener: TcpListener,
    certificate: Option<Arc<ServerCertificate>>,
    address_connections: usize,
    router: Router,
) {
    let by_address = KeyedLimit::new(address_connections);
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let (stream, peer) = accept(&listener).await;
        let Ok(permit) = Arc::clone(&connections).try_acquire_owned() else {
            tracing::debug!(peer = %peer.ip(), "closed a connection, because there are too many");
            continue;
        };
        let Some(of_address) = by_address.try_acquire(limit_key(peer.ip())) else {
            tracing::debug!(peer = %peer.ip(), "closed a connection of an address with too many");
            continue;
        };
        let (router, certificate) = (router.clone(), certificate.clone());
        tokio::spawn(async move {
            serve_client(stream, peer.ip(), certificate.as_deref(), router).await;
            drop((permit, of_address));
        });
    }
}

/// Accepts the next connection. If there is no free file descriptor, waits a second and retries.
async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                // Without this option, small responses may be delayed.
                stream.set_nodelay(true).unwrap_or_default();
                return (stream, peer);
            }
            Err(error) => {
                tracing::warn!(%error, "failed to accept a connection; trying again");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

async fn serve_client(
    stream: TcpStream,
    peer: IpAddr,
    certificate: Option<&ServerCertificate>,
    router: Router,
) {
    // Below TLS, which could otherwise store what the client does not receive.
    let stream = WriteLimit::new(stream, WRITE_TIMEOUT);
    match certificate {
        None => serve_stream(stream, peer, router).await,
        Some(certificate) => {
            match timeout(HEAD_TIMEOUT, certificate.acceptor().accept(stream)).await {
                Ok(Ok(stream)) => serve_stream(stream, peer, router).await,
                Ok(Err(error)) => tracing::debug!(%peer, %error, "the TLS handshake failed"),
                Err(_) => tracing::debug!(%peer, "the TLS handshake took too long"),
            }
        }
    }
}

async fn serve_stream(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: IpAddr,
    router: Router,
) {
    let routes = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Peer(peer));
        routes.call(request)
    });
    let mut builder = http1::Builder::new();
    let builder = builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    let builder = builder.max_buf_size(MAX_BUFFER_BYTES);
    if let Err(error) =
        builder.serve_connection(TokioIo::new(stream), service).with_upgrades().await
    {
        tracing::debug!(%peer, %error, "the client closed the connection");
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    async fn request(address: SocketAddr) -> String {
        let mut client = TcpStream::connect(address).await.unwrap();
        let request = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        // The server may have closed the connection before.
        client.write_all(request).await.unwrap_or_default();
        let mut response = String::new();
        client.read_to_string(&mut response).await.map(|_| response).unwrap_or_default()
    }

    #[tokio::test]
    async fn an_address_has_a_limited_number_of_connections() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/", get(async || "ok"));
        let server = tokio::spawn(serve(listener, None, 2, router));
        assert!(request(address).await.ends_with("ok"));
        let mut idle = Vec::new();
        for _ in 0..2 {
            idle.push(TcpStream::connect(address).await.unwrap());
        }
        assert_eq!(request(address).await, "", "the third connection is closed");
        drop(idle);
        while request(address).await.is_empty() {
            tokio::task::yield_now().await;
        }
        server.abort();
    }
}
