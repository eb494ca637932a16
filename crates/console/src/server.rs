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

use crate::requests::Peer;
use crate::tls::ServerCertificate;

/// Maximum number of connections. Further clients wait until a connection ends.
const MAX_CONNECTIONS: usize = 2000;
/// Time limit for the TLS handshake, and for receiving the head of a request. It also ends idle connections.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Accepts connections until the future is dropped.
pub(crate) async fn serve(
    listener: TcpListener,
    certificate: Option<Arc<ServerCertificate>>,
    router: Router,
) {
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(permit) = Arc::clone(&connections).acquire_owned().await else { return };
        let (stream, peer) = accept(&listener).await;
        let (router, certificate) = (router.clone(), certificate.clone());
        tokio::spawn(async move {
            serve_client(stream, peer.ip(), certificate.as_deref(), router).await;
            drop(permit);
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
    if let Err(error) = builder.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%peer, %error, "the client closed the connection");
    }
}
