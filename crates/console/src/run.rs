//! Start of the console.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use berth_runtime::client::{Cluster, connect};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::identity::user::identify;
use crate::objects::watch::start_watches;
use crate::random::random_id;
use crate::router::build_router;
use crate::server::serve;
use crate::session::attempts::SignInLimit;
use crate::session::cookie::Cookies;
use crate::session::csrf::CsrfKey;
use crate::session::store::SessionStore;
use crate::settings::{Settings, Transport};
use crate::state::{Console, Identity};
use crate::tls::ServerCertificate;

/// Maximum number of open pages that receive changes.
const MAX_STREAMS: usize = 1000;

/// Runs the console until SIGTERM or SIGINT. `announce` is called with the URL of the console when it accepts
/// connections.
///
/// # Errors
/// Returns an error if the console cannot start, for example because the port is in use.
pub fn run(settings: &Settings, announce: impl FnOnce(&str)) -> anyhow::Result<()> {
    settings.check()?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let result = runtime.block_on(run_until_signal(settings, announce));
    runtime.shutdown_background();
    result
}

async fn run_until_signal(settings: &Settings, announce: impl FnOnce(&str)) -> anyhow::Result<()> {
    let mut sigterm = signal(SignalKind::terminate())?;
    let mut sigint = signal(SignalKind::interrupt())?;
    let kubeconfig = settings.kubeconfig.as_deref();
    let watching = connect(kubeconfig, "", |_| {}).await?.client;
    let certificate = match &settings.transport {
        Transport::Tls { certificate, key } => {
            Some(Arc::new(ServerCertificate::read(certificate, key)?))
        }
        Transport::Plain | Transport::TlsProxy => None,
    };
    let listener = TcpListener::bind(settings.listen).await;
    let listener = listener.with_context(|| format!("--listen {}", settings.listen))?;
    let address = listener.local_addr()?;
    let is_secure = settings.transport != Transport::Plain;
    let scheme = if certificate.is_some() { "https" } else { "http" };
    let mut url = format!("{scheme}://{address}/");
    let identity = if settings.has_sign_in() {
        Identity::SignIn(Box::new(Cluster::read(kubeconfig, "").await?))
    } else {
        let code = random_id()?;
        url = format!("{url}open/{code}");
        let user = identify(&watching).await.context("the user of --kubeconfig")?;
        Identity::Kubeconfig { client: watching.clone(), user, code }
    };
    let mut tasks = JoinSet::new();
    let console = Arc::new(Console {
        identity,
        cookies: Cookies::new(is_secure, address.port()),
        csrf: CsrfKey::generate()?,
        sessions: SessionStore::default(),
        attempts: SignInLimit::new(Instant::now()),
        store: start_watches(&watching, &mut tasks),
        has_proxy: settings.transport == Transport::TlsProxy,
        streams: Arc::new(Semaphore::new(MAX_STREAMS)),
    });
    if let Some(certificate) = &certificate {
        tasks.spawn(Arc::clone(certificate).reload_on_change());
    }
    tasks.spawn(serve(listener, certificate, build_router(console)));
    announce(&url);
    tracing::info!(%address, "started the console");
    tokio::select! {
        _ = sigterm.recv() => {}
        _ = sigint.recv() => {}
        // No task ends in normal operation.
        Some(ended) = tasks.join_next() => {
            let cause = ended.err().map(|error| format!(": {error}")).unwrap_or_default();
            anyhow::bail!("a task ended unexpectedly, which is a bug of the console{cause}");
        }
    }
    tracing::info!(%address, "stopping the console");
    Ok(())
}
