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

use crate::call::NotLeader;
use crate::certificate::Validity;
use crate::kubeconfig;
use crate::leader_election::LeaderGuard;
use crate::retry_after::RetryAfterLayer;

/// Time limit for a connection to the server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
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
            let config = Kubeconfig::read_from(path).with_context(|| format!("--kubeconfig {name}"))?;
            // If the certificate cannot be read, the next step fails with this error.
            certificate = kubeconfig::validity(&config);
            Config::from_custom_kubeconfig(config, &KubeConfigOptions::default())
                .await
                .with_context(|| format!("--kubeconfig {name}"))?
        }
        None => Config::infer().await.with_context(|| {
            format!(
                "no cluster: in a pod the ServiceAccount's token is used, elsewhere give --kubeconfig FILE{hint}"
            )
        })?,
    };
    config.connect_timeout = Some(CONNECT_TIMEOUT);
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
