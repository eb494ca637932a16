//! `/metrics`, `/healthz`, `/readyz`, `/report` over HTTP, on this host alone.

use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;

use super::state::State;

/// Where the daemon answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// A loopback address.
    Tcp(SocketAddr),
    /// A unix socket.
    Unix(PathBuf),
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(path) = text.strip_prefix("unix:") {
            let absolute = path.starts_with('/');
            return if absolute {
                Ok(Self::Unix(path.into()))
            } else {
                Err("unix: needs an absolute path".to_owned())
            };
        }
        let address: SocketAddr =
            text.parse().map_err(|_| "give ADDRESS:PORT or unix:/PATH".to_owned())?;
        if !address.ip().is_loopback() {
            return Err("only loopback: what it tells of the host is for the host alone; put a proxy before it that asks who \
                is there"
                .to_owned());
        }
        Ok(Self::Tcp(address))
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

/// A socket that is listened on.
#[derive(Debug)]
pub(super) enum Server {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// Connections at once; a scraper and a person with curl need two.
const CONNECTIONS: usize = 16;
/// A client that says nothing for so long is not waited for.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) async fn bind(listen: &Listen) -> anyhow::Result<Server> {
    Ok(match listen {
        Listen::Tcp(address) => Server::Tcp(TcpListener::bind(address).await?),
        Listen::Unix(path) => {
            // A socket that a crash left behind; that no other agent lives is known by the lock.
            if path.exists() {
                nix::unistd::unlink(path)?;
            }
            Server::Unix(UnixListener::bind(path)?)
        }
    })
}

/// Answers until the end.
pub(super) async fn serve(server: Server, state: Arc<State>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let state = Arc::clone(&state);
        let accepted = match &server {
            Server::Tcp(listener) => listener.accept().await.map(|(stream, _)| {
                tokio::spawn(async move {
                    answer(stream, state).await;
                    drop(place);
                })
            }),
            Server::Unix(listener) => listener.accept().await.map(|(stream, _)| {
                tokio::spawn(async move {
                    answer(stream, state).await;
                    drop(place);
                })
            }),
        };
        if accepted.is_err() {
            // Out of file descriptors: a moment later there may be some.
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}

async fn answer(stream: impl AsyncRead + AsyncWrite + Unpin, state: Arc<State>) {
    let service = service_fn(|request: Request<Incoming>| {
        let response = respond(&request, &state);
        async move { Ok::<_, Infallible>(response) }
    });
    let mut builder = http1::Builder::new();
    let builder = builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    if let Err(error) = builder.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!("a client went away: {error}");
    }
}

fn respond(request: &Request<Incoming>, state: &State) -> Response<Full<Bytes>> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET\n");
        response.headers_mut().insert(ALLOW, hyper::header::HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match request.uri().path() {
        "/healthz" if state.is_alive() => text(StatusCode::OK, "ok\n"),
        "/healthz" => text(StatusCode::SERVICE_UNAVAILABLE, "the loop is stuck\n"),
        "/readyz" => {
            let inner = state.lock();
            match (&inner.waiting, inner.ready) {
                (Some(why), _) => text(StatusCode::SERVICE_UNAVAILABLE, &format!("{why}\n")),
                (None, true) => text(StatusCode::OK, "ok\n"),
                (None, false) => {
                    text(StatusCode::SERVICE_UNAVAILABLE, "the first cycle is not done\n")
                }
            }
        }
        "/metrics" => match state.lock().metrics.render() {
            Ok(body) => typed(
                StatusCode::OK,
                "application/openmetrics-text; version=1.0.0; charset=utf-8",
                body,
            ),
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, &format!("{error}\n")),
        },
        "/report" => match state.lock().node.as_ref().map(serde_json::to_string_pretty) {
            Some(Ok(body)) => typed(StatusCode::OK, "application/json", body + "\n"),
            _ => text(StatusCode::SERVICE_UNAVAILABLE, "the first cycle is not done\n"),
        },
        "/" => text(StatusCode::OK, "/metrics\n/healthz\n/readyz\n/report\n"),
        _ => text(StatusCode::NOT_FOUND, "there are /metrics, /healthz, /readyz and /report\n"),
    }
}

fn text(status: StatusCode, body: &str) -> Response<Full<Bytes>> {
    typed(status, "text/plain; charset=utf-8", body.to_owned())
}

fn typed(status: StatusCode, kind: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_host_is_answered() {
        for fine in ["127.0.0.1:9477", "[::1]:80", "unix:/run/berth/agent.sock"] {
            assert_eq!(fine.parse::<Listen>().unwrap().to_string(), fine);
        }
        for wrong in ["0.0.0.0:80", "10.0.0.1:80", "[::]:1", "9477", "unix:x", ""] {
            assert!(wrong.parse::<Listen>().is_err(), "{wrong}");
        }
    }
}
