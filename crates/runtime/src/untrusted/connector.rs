//! Connections to untrusted servers. An address is checked after its host name is resolved, immediately before the
//! connection, so a host name that later resolves to another address (DNS rebinding) is checked again.

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
use tower::{BoxError, Service};

use super::address::RefusedAddress;
use super::error::UntrustedError;
use super::slots::{ConnectionSlots, CountedStream};
use crate::call::CALL_TIMEOUT;

/// Returns an error if a client must not connect to the address.
pub type AddressPolicy = Arc<dyn Fn(SocketAddr) -> Result<(), RefusedAddress> + Send + Sync>;

/// Time limit for resolving a name, and for connecting to one address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of addresses that are tried for a host name.
const MAX_ADDRESSES: usize = 4;
/// TCP keepalive: idle time before the first probe, and interval of the probes. The client of a watch sends nothing, so
/// without probes it would not detect a dead connection.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(10));
/// Time after which the kernel closes a connection whose server does not acknowledge data or keepalive probes
/// (`TCP_USER_TIMEOUT`).
const SEND_TIMEOUT: Duration = Duration::from_secs(60);

/// Connects to addresses, but only if a policy permits them.
#[derive(Clone)]
pub(super) struct GuardedConnector {
    policy: AddressPolicy,
    slots: ConnectionSlots,
}

impl GuardedConnector {
    pub(super) const fn new(policy: AddressPolicy, slots: ConnectionSlots) -> Self {
        Self { policy, slots }
    }
}

impl Service<Uri> for GuardedConnector {
    type Response = TokioIo<CountedStream>;
    type Error = UntrustedError;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let this = self.clone();
        async move { connect(&uri, &this.policy, &this.slots).await.map(TokioIo::new) }.boxed()
    }
}

/// Limits the time in which a connector establishes a connection, including TLS. The limit is needed because the HTTP
/// client continues to connect even after the request that needed the connection has ended.
#[derive(Clone)]
pub(super) struct TimeLimitedConnector<C> {
    connector: C,
    limit: Duration,
}

impl<C> TimeLimitedConnector<C> {
    pub(super) const fn new(connector: C) -> Self {
        Self { connector, limit: CALL_TIMEOUT }
    }
}

impl<C> Service<Uri> for TimeLimitedConnector<C>
where
    C: Service<Uri, Error = BoxError, Future: Send + 'static>,
{
    type Response = C::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<C::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.connector.poll_ready(context)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connected = timeout(self.limit, self.connector.call(uri));
        connected
            .map(|result| result.unwrap_or_else(|_| Err(UntrustedError::Timeout.into())))
            .boxed()
    }
}

async fn connect(
    uri: &Uri,
    policy: &AddressPolicy,
    slots: &ConnectionSlots,
) -> Result<CountedStream, UntrustedError> {
    let permit = slots.acquire_connection().await?;
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let port = uri.port_u16().unwrap_or(443);
    let resolved = timeout(CONNECT_TIMEOUT, resolve(host, port, slots)).await;
    let addresses = resolved.unwrap_or(Err(UntrustedError::NameNotResolved))?;
    // If a host name resolves to any refused address, the connection is refused.
    for address in &addresses {
        policy(*address).map_err(UntrustedError::AddressRefused)?;
    }
    let mut last_error = UntrustedError::NameNotResolved;
    for address in addresses {
        match timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                set_keepalive(&stream);
                return Ok(CountedStream { stream, _permit: permit });
            }
            Ok(Err(error)) => last_error = UntrustedError::NotConnected(error.kind()),
            Err(_) => last_error = UntrustedError::NotConnected(io::ErrorKind::TimedOut),
        }
    }
    Err(last_error)
}

async fn resolve(
    host: &str,
    port: u16,
    slots: &ConnectionSlots,
) -> Result<Vec<SocketAddr>, UntrustedError> {
    if let Ok(ip) = host.parse() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let (host, permit) = (host.to_owned(), slots.acquire_lookup().await?);
    // A lookup cannot be cancelled, because a thread waits for the DNS server. Therefore the lookup holds its permit
    // until the thread has ended.
    let lookup = tokio::spawn(async move {
        let resolved = lookup_host((host.as_str(), port)).await;
        drop(permit);
        resolved.map(|all| all.take(MAX_ADDRESSES).collect::<Vec<_>>())
    });
    match lookup.await {
        Ok(Ok(addresses)) => Ok(addresses),
        Ok(Err(_)) | Err(_) => Err(UntrustedError::NameNotResolved),
    }
}

fn set_keepalive(stream: &TcpStream) {
    let options = TcpKeepalive::new().with_time(KEEPALIVE.0).with_interval(KEEPALIVE.1);
    // Errors are ignored: without keepalive, the idle timeout of the watch detects a dead connection.
    let socket = SockRef::from(stream);
    drop(socket.set_tcp_keepalive(&options));
    drop(socket.set_tcp_user_timeout(Some(SEND_TIMEOUT)));
    drop(stream.set_nodelay(true));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strict_policy() -> AddressPolicy {
        Arc::new(RefusedAddress::check)
    }

    async fn try_connect(uri: &str, policy: &AddressPolicy) -> UntrustedError {
        let slots = ConnectionSlots::default();
        connect(&uri.parse().unwrap(), policy, &slots).await.unwrap_err()
    }

    #[tokio::test]
    async fn refused_addresses_are_not_connected() {
        let refused = UntrustedError::AddressRefused(RefusedAddress::Loopback);
        for uri in ["https://127.0.0.1:1", "https://[::1]:1", "https://localhost:1"] {
            assert_eq!(try_connect(uri, &strict_policy()).await, refused, "{uri}");
        }
    }

    /// TLS handshakes that never end, and host names that take long to resolve, do not use more than the permitted
    /// number of connections and lookups.
    #[tokio::test]
    async fn connections_and_lookups_are_limited() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri: Uri = format!("https://{}", listener.local_addr().unwrap()).parse().unwrap();
        let policy: AddressPolicy = Arc::new(|_| Ok(()));
        let slots = ConnectionSlots::default();
        let mut open = Vec::new();
        let short = Duration::from_millis(100);
        while let Ok(stream) = timeout(short, connect(&uri, &policy, &slots)).await {
            open.push(stream.unwrap());
        }
        assert_eq!(open.len(), 8);
        open.pop();
        assert!(timeout(short, connect(&uri, &policy, &slots)).await.is_ok());
        let lookup = slots.acquire_lookup().await.unwrap();
        assert!(timeout(short, resolve("localhost", 1, &slots)).await.is_err());
        drop(lookup);
        assert!(resolve("localhost", 1, &slots).await.is_ok());
    }

    #[tokio::test]
    async fn connecting_has_a_time_limit() {
        let endless = tower::service_fn(|_: Uri| std::future::pending::<Result<(), BoxError>>());
        let mut limited =
            TimeLimitedConnector { connector: endless, limit: Duration::from_millis(1) };
        let error = limited.call(Uri::from_static("https://a")).await.unwrap_err();
        assert_eq!(UntrustedError::from_source(error.as_ref()), UntrustedError::Timeout);
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
        let slots = ConnectionSlots::default();
        assert!(connect(&uri.parse().unwrap(), &anything, &slots).await.is_ok());
        drop(listener);
        let refused = UntrustedError::NotConnected(io::ErrorKind::ConnectionRefused);
        assert_eq!(try_connect(&uri, &anything).await, refused);
    }
}
