//! Time limits of requests: for the body, and for the work until the head of the response.

use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use tokio::time::timeout;

use crate::error::PageError;
use crate::requests::may_send_forms;
use crate::state::Shared;

/// Maximum size of a form: two PEM files, or a token.
const MAX_FORM_BYTES: usize = 64 << 10;
/// Time limit for receiving a form.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for a response. A call to the API server has a shorter one. The limit does not include the events of a
/// stream, whose response begins immediately.
pub(crate) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit for the response with a simulation, which lists many objects, and waits for those of other users.
pub(crate) const SIMULATION_TIMEOUT: Duration = Duration::from_secs(300);

/// Receives the body of a request, and waits for the response, until this limit. Forms of browsers that cannot have a valid
/// form are refused before their body is received.
pub(crate) async fn limit_time(
    State((console, limit)): State<(Shared, Duration)>,
    request: Request,
    next: Next,
) -> Response {
    if request.method() == Method::POST && !may_send_forms(&console, request.headers()) {
        return closing(PageError::ForeignForm.into_response());
    }
    let (head, body) = request.into_parts();
    let body = match receive(body, BODY_TIMEOUT).await {
        Ok(body) => body,
        Err(code) => return closing(code.into_response()),
    };
    let request = Request::from_parts(head, Body::from(body));
    match timeout(limit, next.run(request)).await {
        Ok(response) => response,
        Err(_) => PageError::Unavailable.into_response(),
    }
}

/// Receives a form, or returns the status code of the response.
async fn receive(body: Body, limit: Duration) -> Result<Bytes, StatusCode> {
    match timeout(limit, to_bytes(body, MAX_FORM_BYTES)).await {
        Ok(Ok(body)) => Ok(body),
        Ok(Err(_)) => Err(StatusCode::PAYLOAD_TOO_LARGE),
        Err(_) => Err(StatusCode::REQUEST_TIMEOUT),
    }
}

/// Ends the connection after a response, because the rest of the request was not received.
fn closing(mut response: Response) -> Response {
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use tower::ServiceExt as _;

    use super::*;
    use crate::router::build_router;
    use crate::test_helpers::test_console;

    fn endless_body() -> Body {
        Body::from_stream(stream::pending::<Result<Vec<u8>, std::io::Error>>())
    }

    #[tokio::test]
    async fn bodies_are_limited_in_time_and_size() {
        let slow = receive(endless_body(), Duration::ZERO).await;
        assert_eq!(slow, Err(StatusCode::REQUEST_TIMEOUT));
        let large = Body::from(vec![b'a'; MAX_FORM_BYTES + 1]);
        assert_eq!(receive(large, BODY_TIMEOUT).await, Err(StatusCode::PAYLOAD_TOO_LARGE));
        let small = receive(Body::from("a=b"), BODY_TIMEOUT).await;
        assert_eq!(small, Ok(Bytes::from("a=b")));
    }

    #[tokio::test]
    async fn forms_without_a_cookie_are_refused_before_their_body_is_received() {
        let router = build_router(test_console(false));
        for path in ["/sign-in", "/sign-out", "/theme"] {
            let request = Request::builder().method("POST").uri(path).body(endless_body());
            let response = router.clone().oneshot(request.unwrap()).await.unwrap();
            assert_eq!(response.status(), StatusCode::FORBIDDEN, "{path}");
            assert_eq!(response.headers()[CONNECTION], "close", "{path}");
        }
    }
}
