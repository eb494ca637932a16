//! Helpers of the unit tests.

use std::convert::Infallible;

use axum::http::{Request, Response};
use kube::Client;
use kube::client::Body;

/// Returns a client of a simulated API server, which answers each request with a status code and a body.
pub(crate) fn test_client(
    answer: impl Fn(&str) -> (u16, String) + Clone + Send + Sync + 'static,
) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let (code, body) = answer(request.uri().path());
        async move {
            let response = Response::builder().status(code).body(Body::from(body.into_bytes()));
            Ok::<_, Infallible>(response.unwrap())
        }
    });
    Client::new(service, "default")
}
