//! HTTP server for one client program on the same host. The client posts JSON; an answer may take long.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;

use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
pub use hyper::body::Bytes;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;

use crate::serve::Server;

/// Reason that a request has no valid body.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The body exceeds the limit.
    #[error("the body is longer than {limit} bytes")]
    TooLong {
        /// Maximum length, in bytes.
        limit: usize,
    },
    /// The client ended the request early.
    #[error("failed to read the body: {0}")]
    Incomplete(Box<dyn std::error::Error + Send + Sync>),
}

/// Answers of a daemon to POST requests.
pub trait Exchange: Send + Sync + 'static {
    /// Returns the answer to a body or its error; returns `None` if the path does not exist.
    fn answer(
        &self,
        path: &str,
        body: Result<Bytes, BodyError>,
    ) -> impl Future<Output = Option<String>> + Send;
}

/// Serves until the future is dropped. A body has at most `most` bytes. The client is trusted to read its answers, so
/// connections have no time limit: the client would see a connection that is closed during a request as an error.
pub async fn exchange(server: Server, most: usize, site: Arc<impl Exchange>) {
    loop {
        let (site, stream) = (Arc::clone(&site), server.accept().await);
        tokio::spawn(async move {
            let service = service_fn(|request: Request<Incoming>| {
                let site = Arc::clone(&site);
                async move { Ok::<_, Infallible>(respond(request, most, site.as_ref()).await) }
            });
            let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            if let Err(error) = connection.await {
                tracing::debug!(%error, "the client closed the connection");
            }
        });
    }
}

async fn respond(
    request: Request<Incoming>,
    most: usize,
    site: &impl Exchange,
) -> Response<Full<Bytes>> {
    if request.method() != Method::POST {
        let mut response = response(StatusCode::METHOD_NOT_ALLOWED, "only POST\n".to_owned());
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
        return response;
    }
    let (head, body) = request.into_parts();
    let body = match Limited::new(body, most).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(BodyError::TooLong { limit: most }),
        Err(error) => Err(BodyError::Incomplete(error)),
    };
    match site.answer(head.uri.path(), body).await {
        Some(answer) => {
            let mut response = response(StatusCode::OK, answer);
            let json = HeaderValue::from_static("application/json");
            response.headers_mut().insert(CONTENT_TYPE, json);
            response
        }
        None => response(StatusCode::NOT_FOUND, "no such path\n".to_owned()),
    }
}

fn response(code: StatusCode, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = code;
    response
}
