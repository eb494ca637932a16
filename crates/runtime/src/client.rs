//! The client of the API server.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use hyper::{Method, Request};
use kube::client::{Body, ClientBuilder};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use tower::BoxError;
use tower::util::MapRequestLayer;

use crate::certificate::{self, Validity};
use crate::cli::text;
use crate::credential;
use crate::leader_election::LeaderGuard;
pub use crate::retry_after::Busy;
use crate::retry_after::RetryAfterLayer;

/// Time limit for a connection to the server.
const CONNECT: Duration = Duration::from_secs(5);
/// Time limit for a call. Watches have separate limits.
pub const CALL: Duration = Duration::from_secs(20);

/// A client and its configuration.
#[derive(Clone)]
pub struct Connected {
    /// The client; it connects with the first request.
    pub client: Client,
    /// Name or address of the server, and its port.
    pub server: (String, u16),
    /// Validity of the client certificate, if the kubeconfig has one.
    pub certificate: Option<Validity>,
}

impl std::fmt::Debug for Connected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connected").field("server", &self.server).finish_non_exhaustive()
    }
}

/// Returns a client for the cluster of a kubeconfig, or without a kubeconfig for that of the pod or of `KUBECONFIG`.
/// `hint` is appended to the error if there is no cluster; `count` is called with the method of each request.
///
/// # Errors
/// If the kubeconfig or the ServiceAccount cannot be read.
pub async fn connect(
    kubeconfig: Option<&Path>,
    hint: &str,
    count: impl Fn(&str) + Clone + Send + Sync + 'static,
) -> anyhow::Result<Connected> {
    let mut certificate = None;
    let mut config = match kubeconfig {
        Some(path) => {
            let name = path.display();
            let kubeconfig = Kubeconfig::read_from(path).with_context(|| format!("--kubeconfig {name}"))?;
            // If the certificate cannot be read, the next step fails with this error.
            certificate = certificate::of(&kubeconfig, credential::read).unwrap_or_default();
            Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
                .await
                .with_context(|| format!("--kubeconfig {name}"))?
        }
        None => Config::infer().await.with_context(|| {
            format!(
                "no cluster: in a pod the ServiceAccount's token is used, elsewhere give --kubeconfig FILE{hint}"
            )
        })?,
    };
    config.connect_timeout = Some(CONNECT);
    // Watches detect a dead connection by an idle timeout, and each call has a time limit.
    config.read_timeout = None;
    // Callers decide when to retry, and then send their latest state.
    config.default_retry = false;
    let usual = if config.cluster_url.scheme_str() == Some("http") { 80 } else { 443 };
    let host = config.cluster_url.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    let server = (host, config.cluster_url.port_u16().unwrap_or(usual));
    let builder = ClientBuilder::try_from(config).context("no client for the cluster")?;
    let counted = MapRequestLayer::new(move |request: Request<Body>| {
        count(request.method().as_str());
        request
    });
    // The count is below the other layer, which does not send requests before their `Retry-After` is over.
    let client = builder.with_layer(&counted).with_layer(&RetryAfterLayer::default()).build();
    Ok(Connected { client, server, certificate })
}

/// Returns true if an error of [`connect`] is an invalid or missing kubeconfig, so that no retry helps.
#[must_use]
pub fn is_bad_kubeconfig(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.is::<KubeconfigError>())
}

/// Returns a client that sends requests other than reads only while this process is the leader. So a process that was
/// stopped, and lost the leader lease meanwhile, sends nothing when it continues, at any point of its code.
#[must_use]
pub fn guarded(client: Client, guard: LeaderGuard) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |request: Request<Body>| {
        let is_refused = request.method() != Method::GET && !guard.is_leader();
        let client = client.clone();
        async move {
            if is_refused {
                Err(BoxError::from(NotLeader))
            } else {
                Ok(client.send(request).await?)
            }
        }
    });
    Client::new(service, namespace)
}

/// Error of a write while this process may not write.
#[derive(Debug, thiserror::Error)]
#[error("not sent: this process is not the leader")]
pub struct NotLeader;

/// Limits the time of a call.
///
/// # Errors
/// If the call fails, or has no answer in time.
pub async fn within<T>(call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, CallError> {
    match tokio::time::timeout(CALL, call).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(CallError::NoAnswer),
    }
}

/// Returns `None` in place of an error if the object does not exist (404).
///
/// # Errors
/// Returns any other error.
pub fn found<T>(result: kube::Result<T>) -> kube::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error),
    }
}

/// Error of a call.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The server did not answer in time.
    #[error("the API server does not answer ({} s)", CALL.as_secs())]
    NoAnswer,
    /// The server did not answer within the caller's limit.
    #[error("no answer in time")]
    TimedOut,
    /// The server refused the request with a `Retry-After`.
    #[error("{0}")]
    Busy(Busy),
    /// The request was not sent.
    #[error("{0}")]
    NotSent(NotLeader),
    /// The server's answer, or a failed connection.
    #[error("{}", chain(.0))]
    Kube(Box<kube::Error>),
}

impl From<kube::Error> for CallError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Service(inner) => match inner.downcast() {
                Ok(busy) => Self::Busy(*busy),
                Err(inner) if inner.is::<NotLeader>() => Self::NotSent(NotLeader),
                Err(inner) => Self::Kube(Box::new(kube::Error::Service(inner))),
            },
            error => Self::Kube(Box::new(error)),
        }
    }
}

/// Returns the text of an error with its sources: kube's own text lacks the sources of a failed connection.
fn chain(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error {
        // kube returns this error for an object of a watch that it cannot parse.
        if status.code == 0 && status.message.is_empty() {
            return "the API server sent an object that cannot be understood".to_owned();
        }
        return format!("{} ({})", status.message, status.code);
    }
    text::chain(error)
}

impl CallError {
    /// Returns the server's answer, if there was one.
    #[must_use]
    pub fn status(&self) -> Option<&kube::core::Status> {
        match self {
            Self::Kube(error) => match error.as_ref() {
                kube::Error::Api(status) => Some(status),
                _ => None,
            },
            Self::NoAnswer | Self::TimedOut | Self::Busy(_) | Self::NotSent(_) => None,
        }
    }

    /// Returns the time until `Retry-After` is over.
    #[must_use]
    pub fn rest(&self) -> Duration {
        match self {
            Self::Busy(busy) => busy.rest(),
            Self::NoAnswer | Self::TimedOut | Self::NotSent(_) | Self::Kube(_) => Duration::ZERO,
        }
    }

    /// Returns true if the server refused the object as invalid (422) with a message that contains this text.
    #[must_use]
    pub fn is_invalid(&self, words: &str) -> bool {
        self.status().is_some_and(|status| status.code == 422 && status.message.contains(words))
    }

    /// Returns the HTTP status of the server's answer.
    #[must_use]
    pub fn code(&self) -> Option<u16> {
        self.status().map(|status| status.code)
    }
}

/// Returns the time until the `Retry-After` of an error is over.
#[must_use]
pub fn rest(error: &kube::Error) -> Duration {
    let busy = match error {
        kube::Error::Service(error) => error.downcast_ref::<Busy>(),
        _ => None,
    };
    busy.map_or(Duration::ZERO, Busy::rest)
}

/// Backoff of one loop: the pause doubles with each retry and has jitter, so that a thousand agents do not retry at
/// the same time.
#[derive(Debug)]
pub struct Pauses {
    next: Duration,
    most: Duration,
}

impl Pauses {
    /// Pause before the first retry.
    pub const FIRST: Duration = Duration::from_secs(1);

    /// Returns a backoff that grows up to a limit.
    #[must_use]
    pub const fn up_to(most: Duration) -> Self {
        Self { next: Self::FIRST, most }
    }

    /// Sets the next pause to the first pause.
    pub const fn reset(&mut self) {
        self.next = Self::FIRST;
    }

    /// Sleeps for the next pause, but not for less than `rest`.
    pub async fn wait(&mut self, rest: Duration) {
        tokio::time::sleep(jittered(self.next.max(at_least(rest)))).await;
        self.next = (self.next * 2).min(self.most);
    }
}

/// Returns a time that is at least `time` after jitter is applied.
#[must_use]
pub fn at_least(time: Duration) -> Duration {
    // Both divisions round down, which may lose two nanoseconds.
    time * 4 / 3 + Duration::from_nanos(2)
}

/// Returns a random time between 0.75 and 1.25 of a time.
#[must_use]
pub fn jittered(time: Duration) -> Duration {
    // The seeds of the standard library's hash maps are random enough for jitter.
    let random =
        std::hash::BuildHasher::hash_one(&std::collections::hash_map::RandomState::new(), 0_u8);
    let part = u32::try_from(random % 512).unwrap_or_default();
    time * 3 / 4 + time * part / 1024
}
