//! Start of the console.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use berth_runtime::client::{Cluster, connect};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::identity::link::LinkCode;
use crate::identity::user::identify;
use crate::keyed_limit::KeyedLimit;
use crate::objects::watch::start_watches;
use crate::random::RandomError;
use crate::router::build_router;
use crate::server::{MAX_ADDRESS_CONNECTIONS, serve};
use crate::session::attempts::SignInLimit;
use crate::session::cookie::Cookies;
use crate::session::csrf::CsrfKey;
use crate::session::store::SessionStore;
use crate::settings::{Settings, Transport};
use crate::simulation::Simulator;
use crate::state::{Console, Identity, MAX_READS, MAX_RENDERS};
use crate::tls::ServerCertificate;
use crate::vm_stream::viewers::{MAX_USER_VIEWERS, MAX_VIEWERS, Viewers};

/// Maximum number of open pages that receive changes.
const MAX_STREAMS: usize = 1000;
/// Maximum number of open pages of a user that receive changes.
pub(crate) const MAX_USER_STREAMS: usize = 20;

/// Runs the console until SIGTERM or SIGINT. `announce` is called with the URL of the console when it accepts
/// connections; and, with a kubeconfig, with a new link after each SIGUSR1. `simulator` simulates drains and placements.
///
/// # Errors
/// Returns an error if the console cannot start, for example because the port is in use.
pub fn run(
    settings: &Settings,
    simulator: Arc<dyn Simulator>,
    announce: impl Fn(&str),
) -> anyhow::Result<()> {
    settings.check()?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let result = runtime.block_on(run_until_signal(settings, simulator, announce));
    runtime.shutdown_background();
    result
}

async fn run_until_signal(
    settings: &Settings,
    simulator: Arc<dyn Simulator>,
    announce: impl Fn(&str),
) -> anyhow::Result<()> {
    let mut sigterm = signal(SignalKind::terminate())?;
    let mut sigint = signal(SignalKind::interrupt())?;
    let mut sigusr1 = signal(SignalKind::user_defined1())?;
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
    let url = format!("{scheme}://{address}/");
    let identity = if settings.has_sign_in() {
        Identity::SignIn(Box::new(Cluster::read(kubeconfig, "").await?))
    } else {
        let user = identify(&watching).await.context("the user of --kubeconfig")?;
        Identity::Kubeconfig { client: watching.clone(), user, link: LinkCode::default() }
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
        is_local: settings.is_local(),
        renders: Arc::new(Semaphore::new(MAX_RENDERS)),
        reads: Semaphore::new(MAX_READS),
        streams: Arc::new(Semaphore::new(MAX_STREAMS)),
        user_streams: KeyedLimit::new(MAX_USER_STREAMS),
        viewers: Viewers::new(MAX_VIEWERS, MAX_USER_VIEWERS),
        simulator,
        simulations: Arc::new(Semaphore::new(1)),
        user_simulations: KeyedLimit::new(1),
    });
    if let Some(certificate) = &certificate {
        tasks.spawn(Arc::clone(certificate).reload_on_change());
    }
    // All connections through a proxy have its address.
    let has_proxy = settings.transport == Transport::TlsProxy;
    let address_connections = if has_proxy { usize::MAX } else { MAX_ADDRESS_CONNECTIONS };
    tasks.spawn(serve(
        listener,
        certificate,
        address_connections,
        build_router(Arc::clone(&console)),
    ));
    announce(&link(&console, &url)?);
    tracing::info!(%address, "started the console");
    loop {
        tokio::select! {
            _ = sigterm.recv() => break,
            _ = sigint.recv() => break,
            _ = sigusr1.recv() => announce(&link(&console, &url)?),
            // No task ends in normal operation.
            Some(ended) = tasks.join_next() => {
                let cause = ended.err().map(|error| format!(": {error}")).unwrap_or_default();
                anyhow::bail!("a task ended unexpectedly, which is a bug of the console{cause}");
            }
        }
    }
    tracing::info!(%address, "stopping the console");
    Ok(())
}

/// Returns the URL with which users open the console: with a kubeconfig, a new link.
fn link(console: &Console, url: &str) -> Result<String, RandomError> {
    match &console.identity {
        Identity::SignIn(_) => Ok(url.to_owned()),
        Identity::Kubeconfig { link, .. } => {
            Ok(format!("{url}open/{}", link.renew(Instant::now())?))
        }
    }
}
