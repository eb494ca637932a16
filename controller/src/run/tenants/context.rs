//! State shared by all reconciles of tenants.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use berth_api::{InfraConfigSpec, SecretRef, TenantCluster};
use futures::future::BoxFuture;
use kube::Client;

use super::stores::{Queue, SharedInformers, Stores};
use crate::run::events::Events;
use crate::tenants::fault::Fault;
use crate::tenants::kubeconfig::Server;

/// State shared by all reconciles of tenants.
#[derive(Clone)]
pub(super) struct Context {
    pub(super) client: Client,
    pub(super) stores: Arc<Stores>,
    events: Arc<Events>,
    pub(super) kubeconfigs: Arc<Mutex<BTreeMap<String, KubeconfigRead>>>,
    /// Namespaces in which the CSI account has its token, by the UID of the account.
    pub(super) tokens: Arc<Mutex<BTreeSet<String>>>,
    /// True for each network whose single-tenant bridges agents report.
    bridges_reported: Arc<Mutex<BTreeMap<String, bool>>>,
}

/// API server of a kubeconfig, or the reason why it is unknown.
pub(super) type ApiServer = Result<Option<Server>, Fault>;

/// A kubeconfig that was read, and the time of the read.
#[derive(Clone, Debug)]
pub(super) struct KubeconfigRead {
    pub(super) of: SecretRef,
    pub(super) at: Instant,
    pub(super) answer: ApiServer,
}

impl Context {
    /// Starts the watches.
    pub(super) fn start(
        client: Client,
        events: Arc<Events>,
        shared_informers: SharedInformers,
    ) -> (Arc<Self>, Queue, BoxFuture<'static, ()>) {
        let (stores, queue, watches) = Stores::start(&client, shared_informers);
        let context = Self {
            events,
            client,
            stores,
            kubeconfigs: Arc::default(),
            tokens: Arc::default(),
            bridges_reported: Arc::default(),
        };
        (Arc::new(context), queue, watches)
    }

    /// Waits until all stores have their first list.
    pub(super) async fn ready(&self) {
        self.stores.ready().await;
    }

    /// Returns the InfraConfig, or an empty InfraConfig if there is none.
    pub(super) fn config(&self) -> InfraConfigSpec {
        let config = self.stores.shared_informers.configs.get("default");
        config.map(|config| config.spec.clone()).unwrap_or_default()
    }

    /// Emits a warning event.
    pub(super) async fn warn(&self, tenant: &TenantCluster, reason: &str, message: &str) {
        self.events.warn(tenant, reason, message).await;
    }

    /// Returns the number of tenants of a host network. Triggers all tenants when agents start or stop reporting
    /// single-tenant bridges, because the attachments change then.
    pub(super) fn tenants_of(&self, network: &str) -> usize {
        let of = |tenant: &TenantCluster| {
            tenant.spec.network.as_ref().is_some_and(|asked| asked.name == network)
        };
        let count = self.stores.shared_informers.tenants.store().state_filter(of).len();
        let is_reported = count <= berth_api::names::resource::MAX_PUBLISHED_BRIDGES;
        let mut all = self.bridges_reported.lock().unwrap_or_else(PoisonError::into_inner);
        if all.insert(network.to_owned(), is_reported).is_some_and(|before| before != is_reported) {
            self.stores.triggers.trigger_all();
        }
        count
    }
}
