//! The client of the API server.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use hyper::{Method, Request};
use kube::client::{Body, ClientBuilder};
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use tower::BoxError;
use tower::util::MapRequestLayer;

use crate::call::NotLeader;
use crate::certificate::Validity;
use crate::kubeconfig;
use crate::leader_election::LeaderGuard;
use crate::retry_after::RetryAfterLayer;

/// Time limit for establishing a connection to the API server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A client of the API server, with properties of its connection.
#[derive(Clone)]
pub struct Connection {
    /// The client; it connects when it sends the first request.
    pub client: Client,
    /// Host name or address of the API server, and its port.
    pub server: (String, u16),
    /// Validity of the client certificate; `None` if the kubeconfig has no certificate, or if it cannot be read.
    pub certificate: Option<Validity>,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("server", &self.server).finish_non_exhaustive()
    }
}

/// Returns a client for the cluster of `kubeconfig`. If `kubeconfig` is `None`, the pod's ServiceAccount or the file in
/// the variable `KUBECONFIG` is used. `hint` is appended to the error if no cluster is configured. `count_request` is
/// called with the method of each request.
///
/// # Errors
///
/// Returns an error if the kubeconfig or the ServiceAccount cannot be read.
pub async fn connect(
    kubeconfig: Option<&Path>,
    hint: &str,
    count_request: impl Fn(&str) + Clone + Send + Sync + 'static,
) -> anyhow::Result<Connection> {
    let (config, certificate) = read_config(kubeconfig, hint).await?;
    create_connection(config, certificate, count_request)
}

/// Reads the configuration of the cluster as [`connect`] does, with the validity of the client certificate.
async fn read_config(
    kubeconfig: Option<&Path>,
    hint: &str,
) -> anyhow::Result<(Config, Option<Validity>)> {
    let mut certificate = None;
    let config = match kubeconfig {
        Some(path) => {
            let name = path.display();
            let config =
                Kubeconfig::read_from(path).with_context(|| format!("--kubeconfig {name}"))?;
            // If the certificate cannot be read, `from_custom_kubeconfig` below returns the error.
            certificate = kubeconfig::certificate_validity(&config);
            Config::from_custom_kubeconfig(config, &KubeConfigOptions::default())
                .await
                .with_context(|| format!("--kubeconfig {name}"))?
        }
        None => Config::infer().await.with_context(|| {
            format!(
                "no cluster is configured: outside a pod with a ServiceAccount, specify --kubeconfig FILE{hint}"
            )
        })?,
    };
    Ok((config, certificate))
}

/// Address and certificate authority of a cluster, without a credential: users bring their own.
#[derive(Clone)]
pub struct Cluster {
    config: Config,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("url", &self.config.cluster_url).finish_non_exhaustive()
    }
}

impl Cluster {
    /// Reads the cluster as [`connect`] does, and drops the credential.
    ///
    /// # Errors
    /// Returns an error if the kubeconfig or the ServiceAccount cannot be read.
    pub async fn read(kubeconfig: Option<&Path>, hint: &str) -> anyhow::Result<Self> {
        let (mut config, _) = read_config(kubeconfig, hint).await?;
        config.auth_info = AuthInfo::default();
        config.headers.clear();
        Ok(Self { config })
    }

    /// Returns a client that authenticates with this credential only.
    ///
    /// # Errors
    /// Returns an error if the client certificate or its key cannot be parsed.
    pub fn client_with(&self, credential: AuthInfo) -> anyhow::Result<Client> {
        let mut config = self.config.clone();
        config.auth_info = credential;
        Ok(create_connection(config, None, |_| {})?.client)
    }
}

/// Another user whose permissions the requests have, as the options `--as`, `--as-uid` and `--as-group` of kubectl. Each part
/// replaces that of the kubeconfig's user (`as`, `as-uid`, `as-groups`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Impersonation {
    /// Name of the user.
    pub user: Option<String>,
    /// UID of the user.
    pub uid: Option<String>,
    /// Groups of the user.
    pub groups: Vec<String>,
}

/// Reason why requests cannot impersonate a user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImpersonationError {
    /// There is a UID or a group without a user.
    #[error("--as-uid and --as-group need --as")]
    NoUser,
    /// A request cannot contain the name, which may have only printable ASCII characters.
    #[error(
        "{0:?}: names of --as, --as-uid and --as-group may have only printable ASCII characters"
    )]
    InvalidName(String),
}

impl Impersonation {
    fn apply(&self, user: &mut AuthInfo) -> Result<(), ImpersonationError> {
        let Self { user: name, uid, groups } = self;
        let is_printable = |name: &str| name.bytes().all(|byte| matches!(byte, b' '..=b'~'));
        let mut names = name.iter().chain(uid).chain(groups);
        if let Some(invalid) = names.find(|name| !is_printable(name)) {
            return Err(ImpersonationError::InvalidName(invalid.clone()));
        }
        let AuthInfo { impersonate, impersonate_uid, impersonate_groups, .. } = user;
        if name.is_some() {
            impersonate.clone_from(name);
        }
        if uid.is_some() {
            impersonate_uid.clone_from(uid);
        }
        if !groups.is_empty() {
            *impersonate_groups = Some(groups.clone());
        }
        let has_others = uid.is_some() || !groups.is_empty();
        if has_others && impersonate.is_none() { Err(ImpersonationError::NoUser) } else { Ok(()) }
    }
}

/// Returns a client with the permissions of the user of a command, and the namespace of the context. The kubeconfig is
/// found as by kubectl: the file `kubeconfig`, or else the files in the variable `KUBECONFIG`, or else
/// `~/.kube/config`. In a pod without these files, the pod's ServiceAccount is used. `context` is the name of a context
/// of the kubeconfig; without it, the current context is used.
///
/// # Errors
///
/// Returns an error if the kubeconfig cannot be read, or has no such context, or if requests cannot impersonate the user.
pub async fn connect_as_user(
    kubeconfig: Option<&Path>,
    context: Option<&str>,
    impersonation: &Impersonation,
) -> anyhow::Result<(Connection, String)> {
    let options =
        KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    let mut config = match (kubeconfig, context) {
        (Some(path), _) => {
            let name = path.display();
            let read =
                Kubeconfig::read_from(path).with_context(|| format!("--kubeconfig {name}"))?;
            let config = Config::from_custom_kubeconfig(read, &options).await;
            config.with_context(|| format!("--kubeconfig {name}"))?
        }
        (None, Some(context)) => {
            let config = Config::from_kubeconfig(&options).await;
            config.with_context(|| format!("--context {context}"))?
        }
        (None, None) => Config::infer()
            .await
            .context("no cluster is configured: set KUBECONFIG, or specify --kubeconfig FILE")?,
    };
    impersonation.apply(&mut config.auth_info)?;
    let namespace = config.default_namespace.clone();
    Ok((create_connection(config, None, |_| {})?, namespace))
}

fn create_connection(
    mut config: Config,
    certificate: Option<Validity>,
    count_request: impl Fn(&str) + Clone + Send + Sync + 'static,
) -> anyhow::Result<Connection> {
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    // No read timeout is needed: watches detect a dead connection by an idle timeout, and each call has a time limit.
    config.read_timeout = None;
    // kube's own retries are disabled. The callers retry, and can then send a newer state.
    config.default_retry = false;
    let default_port = if config.cluster_url.scheme_str() == Some("http") { 80 } else { 443 };
    let host = config.cluster_url.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    let server = (host, config.cluster_url.port_u16().unwrap_or(default_port));
    let builder =
        ClientBuilder::try_from(config).context("failed to create a client for the cluster")?;
    let counting_layer = MapRequestLayer::new(move |request: Request<Body>| {
        count_request(request.method().as_str());
        request
    });
    // The layer that counts requests is below the `Retry-After` layer, so a request that is not sent because of a
    // `Retry-After` is not counted.
    let client =
        builder.with_layer(&counting_layer).with_layer(&RetryAfterLayer::default()).build();
    Ok(Connection { client, server, certificate })
}

/// Returns true if [`connect`] failed because the kubeconfig is invalid or missing. A retry would fail too.
#[must_use]
pub fn is_kubeconfig_error(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.is::<KubeconfigError>())
}

/// Returns a client that sends requests other than GET only while this process is the leader. Thus a process that is
/// suspended at any point, and loses the leader lease meanwhile, sends no writes after it is resumed.
#[must_use]
pub fn with_leader_guard(client: Client, guard: LeaderGuard) -> Client {
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
