//! HTTP client of an untrusted API server, with limits.

use std::sync::{Arc, Weak};
use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::header::RETRY_AFTER;
use hyper::{Request, Response};
use hyper_util::client::legacy;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ClientBuilder, ConfigExt as _};
use kube::{Client, Config};
use secrecy::SecretString;
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;
use tower::{BoxError, ServiceExt};

use super::connector::{AddressPolicy, GuardedConnector, TimeLimitedConnector};
use super::error::UntrustedError;
use super::explanation::{Explanation, MAX_BODY_LENGTH, RequestFailure};
use super::slots::{ConnectionSlots, LargeAnswerPermit, MAX_SMALL_ANSWER_LENGTH};
use crate::call::CALL_TIMEOUT;
use crate::client::with_leader_guard;
use crate::leader_election::LeaderGuard;

/// Maximum number of concurrent requests to a server, in addition to watches. HTTP/1 needs one connection for each
/// request.
const MAX_CONCURRENT_REQUESTS: usize = 4;
/// Maximum size in bytes of the receive buffer, and thus of the headers of a response.
const MAX_BUFFER_BYTES: usize = 1 << 16;
/// Time after which an unused connection is closed. At most one unused connection is kept open.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Upper bound for `Retry-After`.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(120);

/// No client can be created from the configuration: a certificate or a key is malformed, or there is no CA certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no client can be created: a certificate or a key is malformed; or certificate-authority-data is missing, and \
     this machine has no root CA certificates"
)]
pub struct InvalidClientConfig;

/// Response of an untrusted API server. Its body may contain anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status.
    pub code: u16,
    /// Time in the server's `Retry-After`; zero without this header.
    pub retry_after: Duration,
    pub body: Vec<u8>,
}

/// Client of an untrusted API server. The client follows no redirects and uses no proxy.
#[derive(Clone)]
pub struct UntrustedClient {
    client: Client,
    request_slots: Arc<Semaphore>,
    slots: ConnectionSlots,
    /// Credentials that the requests contain. They must be removed from messages of the server, which may repeat them.
    credentials: Arc<[SecretString]>,
}

/// Identity of a client. A client and its clones have the same identity: they send requests to the same server with the
/// same credentials. A client that was created from a changed kubeconfig has another identity. An identity does not
/// keep the credentials or connections of its client alive.
#[derive(Clone, Debug)]
pub struct ClientIdentity(Weak<Semaphore>);

// The weak reference keeps the memory allocated, so no later client can have the same address.
impl PartialEq for ClientIdentity {
    fn eq(&self, other: &Self) -> bool {
        Weak::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for ClientIdentity {}

impl std::fmt::Debug for UntrustedClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UntrustedClient").finish_non_exhaustive()
    }
}

impl UntrustedClient {
    /// Returns a client. It connects when it sends the first request. The configuration must name neither a program nor
    /// a file, and its token must be valid in a header. The client sends requests other than GET only while this
    /// process is the leader.
    ///
    /// # Errors
    ///
    /// Returns an error if no client can be created from the configuration.
    pub fn new(
        config: &Config,
        policy: AddressPolicy,
        slots: ConnectionSlots,
        guard: LeaderGuard,
    ) -> Result<Self, InvalidClientConfig> {
        let client = create_client(config, GuardedConnector::new(policy, slots.clone()))
            .map_err(|_| InvalidClientConfig)?;
        let auth = &config.auth_info;
        let credentials = [&auth.token, &auth.password].into_iter().flatten().cloned().collect();
        Ok(Self { slots, credentials, ..Self::from_client(with_leader_guard(client, guard)) })
    }

    /// Returns a client that sends its requests with another client.
    #[must_use]
    pub fn from_client(client: Client) -> Self {
        let request_slots = Arc::new(Semaphore::new(MAX_CONCURRENT_REQUESTS));
        let credentials = Arc::from(Vec::new());
        Self { client, request_slots, slots: ConnectionSlots::default(), credentials }
    }

    /// Returns the identity of this client and its clones.
    #[must_use]
    pub fn identity(&self) -> ClientIdentity {
        ClientIdentity(Arc::downgrade(&self.request_slots))
    }

    /// Sends a request, and returns the JSON of the response. Waits until fewer than four requests are in progress,
    /// then waits for the response for at most [`CALL_TIMEOUT`], and reads at most `max_length` bytes.
    ///
    /// # Errors
    ///
    /// Returns an error if the request fails.
    pub async fn request<T: DeserializeOwned>(
        &self,
        request: Request<Body>,
        max_length: usize,
    ) -> Result<T, UntrustedError> {
        self.with_limits(async {
            let response = self.open(request).await?;
            self.read_json(response, max_length).await
        })
        .await
    }

    /// Sends a request as [`request`](Self::request) does. If the server refuses the request, the error also contains
    /// the server's explanation.
    ///
    /// # Errors
    ///
    /// Returns an error if the request fails.
    pub async fn write<T: DeserializeOwned>(
        &self,
        request: Request<Body>,
        max_length: usize,
    ) -> Result<T, RequestFailure> {
        self.with_limits(async {
            let response = self.send(request).await?;
            let Err(error) = check_status(&response) else {
                return Ok(self.read_json(response, max_length).await?);
            };
            let read = read_body(response.into_body(), MAX_BODY_LENGTH, &self.slots).await;
            let explanation = read.map(|(body, _)| self.explanation(&body)).unwrap_or_default();
            Err(RequestFailure { error, explanation })
        })
        .await
    }

    /// Returns the explanation in the body of a response that refuses a request.
    #[must_use]
    pub fn explanation(&self, body: &[u8]) -> Explanation {
        Explanation::read(body, &self.credentials)
    }

    /// Sends a request, and returns the response even if the server refuses the request. The limits are those of
    /// [`request`](Self::request).
    ///
    /// # Errors
    ///
    /// Returns an error if there is no response.
    pub async fn exchange(
        &self,
        request: Request<Body>,
        max_length: usize,
    ) -> Result<Answer, UntrustedError> {
        self.with_limits(async {
            let response = self.send(request).await?;
            let code = response.status().as_u16();
            let retry_after = retry_after(&response).unwrap_or_default();
            let (body, _large) = read_body(response.into_body(), max_length, &self.slots).await?;
            Ok(Answer { code, retry_after, body })
        })
        .await
    }

    /// Waits for at most [`CALL_TIMEOUT`] for the permit to receive a large event.
    pub(super) async fn acquire_large_event(&self) -> Result<LargeAnswerPermit, UntrustedError> {
        let permit = tokio::time::timeout(CALL_TIMEOUT, self.slots.acquire_large_answer());
        permit.await.unwrap_or(Err(UntrustedError::Timeout))
    }

    /// Sends a request, and returns a successful response, whose body has not been read yet.
    pub(super) async fn open(
        &self,
        request: Request<Body>,
    ) -> Result<Response<Body>, UntrustedError> {
        let response = self.send(request).await?;
        check_status(&response).map(|()| response)
    }

    async fn send(&self, request: Request<Body>) -> Result<Response<Body>, UntrustedError> {
        let sent = self.client.send(request).await;
        sent.map_err(|error| UntrustedError::from_source(&error))
    }

    async fn read_json<T: DeserializeOwned>(
        &self,
        response: Response<Body>,
        max_length: usize,
    ) -> Result<T, UntrustedError> {
        // The permit for a large response is held until the response is parsed.
        let (body, _large) = read_body(response.into_body(), max_length, &self.slots).await?;
        serde_json::from_slice(&body).map_err(|_| UntrustedError::Malformed)
    }

    /// Waits until fewer than [`MAX_CONCURRENT_REQUESTS`] requests are in progress, and then waits for the response for
    /// at most [`CALL_TIMEOUT`].
    async fn with_limits<T, E: From<UntrustedError>>(
        &self,
        answer: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let _permit = self.request_slots.acquire().await.map_err(|_| UntrustedError::Closed)?;
        let answer = tokio::time::timeout(CALL_TIMEOUT, answer).await;
        answer.unwrap_or_else(|_| Err(UntrustedError::Timeout.into()))
    }
}

/// Returns an error unless the response is successful. The status codes 429, 503 and 504 mean that the server is
/// overloaded, even without a `Retry-After`.
fn check_status(response: &Response<Body>) -> Result<(), UntrustedError> {
    let status = response.status();
    if status.is_success() {
        return Ok(());
    }
    let code = status.as_u16();
    let is_overloaded = matches!(code, 429 | 503 | 504);
    Err(match retry_after(response) {
        Some(time) if is_overloaded || status.is_server_error() => UntrustedError::Busy(code, time),
        None if is_overloaded => UntrustedError::Busy(code, Duration::ZERO),
        _ => UntrustedError::Status(code),
    })
}

fn create_client(config: &Config, connector: GuardedConnector) -> kube::Result<Client> {
    let connector =
        TimeLimitedConnector::new(config.rustls_https_connector_with_connector(connector)?);
    let mut builder = legacy::Client::builder(TokioExecutor::new());
    builder
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE_TIMEOUT)
        .pool_max_idle_per_host(1)
        .http1_max_buf_size(MAX_BUFFER_BYTES);
    let http: legacy::Client<_, Body> = builder.build(connector);
    let service = ServiceExt::<Request<Body>>::map_err(http, BoxError::from);
    let builder = ClientBuilder::new(service, config.default_namespace.clone())
        .with_layer(&config.base_uri_layer())
        .with_layer(&config.extra_headers_layer()?);
    Ok(match config.auth_layer()? {
        Some(auth) => builder.with_layer(&auth).build(),
        None => builder.build(),
    })
}

/// Reads a body. The content is copied out of the HTTP frames, because the server chooses their sizes: a stored frame
/// of one byte would need 40 bytes. As soon as the body is large, waits for a permit, which is returned with the body.
async fn read_body(
    mut body: Body,
    max_length: usize,
    slots: &ConnectionSlots,
) -> Result<(Vec<u8>, Option<LargeAnswerPermit>), UntrustedError> {
    let (mut content, mut large) = (Vec::new(), None::<LargeAnswerPermit>);
    loop {
        let next = match &large {
            Some(large) => tokio::time::timeout_at(large.deadline, body.frame())
                .await
                .map_err(|_| UntrustedError::Timeout)?,
            None => body.frame().await,
        };
        let Some(frame) = next else { return Ok((content, large)) };
        let frame = frame.map_err(|error| UntrustedError::from_source(&error))?;
        let Ok(data) = frame.into_data() else { continue };
        if data.len() > max_length.saturating_sub(content.len()) {
            return Err(UntrustedError::TooLong);
        }
        if large.is_none() && content.len().saturating_add(data.len()) > MAX_SMALL_ANSWER_LENGTH {
            large = Some(slots.acquire_large_answer().await?);
        }
        content.extend_from_slice(&data);
    }
}

fn retry_after(response: &Response<Body>) -> Option<Duration> {
    let seconds = response.headers().get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds).min(MAX_RETRY_AFTER))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    async fn request(
        status: u16,
        header: Option<&str>,
        body: &str,
    ) -> Result<Value, UntrustedError> {
        let (header, body) = (header.map(str::to_owned), body.to_owned());
        let service = tower::service_fn(move |_: Request<Body>| {
            let mut response = Response::builder().status(status);
            if let Some(header) = &header {
                response = response.header(RETRY_AFTER, header);
            }
            std::future::ready(response.body(Body::from(body.clone().into_bytes())))
        });
        let client = UntrustedClient::from_client(Client::new(service, "default"));
        client.request(Request::get("/api").body(Body::empty()).unwrap(), 100).await
    }

    #[tokio::test]
    async fn an_identity_does_not_keep_the_client() {
        let create = || {
            let service = tower::service_fn(|_: Request<Body>| {
                std::future::ready(Response::builder().body(Body::empty()))
            });
            UntrustedClient::from_client(Client::new(service, "default"))
        };
        let client = create();
        let identity = client.identity();
        assert_eq!(client.clone().identity(), identity);
        drop(client);
        assert_eq!(identity.0.strong_count(), 0);
        assert_ne!(create().identity(), identity);
    }

    #[tokio::test]
    async fn answers_are_limited_and_classified() {
        assert_eq!(request(200, None, "[1]").await, Ok(serde_json::json!([1])));
        assert_eq!(request(200, None, &" ".repeat(101)).await, Err(UntrustedError::TooLong));
        assert_eq!(request(200, None, "<html>").await, Err(UntrustedError::Malformed));
        assert_eq!(request(302, None, "").await, Err(UntrustedError::Status(302)));
        assert_eq!(request(401, Some("9"), "").await, Err(UntrustedError::Status(401)));
        let busy = UntrustedError::Busy(429, Duration::from_secs(9));
        assert_eq!(request(429, Some("9"), "").await, Err(busy));
        let limited = request(503, Some("99999"), "").await.unwrap_err();
        assert_eq!(limited.retry_after(), MAX_RETRY_AFTER);
        let without_time = Err(UntrustedError::Busy(503, Duration::ZERO));
        assert_eq!(request(503, Some("tomorrow"), "").await, without_time);
        assert_eq!(request(503, None, "").await, without_time);
        assert_eq!(request(500, None, "").await, Err(UntrustedError::Status(500)));
        let retried = Err(UntrustedError::Busy(500, Duration::from_secs(9)));
        assert_eq!(request(500, Some("9"), "").await, retried);
    }

    #[tokio::test]
    async fn refusals_have_a_body() {
        let service = tower::service_fn(|_: Request<Body>| {
            let response = Response::builder().status(429).header(RETRY_AFTER, "9");
            std::future::ready(response.body(Body::from(b"[2]".to_vec())))
        });
        let client = UntrustedClient::from_client(Client::new(service, "default"));
        let get = || Request::get("/api").body(Body::empty()).unwrap();
        let answer = client.exchange(get(), 100).await.unwrap();
        let retry_after = Duration::from_secs(9);
        assert_eq!(answer, Answer { code: 429, retry_after, body: b"[2]".to_vec() });
        assert_eq!(client.exchange(get(), 2).await, Err(UntrustedError::TooLong));
    }

    #[tokio::test]
    async fn refused_writes_are_explained() {
        let service = tower::service_fn(|request: Request<Body>| {
            let code = if request.uri().path() == "/ok" { 200 } else { 422 };
            let body = b"{\"message\": \"denied by a policy\"}".to_vec();
            std::future::ready(Response::builder().status(code).body(Body::from(body)))
        });
        let client = UntrustedClient::from_client(Client::new(service, "default"));
        let patch = |path: &str| {
            let request = Request::patch(path).body(Body::empty()).unwrap();
            client.write::<Value>(request, 100)
        };
        assert_eq!(patch("/ok").await.unwrap()["message"], "denied by a policy");
        let refused = patch("/refused").await.unwrap_err();
        assert_eq!(refused.error, UntrustedError::Status(422));
        assert_eq!(
            refused.to_string(),
            "the API server answered with HTTP status 422, with the message \"denied by a policy\""
        );
    }

    #[tokio::test]
    async fn small_answers_do_not_wait_for_large_answers() {
        let service = tower::service_fn(|request: Request<Body>| {
            let length = if request.uri().path() == "/large" { MAX_SMALL_ANSWER_LENGTH } else { 0 };
            let body = format!("{}1", " ".repeat(length)).into_bytes();
            std::future::ready(Response::builder().body(Body::from(body)))
        });
        let client = UntrustedClient::from_client(Client::new(service, "default"));
        let get = |path: &str| {
            let request = Request::get(path).body(Body::empty()).unwrap();
            client.request::<u8>(request, 2 * MAX_SMALL_ANSWER_LENGTH)
        };
        let short = Duration::from_millis(100);
        let held = client.acquire_large_event().await.unwrap();
        assert!(tokio::time::timeout(short, get("/large")).await.is_err());
        assert_eq!(get("/small").await, Ok(1));
        drop(held);
        assert_eq!(get("/large").await, Ok(1));
    }
}
