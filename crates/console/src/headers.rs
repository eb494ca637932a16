//! Security headers of all responses, and compression of pages.

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST,
    HeaderName, REFERRER_POLICY, STRICT_TRANSPORT_SECURITY, VARY, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use flate2::Compression;

use crate::assets::{accepts_gzip, compress};
use crate::state::{Console, Shared};
use crate::vm_stream::kind::StreamKind;

/// No inline script, no inline style, nothing from other origins, and no page in a frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Marks the response with the page of a stream to a VM, in its extensions. Such a page has a few more permissions
/// ([`stream_policy`]).
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamPage(pub(crate) StreamKind);

/// Returns the policy of the page of a stream to a VM.
///
/// * `connect-src`: for some browsers, `'self'` does not include WebSockets. The added origin is that of the console.
/// * `img-src`: noVNC shows the pointer of the VM, and parts of the screen that the VNC server compresses as JPEG or PNG, as
///   images with `data:` URLs. They contain no scripts, and lead to no other host.
///
/// Terminals need no permission for styles: the script of the page applies those of xterm.js as constructed style sheets.
fn stream_policy(
    kind: StreamKind,
    host: Option<&HeaderValue>,
    is_secure: bool,
) -> Option<HeaderValue> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]".contains(&byte);
    let host = host?.to_str().ok().filter(|host| host.bytes().all(is_name))?;
    let scheme = if is_secure { "wss" } else { "ws" };
    let connect = format!("connect-src 'self' {scheme}://{host};");
    let mut policy = POLICY.replace("connect-src 'self';", &connect);
    if kind == StreamKind::Screen {
        policy = policy.replace("img-src 'self';", "img-src 'self' data:;");
    }
    HeaderValue::from_str(&policy).ok()
}

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
    let host = request.headers().get(HOST).cloned();
    let mut response = next.run(request).await;
    let stream_page = response.extensions_mut().remove::<StreamPage>();
    let headers = response.headers_mut();
    for (name, value) in fixed_headers() {
        headers.insert(name, HeaderValue::from_static(value));
    }
    let is_secure = console.cookies.are_secure();
    let policy =
        stream_page.and_then(|StreamPage(kind)| stream_policy(kind, host.as_ref(), is_secure));
    if let Some(policy) = policy {
        headers.insert(CONTENT_SECURITY_POLICY, policy);
    }
    if is_secure {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_streams_have_few_exceptions() {
        let host = HeaderValue::from_static("[::1]:9480");
        let policy = |kind, host| {
            let policy = stream_policy(kind, Some(&host), false);
            policy.map(|policy| policy.to_str().unwrap().to_owned())
        };
        let console = policy(StreamKind::Console, host.clone()).unwrap();
        assert_eq!(
            console,
            POLICY.replace("connect-src 'self'", "connect-src 'self' ws://[::1]:9480")
        );
        let screen = policy(StreamKind::Screen, host).unwrap();
        assert_eq!(screen, console.replace("img-src 'self'", "img-src 'self' data:"));
        // A host cannot add permissions.
        let hostile = HeaderValue::from_static("a; script-src *");
        assert_eq!(policy(StreamKind::Console, hostile), None);
    }
}
