//! HTTP server for `/metrics`, `/healthz`, `/readyz` and other pages of a daemon.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Address of an HTTP server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A unix socket.
    Unix(PathBuf),
}

impl FromStr for Listen {
    type Err = ListenError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(path) = text.strip_prefix("unix:") {
            let absolute = path.starts_with('/');
            return if absolute {
                Ok(Self::Unix(path.into()))
            } else {
                Err(ListenError::RelativePath)
            };
        }
        // An IPv6 address may have no brackets, as in a pod's environment.
        let plain = || {
            let (address, port) = text.rsplit_once(':')?;
            Some(SocketAddr::new(address.parse().ok()?, port.parse().ok()?))
        };
        let address = text.parse().ok().or_else(plain);
        address.map(Self::Tcp).ok_or(ListenError::Invalid)
    }
}

/// Reason that a text is not an address to listen on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ListenError {
    /// The text is neither an address nor a unix socket.
    #[error("give ADDRESS:PORT or unix:/PATH")]
    Invalid,
    /// The unix socket has a relative path.
    #[error("unix: needs an absolute path")]
    RelativePath,
    /// Other hosts can reach the address.
    #[error(
        "must be a loopback address: the answers are for this host alone; for other clients run a proxy that \
         authenticates them"
    )]
    NotLoopback,
}

impl Listen {
    /// Parses an address that only this host can reach.
    ///
    /// # Errors
    /// If the text is not an address, or if other hosts can reach the address.
    pub fn on_this_host(text: &str) -> Result<Self, ListenError> {
        match text.parse()? {
            Self::Tcp(address) if !address.ip().is_loopback() => Err(ListenError::NotLoopback),
            listen => Ok(listen),
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A listening socket.
#[derive(Debug)]
pub enum Server {
    /// A TCP socket.
    Tcp(TcpListener),
    /// A unix socket.
    Unix(UnixListener),
}

/// A connection to a client.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

impl Server {
    /// Accepts the next connection; if no file descriptor is free, retries a second later.
    pub(crate) async fn accept(&self) -> Box<dyn Stream> {
        loop {
            let accepted: std::io::Result<Box<dyn Stream>> = match self {
                Self::Tcp(listener) => listener.accept().await.map(|(stream, _)| {
                    // Answers are small, and the client waits for the answer.
                    stream.set_nodelay(true).unwrap_or_default();
                    Box::new(stream) as Box<dyn Stream>
                }),
                Self::Unix(listener) => {
                    listener.accept().await.map(|(stream, _)| Box::new(stream) as Box<dyn Stream>)
                }
            };
            match accepted {
                Ok(stream) => return stream,
                Err(_) => tokio::time::sleep(Duration::from_secs(1)).await,
            }
        }
    }
}

/// Maximum number of open connections; a scraper and a user with curl need two.
const CONNECTIONS: usize = 16;
/// Time limit for the head of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for a connection with one request and one answer. hyper has no write timeout, so without this limit a
/// client that never reads its answer would keep the connection open.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);

/// Starts to listen on an address.
///
/// # Errors
/// If the address is in use, or the socket cannot be created.
pub async fn bind(listen: &Listen) -> anyhow::Result<Server> {
    Ok(match listen {
        Listen::Tcp(address) => Server::Tcp(TcpListener::bind(address).await?),
        Listen::Unix(path) => {
            // The socket remains from a crash: the agent's lock proves that no other agent runs.
            if path.exists() {
                nix::unistd::unlink(path)?;
            }
            Server::Unix(UnixListener::bind(path)?)
        }
    })
}

/// Pages of a daemon.
pub trait Site: Send + Sync + 'static {
    /// Returns the page at a path.
    fn page(&self, path: &str) -> Option<Page>;

    /// Returns the paths of all pages.
    fn paths(&self) -> &'static [&'static str];
}

/// A response of a daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    code: u16,
    kind: &'static str,
    body: String,
}

impl Page {
    /// Returns the page of a daemon that is healthy (200).
    #[must_use]
    pub fn fine() -> Self {
        Self::text(200, "ok")
    }

    /// Returns the page of a daemon that is not ready (503), with the reason.
    #[must_use]
    pub fn unavailable(why: &str) -> Self {
        Self::text(503, why)
    }

    /// Returns a page of metrics, as prometheus-client encodes them.
    #[must_use]
    pub fn metrics(rendered: Result<String, fmt::Error>) -> Self {
        let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        match rendered {
            Ok(body) => Self { code: 200, kind, body },
            Err(error) => Self::text(500, &error.to_string()),
        }
    }

    /// Returns a page of JSON.
    #[must_use]
    pub const fn json(body: String) -> Self {
        Self { code: 200, kind: "application/json", body }
    }

    fn text(code: u16, line: &str) -> Self {
        Self { code, kind: "text/plain; charset=utf-8", body: format!("{line}\n") }
    }
}

/// Serves until the future is dropped. If all connections are in use, the oldest connection is closed for the new
/// one. An answer takes milliseconds, so the client of the oldest connection does not read its answer, and no client
/// can keep a probe from `/healthz`.
pub async fn serve(server: Server, site: Arc<impl Site>) {
    let mut open: VecDeque<JoinHandle<()>> = VecDeque::new();
    loop {
        let (site, stream) = (Arc::clone(&site), server.accept().await);
        open.retain(|connection| !connection.is_finished());
        if open.len() >= CONNECTIONS
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        open.push_back(tokio::spawn(async move {
            if timeout(CONNECTION_TIMEOUT, answer(stream, site)).await.is_err() {
                tracing::debug!(
                    seconds = CONNECTION_TIMEOUT.as_secs(),
                    "closed a connection whose client did not read its answer in time"
                );
            }
        }));
    }
}

async fn answer(stream: impl AsyncRead + AsyncWrite + Unpin, site: Arc<impl Site>) {
    let service = service_fn(|request: Request<Incoming>| {
        let response = respond(&request, site.as_ref());
        async move { Ok::<_, Infallible>(response) }
    });
    let mut builder = http1::Builder::new();
    let builder = builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    // Each connection has one request, so the time limit of the connection is also the time limit of the answer.
    let builder = builder.keep_alive(false);
    if let Err(error) = builder.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%error, "the client closed the connection");
    }
}

fn respond(request: &Request<Incoming>, site: &impl Site) -> Response<Full<Bytes>> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut response = sent(Page::text(405, "only GET"));
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    let paths = || site.paths().join("\n");
    sent(match request.uri().path() {
        "/" => Page::text(200, &paths()),
        path => site.page(path).unwrap_or_else(|| Page::text(404, &paths())),
    })
}

fn sent(page: Page) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(page.body)));
    *response.status_mut() =
        StatusCode::from_u16(page.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(page.kind));
    response
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::*;

    #[test]
    fn only_loopback_addresses_are_accepted() {
        for fine in ["127.0.0.1:9477", "[::1]:80", "unix:/run/berth/agent.sock"] {
            assert_eq!(Listen::on_this_host(fine).unwrap().to_string(), fine);
        }
        for wrong in ["0.0.0.0:80", "10.0.0.1:80", "[::]:1"] {
            assert!(Listen::on_this_host(wrong).is_err(), "{wrong}");
            assert_eq!(wrong.parse::<Listen>().unwrap().to_string(), wrong);
        }
        for wrong in ["9477", "unix:x", ""] {
            assert!(wrong.parse::<Listen>().is_err(), "{wrong}");
        }
    }

    /// A site with an answer that is larger than the kernel's socket buffer.
    struct Large;

    impl Site for Large {
        fn page(&self, path: &str) -> Option<Page> {
            match path {
                "/healthz" => Some(Page::fine()),
                "/report" => Some(Page::json("x".repeat(16 << 20))),
                _ => None,
            }
        }

        fn paths(&self) -> &'static [&'static str] {
            &["/healthz", "/report"]
        }
    }

    #[test]
    fn clients_that_never_read_do_not_starve_healthz() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            tokio::spawn(serve(Server::Tcp(listener), Arc::new(Large)));
            let mut idle = Vec::new();
            for _ in 0..3 * CONNECTIONS {
                let mut client = TcpStream::connect(address).await.unwrap();
                client.write_all(b"GET /report HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
                idle.push(client);
            }
            let probe = async {
                let mut client = TcpStream::connect(address).await.unwrap();
                client.write_all(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
                let mut answer = String::new();
                client.read_to_string(&mut answer).await.unwrap();
                answer
            };
            let answer = timeout(Duration::from_secs(5), probe).await;
            assert!(
                answer.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200 ")),
                "no answer in 5 s"
            );
        });
    }
}
