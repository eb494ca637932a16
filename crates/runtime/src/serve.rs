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

pub use crate::listen::{ListenAddress, ListenError, ListenSocket, bind};

/// Maximum number of open connections. In normal operation there are two: one for a scraper, and one for a user with
/// curl.
const MAX_CONNECTIONS: usize = 16;
/// Time limit for receiving the head of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for a connection with one request and one response. hyper has no write timeout, so without this limit a
/// client that never reads the response would keep the connection open.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);

/// The HTTP pages that a daemon serves.
pub trait HttpSite: Sized + Send + Sync + 'static {
    const PAGES: Pages<Self>;
}

/// Path of each page of a site, and the function that returns the page.
pub type Pages<S> = &'static [(&'static str, fn(&S) -> Page)];

/// A response of a daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    code: u16,
    content_type: &'static str,
    body: String,
}

impl Page {
    /// Returns the page of a daemon that is healthy (status 200).
    #[must_use]
    pub fn healthy_page() -> Self {
        Self::text_page(200, "ok")
    }

    /// Returns the page of a daemon that is not ready (status 503), with the reason.
    #[must_use]
    pub fn unavailable_page(reason: &str) -> Self {
        Self::text_page(503, reason)
    }

    /// Returns a page of metrics in the format of prometheus-client; status 500 if the metrics could not be encoded.
    #[must_use]
    pub fn metrics_page(rendered: Result<String, fmt::Error>) -> Self {
        let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        match rendered {
            Ok(body) => Self { code: 200, content_type, body },
            Err(error) => Self::text_page(500, &error.to_string()),
        }
    }

    /// Returns a page of JSON.
    #[must_use]
    pub const fn json_page(body: String) -> Self {
        Self { code: 200, content_type: "application/json", body }
    }

    fn text_page(code: u16, line: &str) -> Self {
        Self { code, content_type: "text/plain; charset=utf-8", body: format!("{line}\n") }
    }
}

impl IntoResponse for Page {
    fn into_response(self) -> Response {
        let code = StatusCode::from_u16(self.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (code, [(CONTENT_TYPE, self.content_type)], self.body).into_response()
    }
}

/// Serves the pages until the future is dropped. If all connections are in use, the oldest connection is closed in
/// favour of the new one, so that clients cannot block a probe of `/healthz`. Responses take milliseconds, so the
/// client of the oldest connection is not reading its response.
pub async fn serve(mut server: ListenSocket, site: Arc<impl HttpSite>) {
    let router = build_router(site);
    let mut connections: VecDeque<JoinHandle<()>> = VecDeque::new();
    loop {
        let (stream, ()) = server.accept().await;
        connections.retain(|connection| !connection.is_finished());
        if connections.len() >= MAX_CONNECTIONS
            && let Some(oldest) = connections.pop_front()
        {
            oldest.abort();
        }
        let router = router.clone();
        connections.push_back(tokio::spawn(async move {
            if timeout(CONNECTION_TIMEOUT, serve_stream(stream, router)).await.is_err() {
                tracing::debug!(
                    seconds = CONNECTION_TIMEOUT.as_secs(),
                    "closed a connection whose client did not read its answer in time"
                );
            }
        }));
    }
}

/// Serves one connection. `axum::serve` is not used, because it has no time limits and cannot restrict a connection to
/// a single request.
async fn serve_stream(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
) {
    let mut builder = http1::Builder::new();
    let builder = builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    // A connection has only one request, so the time limit of the connection also limits the response.
    let builder = builder.keep_alive(false);
    let service = TowerToHyperService::new(router);
    if let Err(error) = builder.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%error, "the client closed the connection");
    }
}

/// Returns the routes of a site. The path `/` returns the list of pages; each unknown path returns the list with the
/// status 404.
fn build_router<S: HttpSite>(site: Arc<S>) -> Router {
    let paths = S::PAGES.iter().map(|(path, _)| *path).collect::<Vec<_>>().join("\n");
    let list = |code| {
        let page = Page::text_page(code, &paths);
        move || async move { page }
    };
    let mut router = Router::new().route("/", get(list(200))).fallback(list(404));
    for &(path, page) in S::PAGES {
        router =
            router.route(path, get(move |State(site): State<Arc<S>>| async move { page(&site) }));
    }
    router.with_state(site).layer(from_fn(refuse_unless_get))
}

async fn refuse_unless_get(request: Request, next: Next) -> Response {
    if request.method() == Method::GET || request.method() == Method::HEAD {
        return next.run(request).await;
    }
    ([(ALLOW, "GET, HEAD")], Page::text_page(405, "only GET is allowed")).into_response()
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};
    use tower::ServiceExt as _;

    use super::*;

    /// A site with a page that does not fit into the kernel's socket buffer.
    struct LargeSite;

    impl HttpSite for LargeSite {
        const PAGES: Pages<Self> = &[
            ("/healthz", |_| Page::healthy_page()),
            ("/report", |_| Page::json_page("x".repeat(16 << 20))),
        ];
    }

    #[test]
    fn clients_that_never_read_do_not_starve_healthz() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            tokio::spawn(serve(ListenSocket::Tcp(listener), Arc::new(LargeSite)));
            let mut idle = Vec::new();
            for _ in 0..3 * MAX_CONNECTIONS {
                let mut client = TcpStream::connect(address).await.unwrap();
                client.write_all(b"GET /report HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
                idle.push(client);
            }
            let probe = async {
                let mut client = TcpStream::connect(address).await.unwrap();
                client.write_all(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
                let mut response = String::new();
                client.read_to_string(&mut response).await.unwrap();
                response
            };
            let answer = timeout(Duration::from_secs(5), probe).await;
            assert!(
                answer.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200 ")),
                "the server did not answer within 5 s"
            );
        });
    }

    #[tokio::test]
    async fn unknown_path_lists_all_pages_and_only_get_is_allowed() {
        for (method, path, code, allow, text) in [
            ("GET", "/healthz", 200, None, "ok\n"),
            ("GET", "/", 200, None, "/healthz\n/report\n"),
            ("GET", "/healthz/", 404, None, "/healthz\n/report\n"),
            ("HEAD", "/healthz", 200, None, ""),
            ("POST", "/healthz", 405, Some("GET, HEAD"), "only GET is allowed\n"),
            ("POST", "/nowhere", 405, Some("GET, HEAD"), "only GET is allowed\n"),
        ] {
            let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
            let response = build_router(Arc::new(LargeSite)).oneshot(request).await.unwrap();
            let (head, body) = response.into_parts();
            let allowed = head.headers.get(ALLOW).map(|allow| allow.to_str().unwrap());
            assert_eq!((head.status.as_u16(), allowed), (code, allow), "{method} {path}");
            assert_eq!(head.headers[CONTENT_TYPE], "text/plain; charset=utf-8");
            assert_eq!(to_bytes(body, 1 << 10).await.unwrap(), text, "{method} {path}");
        }
    }
}
