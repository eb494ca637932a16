//! HTTP server for `/metrics`, `/healthz`, `/readyz` and other pages of a daemon.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{ALLOW, CONTENT_TYPE};
use axum::http::{Method, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::serve::Listener as _;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinHandle;
use tokio::time::timeout;

pub use crate::listen::{Listen, ListenError, Server, bind};

/// Maximum number of open connections; a scraper and a user with curl need two.
const CONNECTIONS: usize = 16;
/// Time limit for the head of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for a connection with one request and one answer. hyper has no write timeout, so without this limit a
/// client that never reads its answer would keep the connection open.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);

/// Pages of a daemon.
pub trait Site: Sized + Send + Sync + 'static {
    /// All pages.
    const PAGES: Pages<Self>;
}

/// Path of each page of a site, and the function that returns the page.
pub type Pages<S> = &'static [(&'static str, fn(&S) -> Page)];

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

impl IntoResponse for Page {
    fn into_response(self) -> Response {
        let code = StatusCode::from_u16(self.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (code, [(CONTENT_TYPE, self.kind)], self.body).into_response()
    }
}

/// Serves until the future is dropped. If all connections are in use, the oldest connection is closed for the new
/// one. An answer takes milliseconds, so the client of the oldest connection does not read its answer, and no client
/// can keep a probe from `/healthz`.
pub async fn serve(mut server: Server, site: Arc<impl Site>) {
    let router = router(site);
    let mut open: VecDeque<JoinHandle<()>> = VecDeque::new();
    loop {
        let (stream, ()) = server.accept().await;
        open.retain(|connection| !connection.is_finished());
        if open.len() >= CONNECTIONS
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        let router = router.clone();
        open.push_back(tokio::spawn(async move {
            if timeout(CONNECTION_TIMEOUT, answer(stream, router)).await.is_err() {
                tracing::debug!(
                    seconds = CONNECTION_TIMEOUT.as_secs(),
                    "closed a connection whose client did not read its answer in time"
                );
            }
        }));
    }
}

/// Serves one connection. `axum::serve` has neither time limits nor connections with a single request.
async fn answer(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, router: Router) {
    let mut builder = http1::Builder::new();
    let builder = builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    // Each connection has one request, so the time limit of the connection is also the time limit of the answer.
    let builder = builder.keep_alive(false);
    let service = TowerToHyperService::new(router);
    if let Err(error) = builder.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%error, "the client closed the connection");
    }
}

/// Returns the pages of a site, and the list of their paths at `/` and wherever there is no page.
fn router<S: Site>(site: Arc<S>) -> Router {
    let paths = S::PAGES.iter().map(|(path, _)| *path).collect::<Vec<_>>().join("\n");
    let list = |code| {
        let page = Page::text(code, &paths);
        move || async move { page }
    };
    let mut router = Router::new().route("/", get(list(200))).fallback(list(404));
    for &(path, page) in S::PAGES {
        router =
            router.route(path, get(move |State(site): State<Arc<S>>| async move { page(&site) }));
    }
    router.with_state(site).layer(from_fn(only_get))
}

async fn only_get(request: Request, next: Next) -> Response {
    if request.method() == Method::GET || request.method() == Method::HEAD {
        return next.run(request).await;
    }
    ([(ALLOW, "GET, HEAD")], Page::text(405, "only GET")).into_response()
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};
    use tower::ServiceExt as _;

    use super::*;

    /// A site with an answer that is larger than the kernel's socket buffer.
    struct Large;

    impl Site for Large {
        const PAGES: Pages<Self> =
            &[("/healthz", |_| Page::fine()), ("/report", |_| Page::json("x".repeat(16 << 20)))];
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

    #[tokio::test]
    async fn a_path_that_does_not_exist_lists_the_others_and_only_get_is_answered() {
        for (method, path, code, allow, text) in [
            ("GET", "/healthz", 200, None, "ok\n"),
            ("GET", "/", 200, None, "/healthz\n/report\n"),
            ("GET", "/healthz/", 404, None, "/healthz\n/report\n"),
            ("HEAD", "/healthz", 200, None, ""),
            ("POST", "/healthz", 405, Some("GET, HEAD"), "only GET\n"),
            ("POST", "/nowhere", 405, Some("GET, HEAD"), "only GET\n"),
        ] {
            let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
            let response = router(Arc::new(Large)).oneshot(request).await.unwrap();
            let (head, body) = response.into_parts();
            let allowed = head.headers.get(ALLOW).map(|allow| allow.to_str().unwrap());
            assert_eq!((head.status.as_u16(), allowed), (code, allow), "{method} {path}");
            assert_eq!(head.headers[CONTENT_TYPE], "text/plain; charset=utf-8");
            assert_eq!(to_bytes(body, 1 << 10).await.unwrap(), text, "{method} {path}");
        }
    }
}
