//! The way to the API server.

use std::time::Duration;

use anyhow::Context as _;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use super::Settings;
use crate::text;

/// A server that does not take a connection in so long is away.
const CONNECT: Duration = Duration::from_secs(5);
/// A call that takes longer is given up. Watches have limits of their own.
pub(super) const CALL: Duration = Duration::from_secs(20);

/// A client for the cluster; no connection is made yet.
pub(super) async fn connect(settings: &Settings) -> anyhow::Result<Client> {
    let mut config = match &settings.kubeconfig {
        Some(path) => {
            let name = path.display();
            let kubeconfig = Kubeconfig::read_from(path).with_context(|| format!("--kubeconfig {name}"))?;
            Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
                .await
                .with_context(|| format!("--kubeconfig {name}"))?
        }
        None => Config::infer().await.context(
            "no cluster: in a pod the ServiceAccount's token is used, elsewhere say --kubeconfig FILE (or --standalone \
             FILE to do without a cluster)",
        )?,
    };
    config.connect_timeout = Some(CONNECT);
    // A dead watch is noticed by its silence, a call by its own limit.
    config.read_timeout = None;
    // Whoever calls decides when to try again: what is said then is what is so then.
    config.default_retry = false;
    Client::try_from(config).context("no client for the cluster")
}

/// A call with a limit.
pub(super) async fn within<T>(
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, CallError> {
    match tokio::time::timeout(CALL, call).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(CallError::Kube(Box::new(error))),
        Err(_) => Err(CallError::Silent),
    }
}

/// Why a call came to nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    /// No answer in time.
    #[error("the API server does not answer ({} s)", CALL.as_secs())]
    Silent,
    /// The server or the way to it.
    #[error("{}", chain(.0))]
    Kube(Box<kube::Error>),
}

/// kube says some of its reasons, but not those of a connection that could not be made.
pub(super) fn chain(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error {
        return format!("{} ({})", status.message, status.code);
    }
    text::chain(error)
}

impl CallError {
    /// The server's answer, if it gave one.
    pub(super) fn status(&self) -> Option<&kube::core::Status> {
        match self {
            Self::Kube(error) => match error.as_ref() {
                kube::Error::Api(status) => Some(status),
                _ => None,
            },
            Self::Silent => None,
        }
    }

    /// Whether the server found what we sent invalid, and says this of it.
    pub(super) fn is_invalid(&self, words: &str) -> bool {
        self.status().is_some_and(|status| status.code == 422 && status.message.contains(words))
    }

    /// The HTTP status that the server answered with.
    pub(super) fn code(&self) -> Option<u16> {
        self.status().map(|status| status.code)
    }
}

/// Pauses between tries: doubled each time, with a random part so that a thousand agents do not come at once.
#[derive(Debug)]
pub(super) struct Pauses {
    next: Duration,
    most: Duration,
}

impl Pauses {
    pub(super) const FIRST: Duration = Duration::from_secs(1);

    pub(super) const fn up_to(most: Duration) -> Self {
        Self { next: Self::FIRST, most }
    }

    pub(super) const fn reset(&mut self) {
        self.next = Self::FIRST;
    }

    pub(super) async fn wait(&mut self) {
        tokio::time::sleep(jittered(self.next)).await;
        self.next = (self.next * 2).min(self.most);
    }
}

/// Between 0.75 and 1.25 of a time.
pub(super) fn jittered(time: Duration) -> Duration {
    // What the standard library seeds its maps with is random enough for this.
    let random =
        std::hash::BuildHasher::hash_one(&std::collections::hash_map::RandomState::new(), 0_u8);
    let part = u32::try_from(random % 512).unwrap_or_default();
    time * 3 / 4 + time * part / 1024
}
