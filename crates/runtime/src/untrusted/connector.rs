//! Connections to untrusted servers: an address is checked after its name is resolved, immediately before the
//! connection. A name that resolves to another address later (DNS rebinding) is checked again.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use hyper::Uri;
use hyper_util::rt::TokioIo;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tower::Service;

use super::address::RefusedAddress;
use super::error::UntrustedError;

/// Returns an error if a client must not connect to the address.
pub type AddressPolicy = Arc<dyn Fn(SocketAddr) -> Result<(), RefusedAddress> + Send + Sync>;

/// Time limit for resolving a name, and for connecting to one address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Largest number of addresses of a name that are used.
const MAX_ADDRESSES: usize = 4;
/// Time without a packet after which the kernel checks a connection, and the interval of these checks. A watch sends
/// nothing, so a dead connection would stay unnoticed otherwise.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(10));

/// Connects to the addresses that a policy permits.
#[derive(Clone)]
pub(super) struct GuardedConnector {
    policy: AddressPolicy,
}

impl GuardedConnector {
    pub(super) const fn new(policy: AddressPolicy) -> Self {
        Self { policy }
    }
}

impl Service<Uri> for GuardedConnector {
    type Response = TokioIo<TcpStream>;
    type Error = UntrustedError;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let policy = Arc::clone(&self.policy);
        async move { connect(&uri, &policy).await.map(TokioIo::new) }.boxed()
    }
}

async fn connect(uri: &Uri, policy: &AddressPolicy) -> Result<TcpStream, UntrustedError> {
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let port = uri.port_u16().unwrap_or(443);
    let resolved = timeout(CONNECT_TIMEOUT, lookup_host((host, port))).await;
    let resolved = resolved.map_err(|_| UntrustedError::NameNotResolved)?;
    let resolved = resolved.map_err(|_| UntrustedError::NameNotResolved)?;
    let addresses: Vec<SocketAddr> = resolved.take(MAX_ADDRESSES).collect();
    // A name with one refused address is refused as a whole.
    for address in &addresses {
        policy(*address).map_err(UntrustedError::AddressRefused)?;
    }
    let mut last_error = UntrustedError::NameNotResolved;
    for address in addresses {
        match timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                enable_keepalive(&stream);
                return Ok(stream);
            }
            Ok(Err(error)) => last_error = UntrustedError::NotConnected(error.kind()),
            Err(_) => last_error = UntrustedError::NotConnected(io::ErrorKind::TimedOut),
        }
    }
    Err(last_error)
}

fn enable_keepalive(stream: &TcpStream) {
    let options = TcpKeepalive::new().with_time(KEEPALIVE.0).with_interval(KEEPALIVE.1);
    // Without keepalive, the idle timeout of the watch detects a dead connection.
    drop(SockRef::from(stream).set_tcp_keepalive(&options));
    drop(stream.set_nodelay(true));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strict_policy() -> AddressPolicy {
        Arc::new(RefusedAddress::check)
    }

    async fn try_connect(uri: &str, policy: &AddressPolicy) -> UntrustedError {
        connect(&uri.parse().unwrap(), policy).await.unwrap_err()
    }

    #[tokio::test]
    async fn refused_addresses_are_not_connected() {
        let refused = UntrustedError::AddressRefused(RefusedAddress::Loopback);
        for uri in ["https://127.0.0.1:1", "https://[::1]:1", "https://localhost:1"] {
            assert_eq!(try_connect(uri, &strict_policy()).await, refused, "{uri}");
        }
    }

    #[tokio::test]
    async fn each_connection_is_checked() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own = listener.local_addr().unwrap();
        let policy: AddressPolicy =
            Arc::new(
                move |address| {
                    if address == own { Err(RefusedAddress::InfraApiServer) } else { Ok(()) }
                },
            );
        let uri = format!("https://localhost:{}", own.port());
        let refused = UntrustedError::AddressRefused(RefusedAddress::InfraApiServer);
        assert_eq!(try_connect(&uri, &policy).await, refused);
        let anything: AddressPolicy = Arc::new(|_| Ok(()));
        assert!(connect(&uri.parse().unwrap(), &anything).await.is_ok());
        drop(listener);
        let refused = UntrustedError::NotConnected(io::ErrorKind::ConnectionRefused);
        assert_eq!(try_connect(&uri, &anything).await, refused);
    }
}
