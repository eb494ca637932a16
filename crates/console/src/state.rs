//! State that all requests share.

use std::sync::Arc;

use berth_runtime::client::Cluster;
use kube::Client;
use tokio::sync::Semaphore;

use crate::identity::link::LinkCode;
use crate::keyed_limit::KeyedLimit;
use crate::objects::store::Store;
use crate::objects::visible::Visible;
use crate::random::IdHash;
use crate::rights::RightsError;
use crate::session::attempts::SignInLimit;
use crate::session::cookie::Cookies;
use crate::session::csrf::CsrfKey;
use crate::session::store::{Session, SessionStore};

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
    /// Permits of streams by user.
    pub(crate) user_streams: Arc<KeyedLimit<IdHash>>,
}

pub(crate) type Shared = Arc<Console>;

impl Console {
    /// Returns the objects that the user of a session may see.
    pub(crate) async fn visible(&self, session: &Session) -> Result<Visible, RightsError> {
        session.rights.visible(self.store.namespaces()).await
    }
}
