//! Sockets of HTTP servers.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};

/// Address on which an HTTP server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddress {
    Tcp(SocketAddr),
    /// A unix socket.
    Unix(PathBuf),
}

impl FromStr for ListenAddress {
    type Err = ListenError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(path) = text.strip_prefix("unix:") {
            let is_absolute = path.starts_with('/');
            return if is_absolute {
                Ok(Self::Unix(path.into()))
            } else {
                Err(ListenError::RelativePath)
            };
        }
        // In the environment of a pod, an IPv6 address may have no brackets.
        let parse_unbracketed = || {
            let (address, port) = text.rsplit_once(':')?;
            Some(SocketAddr::new(address.parse().ok()?, port.parse().ok()?))
        };
        let address = text.parse().ok().or_else(parse_unbracketed);
        address.map(Self::Tcp).ok_or(ListenError::InvalidAddress)
    }
}

/// Reason why a string is not a valid address to listen on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ListenError {
    /// The string is neither a TCP address nor a unix socket.
    #[error("must be ADDRESS:PORT or unix:/PATH")]
    InvalidAddress,
    /// The unix socket has a relative path.
    #[error("the path of a unix socket must be absolute")]
    RelativePath,
    /// Other hosts can connect to the address.
    #[error(
        "must be a loopback address, because clients are not authenticated; for clients on \
         other hosts, run a proxy that authenticates them"
    )]
    NotLoopback,
}

impl ListenAddress {
    /// Parses an address to which only processes on this host can connect.
    ///
    /// # Errors
    ///
    /// Returns an error if the text is not an address, or if other hosts can connect to the address.
    pub fn parse_loopback(text: &str) -> Result<Self, ListenError> {
        match text.parse()? {
            Self::Tcp(address) if !address.ip().is_loopback() => Err(ListenError::NotLoopback),
            listen => Ok(listen),
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A listening socket of an HTTP server.
#[derive(Debug)]
pub enum ListenSocket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A connection between a client and the server.
pub trait AsyncStream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> AsyncStream for T {}

impl Listener for ListenSocket {
    type Io = Box<dyn AsyncStream>;
    type Addr = ();

    /// Accepts the next connection. If there is no free file descriptor, waits a second and retries.
    async fn accept(&mut self) -> (Self::Io, ()) {
        loop {
            let accepted: std::io::Result<Self::Io> = match self {
                Self::Tcp(listener) => TcpListener::accept(listener).await.map(|(stream, _)| {
                    // TCP_NODELAY is set, because responses are small and the client waits for them.
                    stream.set_nodelay(true).unwrap_or_default();
                    Box::new(stream) as Self::Io
                }),
                Self::Unix(listener) => UnixListener::accept(listener)
                    .await
                    .map(|(stream, _)| Box::new(stream) as Self::Io),
            };
            match accepted {
                Ok(stream) => return (stream, ()),
                Err(_) => tokio::time::sleep(Duration::from_secs(1)).await,
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Starts to listen on an address.
///
/// # Errors
/// Returns an error if the address is in use, or if the socket cannot be created.
pub async fn bind(listen_address: &ListenAddress) -> anyhow::Result<ListenSocket> {
    Ok(match listen_address {
        ListenAddress::Tcp(address) => ListenSocket::Tcp(TcpListener::bind(address).await?),
        ListenAddress::Unix(path) => {
            // An existing socket file was left by a process that crashed. It is not in use, because this process holds
            // the agent's lock, so no other agent runs.
            if path.exists() {
                nix::unistd::unlink(path)?;
            }
            ListenSocket::Unix(UnixListener::bind(path)?)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_addresses_are_accepted() {
        for fine in ["127.0.0.1:9477", "[::1]:80", "unix:/run/berth/agent.sock"] {
            assert_eq!(ListenAddress::parse_loopback(fine).unwrap().to_string(), fine);
        }
        for wrong in ["0.0.0.0:80", "10.0.0.1:80", "[::]:1"] {
            assert!(ListenAddress::parse_loopback(wrong).is_err(), "{wrong}");
            assert_eq!(wrong.parse::<ListenAddress>().unwrap().to_string(), wrong);
        }
        for wrong in ["9477", "unix:x", ""] {
            assert!(wrong.parse::<ListenAddress>().is_err(), "{wrong}");
        }
    }
}
