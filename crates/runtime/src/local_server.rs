//! HTTP server for one client program on the same host. The client sends POST requests with JSON, and a response may
//! take long.

use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::header::{ALLOW, CONTENT_TYPE};
use axum::http::{Method, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};

use crate::listen::ListenSocket;

/// A response body that is already serialized as JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonText(pub String);

impl IntoResponse for JsonText {
    fn into_response(self) -> Response {
        ([(CONTENT_TYPE, "application/json")], self.0).into_response()
    }
}

/// Serves the routes until the future is dropped. The body of a request may have at most `max_body_bytes` bytes.
/// Connections have no time limit, because the client is trusted to read the responses, and would treat a connection
/// that is closed during a request as an error.
pub async fn serve_json(server: ListenSocket, max_body_bytes: usize, routes: Router) {
    // `axum::serve` never returns.
    axum::serve(server, build_router(max_body_bytes, routes)).await.unwrap_or_default();
}

fn build_router(max_body_bytes: usize, routes: Router) -> Router {
    let routes = routes.fallback(async || plain_response(StatusCode::NOT_FOUND, "not found\n"));
    routes.layer(DefaultBodyLimit::max(max_body_bytes)).layer(from_fn(refuse_unless_post))
}

async fn refuse_unless_post(request: Request, next: Next) -> Response {
    if request.method() == Method::POST {
        return next.run(request).await;
    }
    ([(ALLOW, "POST")], plain_response(StatusCode::METHOD_NOT_ALLOWED, "only POST is allowed\n"))
        .into_response()
}

/// Returns a response without a content type.
fn plain_response(code: StatusCode, text: &'static str) -> Response {
    (code, Body::from(text)).into_response()
}

#[cfg(test)]
mod tests {
    use axum::body::{Bytes, to_bytes};
    use axum::extract::rejection::BytesRejection;
    use axum::routing::post;
    use tower::ServiceExt as _;

    use super::*;

    async fn handler(body: Result<Bytes, BytesRejection>) -> JsonText {
        JsonText(if body.is_ok() { "{}" } else { "null" }.to_owned())
    }

    #[tokio::test]
    async fn other_methods_and_too_long_bodies_are_refused() {
        let json = Some("application/json");
        for (method, path, length, code, kind, allow, text) in [
            ("POST", "/filter", 8, 200, json, None, "{}"),
            ("POST", "/filter", 9, 200, json, None, "null"),
            ("POST", "/nowhere", 8, 404, None, None, "not found\n"),
            ("GET", "/filter", 0, 405, None, Some("POST"), "only POST is allowed\n"),
            ("GET", "/nowhere", 0, 405, None, Some("POST"), "only POST is allowed\n"),
        ] {
            let body = Body::from("x".repeat(length));
            let request = Request::builder().method(method).uri(path).body(body).unwrap();
            let routes = Router::new().route("/filter", post(handler));
            let (head, body) = build_router(8, routes).oneshot(request).await.unwrap().into_parts();
            let header = |name| head.headers.get(name).map(|value| value.to_str().unwrap());
            assert_eq!(head.status.as_u16(), code, "{method} {path}");
            assert_eq!((header(CONTENT_TYPE), header(ALLOW)), (kind, allow), "{method} {path}");
            assert_eq!(to_bytes(body, 1 << 10).await.unwrap(), text, "{method} {path}");
        }
    }
}
