//! GET requests to API servers that are not trusted: the size of their answer is limited.

use http_body_util::{BodyExt as _, Limited};
use hyper::Request;
use kube::Client;
use kube::client::Body;

use crate::call::CALL_TIMEOUT;

/// Reason why a request has no answer that can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitedRequestError {
    /// The server answered with an error.
    #[error("the server answered with HTTP status {0}")]
    Status(u16),
    /// There was no connection, no answer in time, or a longer answer.
    #[error("the server did not answer")]
    NoAnswer,
}

/// Sends a GET request, and returns the body of the answer. Waits for at most [`CALL_TIMEOUT`], and reads at most
/// `max_length` bytes.
///
/// # Errors
/// Returns an error if the server refuses the request, does not answer in time, or sends more.
pub async fn get_limited(
    client: &Client,
    path: &str,
    max_length: usize,
) -> Result<Vec<u8>, LimitedRequestError> {
    let no_answer = LimitedRequestError::NoAnswer;
    let request = Request::get(path).body(Body::empty()).map_err(|_| no_answer)?;
    let answer = async {
        let response = client.send(request).await.map_err(|_| no_answer)?;
        let status = response.status();
        if !status.is_success() {
            return Err(LimitedRequestError::Status(status.as_u16()));
        }
        let body = Limited::new(response.into_body(), max_length).collect().await;
        Ok(body.map_err(|_| no_answer)?.to_bytes().to_vec())
    };
    tokio::time::timeout(CALL_TIMEOUT, answer).await.unwrap_or(Err(no_answer))
}

#[cfg(test)]
mod tests {
    use hyper::Response;

    use super::*;

    /// Requests an answer of this status and length.
    async fn request(status: u16, length: usize) -> Result<usize, LimitedRequestError> {
        let service = tower::service_fn(move |_: Request<Body>| async move {
            Response::builder().status(status).body(Body::from(vec![b'x'; length]))
        });
        let client = Client::new(service, "default");
        get_limited(&client, "/version", 1000).await.map(|body| body.len())
    }

    #[tokio::test]
    async fn long_answers_are_not_read() {
        assert_eq!(request(200, 1000).await, Ok(1000));
        assert_eq!(request(200, 1001).await, Err(LimitedRequestError::NoAnswer));
        assert_eq!(request(401, 1_000_000).await, Err(LimitedRequestError::Status(401)));
    }
}
