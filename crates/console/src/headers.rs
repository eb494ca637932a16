//! Security headers of all responses, and compression of pages.

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, CONTENT_TYPE,
    HeaderName, REFERRER_POLICY, STRICT_TRANSPORT_SECURITY, VARY, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use flate2::Compression;

use crate::assets::{accepts_gzip, compress};
use crate::state::{Console, Shared};

/// No inline script, no inline style, nothing from other origins, and no page in a frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Returns the headers that all responses have.
fn fixed_headers() -> [(HeaderName, &'static str); 7] {
    [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        // With `no-referrer`, browsers would send `Origin: null` with forms.
        (REFERRER_POLICY, "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (
            HeaderName::from_static("permissions-policy"),
            "camera=(), clipboard-read=(), geolocation=(), microphone=(), payment=(), usb=()",
        ),
    ]
}

/// Adds the headers, and compresses pages.
pub(crate) async fn secure(
    State(console): State<Shared>,
    request: Request,
    next: Next,
) -> Response {
    let is_gzip_accepted = accepts_gzip(request.headers());
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    for (name, value) in fixed_headers() {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if console.cookies.are_secure() {
        let value = HeaderValue::from_static("max-age=31536000");
        headers.insert(STRICT_TRANSPORT_SECURITY, value);
    }
    // Pages contain data of their user. Only files with a hash in their path may be stored.
    headers.entry(CACHE_CONTROL).or_insert_with(|| HeaderValue::from_static("no-store"));
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    if is_gzip_accepted && content_type.is_some_and(|value| value.starts_with("text/html")) {
        compress_body(&console, response).await
    } else {
        response
    }
}

/// Compresses the body of a response. The cookie of the session is sent only with requests of the same site, so other
/// sites cannot deduce secrets of a page from the size of compressed responses.
async fn compress_body(console: &Console, response: Response) -> Response {
    let (mut head, body) = response.into_parts();
    let Ok(body) = to_bytes(body, usize::MAX).await else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let compressed = console.compute(move || compress(&body, Compression::fast())).await;
    let Ok(compressed) = compressed else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    head.headers.remove(CONTENT_LENGTH);
    head.headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    head.headers.insert(VARY, HeaderValue::from_static("Accept-Encoding"));
    Response::from_parts(head, Body::from(compressed))
}
