//! Respects `Retry-After`: if the server refused a request with this header, the client does not send the request again
//! before that time.
//!
//! kube does not return the header of a refusal. Therefore a layer of the client reads the header, returns it as an
//! error, and refuses the same request locally until the time is over. In this way, watches, reconcilers and all other
//! callers respect the header; the backoffs of the callers only avoid useless retries.

use std::collections::HashMap;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http_body_util::BodyExt as _;
use hyper::header::RETRY_AFTER;
use hyper::{Method, Request, Response};
use kube::client::{Body, DynBody};
use tower::{BoxError, Layer, Service};

/// Upper bound for `Retry-After`. A longer time is treated as a mistake of the server, and is reduced to this bound.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(120);
/// Maximum number of bytes of a refusal's body that are read.
const MAX_BODY_BYTES: usize = 1 << 14;

/// A response that refuses a request and has a `Retry-After`.
#[derive(Debug, Clone, thiserror::Error)]
// The message does not contain the remaining time, because a message that changes would be logged and written to
// conditions again each time.
#[error("{message} ({code}, retry after {} s)", .retry_after.as_secs())]
pub struct RetryAfterRefusal {
    code: u16,
    message: String,
    retry_after: Duration,
    retry_at: Instant,
}

impl RetryAfterRefusal {
    /// Returns the time until the request may be sent again.
    #[must_use]
    pub fn remaining_time(&self) -> Duration {
        self.retry_at.saturating_duration_since(Instant::now())
    }
}

/// Method and path of a request. Two requests that differ only in their query, such as selectors or `watch`, have the
/// same key.
type RequestKey = (Method, String);
type ServerResponse = Response<Box<DynBody>>;

/// Layer that stores which requests must not be sent yet, because of a `Retry-After`.
#[derive(Debug, Clone, Default)]
pub(crate) struct RetryAfterLayer(Arc<Mutex<HashMap<RequestKey, RetryAfterRefusal>>>);

impl RetryAfterLayer {
    fn lock(&self) -> MutexGuard<'_, HashMap<RequestKey, RetryAfterRefusal>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refusal_for(&self, key: &RequestKey) -> Option<RetryAfterRefusal> {
        let mut all = self.lock();
        if all.is_empty() {
            return None;
        }
        all.retain(|_, busy| !busy.remaining_time().is_zero());
        all.get(key).cloned()
    }
}

impl<S> Layer<S> for RetryAfterLayer {
    type Service = RetryAfter<S>;

    fn layer(&self, inner: S) -> RetryAfter<S> {
        RetryAfter { inner, refusals: self.clone() }
    }
}

/// A client that respects `Retry-After`.
#[derive(Debug, Clone)]
pub(crate) struct RetryAfter<S> {
    inner: S,
    refusals: RetryAfterLayer,
}

impl<S> Service<Request<Body>> for RetryAfter<S>
where
    S: Service<Request<Body>, Response = ServerResponse, Error = BoxError>,
    S::Future: Send + 'static,
{
    type Response = ServerResponse;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<ServerResponse, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let key = (request.method().clone(), request.uri().path().to_owned());
        if let Some(busy) = self.refusals.refusal_for(&key) {
            return Box::pin(ready(Err(busy.into())));
        }
        let (response, refusals) = (self.inner.call(request), self.refusals.clone());
        Box::pin(async move {
            let response = response.await?;
            let Some(retry_after) = parse_retry_after(&response) else { return Ok(response) };
            let busy = read_refusal(response, retry_after).await;
            refusals.lock().insert(key, busy.clone());
            Err(busy.into())
        })
    }
}

/// Returns the `Retry-After` of a refusal in seconds. HTTP also permits a date, but API servers do not send dates.
fn parse_retry_after(response: &ServerResponse) -> Option<Duration> {
    let code = response.status();
    let text = response.headers().get(RETRY_AFTER)?.to_str().ok()?;
    let is_refusal = code.as_u16() == 429 || code.is_server_error();
    let seconds = text.parse().ok().filter(|_| is_refusal)?;
    Some(Duration::from_secs(seconds).min(MAX_RETRY_AFTER))
}

async fn read_refusal(response: ServerResponse, retry_after: Duration) -> RetryAfterRefusal {
    let retry_at = Instant::now() + retry_after;
    let code = response.status().as_u16();
    let (mut body, mut message) = (response.into_body(), Vec::new());
    // The message may be incomplete or missing, because a refusal is recorded even if its message cannot be read.
    while message.len() < MAX_BODY_BYTES
        && let Some(Ok(frame)) = body.frame().await
    {
        message.extend(frame.into_data().unwrap_or_default());
    }
    let message = match serde_json::from_slice::<kube::core::Status>(&message) {
        Ok(status) => status.message,
        Err(_) => crate::cli::text::to_single_line(String::from_utf8_lossy(&message).trim()),
    };
    RetryAfterRefusal { code, message, retry_after, retry_at }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http_body_util::Full;
    use hyper::body::Bytes;
    use tower::ServiceExt as _;

    use super::*;

    /// Returns a simulated server that answers all requests with this status code and header, and a counter of the
    /// requests that it received.
    fn test_service(
        code: u16,
        header: Option<&'static str>,
        count: Arc<AtomicUsize>,
    ) -> impl Service<
        Request<Body>,
        Response = ServerResponse,
        Error = BoxError,
        Future: Send + 'static,
    > + Clone {
        tower::service_fn(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
            let body = Full::new(Bytes::from_static(b"busy"));
            let body = body.map_err(|never| -> BoxError { match never {} });
            let mut response = Response::new(Box::new(body) as Box<DynBody>);
            *response.status_mut() = code.try_into().unwrap();
            if let Some(header) = header {
                response.headers_mut().insert(RETRY_AFTER, header.parse().unwrap());
            }
            ready(Ok::<_, BoxError>(response))
        })
    }

    /// Sends three equal requests and one request with another method, and returns how many of the four reach the
    /// server.
    fn count_sent_requests(code: u16, header: Option<&'static str>) -> usize {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let count: Arc<AtomicUsize> = Arc::default();
        let client =
            RetryAfterLayer::default().layer(test_service(code, header, Arc::clone(&count)));
        runtime.block_on(async {
            for (method, path) in
                [("GET", "/a"), ("GET", "/a?watch=true"), ("GET", "/a"), ("PATCH", "/a")]
            {
                let request = Request::builder().method(method).uri(path).body(Body::empty());
                drop(client.clone().oneshot(request.unwrap()).await);
            }
        });
        count.load(Ordering::SeqCst)
    }

    #[test]
    fn refused_request_is_sent_again_only_after_retry_after() {
        assert_eq!(count_sent_requests(429, Some("5")), 2);
        assert_eq!(count_sent_requests(503, Some("1")), 2);
        // Requests are not held back by a `Retry-After` of zero, without a `Retry-After`, and after a response that is
        // not a refusal.
        assert_eq!(count_sent_requests(429, Some("0")), 4);
        assert_eq!(count_sent_requests(503, None), 4);
        assert_eq!(count_sent_requests(200, Some("5")), 4);
    }
}
