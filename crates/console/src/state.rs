//! State that all requests share.

use std::sync::Arc;

use berth_runtime::client::Cluster;
use berth_views::Snapshot;
use kube::Client;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use crate::error::PageError;
use crate::identity::link::LinkCode;
use crate::keyed_limit::KeyedLimit;
use crate::objects::store::Store;
use crate::objects::visible::Visible;
use crate::random::IdHash;
use crate::session::attempts::SignInLimit;
use crate::session::cookie::Cookies;
use crate::session::csrf::CsrfKey;
use crate::session::store::{Session, SessionStore};
use crate::simulation::Simulator;
use crate::vm_stream::viewers::Viewers;

/// Maximum number of parts of pages that are computed at the same time.
pub(crate) const MAX_RENDERS: usize = 2;
/// Maximum number of reads with the credentials of users at the same time, because each list needs memory.
pub(crate) const MAX_READS: usize = 4;

/// Users of the console.
pub(crate) enum Identity {
    /// Users sign in with their own credentials of this cluster.
    SignIn(Box<Cluster>),
    /// One user, who started the console with a kubeconfig, and opens it with a link that contains a random code.
    Kubeconfig { client: Client, user: String, link: LinkCode },
}

/// State of the console.
pub(crate) struct Console {
    pub(crate) identity: Identity,
    pub(crate) cookies: Cookies,
    pub(crate) csrf: CsrfKey,
    pub(crate) sessions: SessionStore,
    pub(crate) attempts: SignInLimit,
    pub(crate) store: Arc<Store>,
    /// True if the header `X-Forwarded-For` is that of a proxy in front of the console.
    pub(crate) has_proxy: bool,
    /// True if browsers use addresses of the loopback only, so that requests with other hosts come from pages of other
    /// sites, whose DNS names lead to the loopback.
    pub(crate) is_local: bool,
    /// Permits of streams of changes.
    pub(crate) streams: Arc<Semaphore>,
    /// Permits to compute parts of pages.
    pub(crate) renders: Arc<Semaphore>,
    /// Permits to read objects with the credentials of users.
    pub(crate) reads: Semaphore,
    /// Permits of streams by user.
    pub(crate) user_streams: Arc<KeyedLimit<IdHash>>,
    /// Open streams to VMs.
    pub(crate) viewers: Arc<Viewers>,
    pub(crate) simulator: Arc<dyn Simulator>,
    /// Permits of simulations.
    pub(crate) simulations: Arc<Semaphore>,
    /// Permits of simulations by user.
    pub(crate) user_simulations: Arc<KeyedLimit<IdHash>>,
}

pub(crate) type Shared = Arc<Console>;

impl Console {
    /// Computes a part of a page from visible objects, as [`Self::compute`] does.
    pub(crate) async fn render<T: Send + 'static>(
        &self,
        session: &Session,
        visible: Visible,
        render: impl FnOnce(&Snapshot) -> T + Send + 'static,
    ) -> Result<T, PageError> {
        // A session waits for its own parts first, so that a user with many requests does not delay the others.
        let of_session = Arc::clone(&session.renders).acquire_owned().await;
        let of_session = of_session.map_err(|_| PageError::Unavailable)?;
        let store = Arc::clone(&self.store);
        self.compute(move || {
            let rendered = render(&store.select(&visible));
            drop(of_session);
            rendered
        })
        .await
    }

    /// Computes a part of a page on a thread for blocking work. Threads of other requests do not wait for it, and at most
    /// [`MAX_RENDERS`] parts are computed at the same time.
    pub(crate) async fn compute<T: Send + 'static>(
        &self,
        compute: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, PageError> {
        let permit = Arc::clone(&self.renders).acquire_owned().await;
        let permit = permit.map_err(|_| PageError::Unavailable)?;
        let task = spawn_blocking(move || {
            let computed = compute();
            drop(permit);
            computed
        });
        task.await.map_err(|error| {
            tracing::error!(%error, "failed to compute a page");
            PageError::Unavailable
        })
    }
}
