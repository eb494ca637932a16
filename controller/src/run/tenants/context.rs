//! State shared by all reconciles of tenants.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use berth_api::{InfraConfigSpec, TenantCluster};
use futures::future::BoxFuture;
use kube::Client;

use super::stores::{ReconcileQueue, Stores, TenantInformers};
use crate::run::events::EventEmitter;
use crate::tenants::fault::Fault;
use crate::tenants::kubeconfig::ApiServerHost;
use crate::tenants::kubeconfig_secret::KubeconfigSecret;

/// Client, stores and caches that all reconciles of tenants share.
#[derive(Clone)]
pub(super) struct TenantContext {
    pub(super) client: Client,
    pub(super) stores: Arc<Stores>,
    events: Arc<EventEmitter>,
    pub(super) kubeconfigs: Arc<Mutex<BTreeMap<String, CachedKubeconfig>>>,
    /// UIDs of the ServiceAccounts of CSI drivers that are known to have a token.
    pub(super) accounts_with_token: Arc<Mutex<BTreeSet<String>>>,
    /// For each host network, true if agents report the bridges of single tenants as resources of the Node.
    are_bridges_reported: Arc<Mutex<BTreeMap<String, bool>>>,
}

/// Host of the tenant's API server, from the tenant's kubeconfig. `Ok(None)` if the tenant has no kubeconfig; a fault
/// if the kubeconfig is missing or invalid.
pub(super) type ApiServerResult = Result<Option<ApiServerHost>, Fault>;

/// Result of the last read of a kubeconfig.
#[derive(Clone, Debug)]
pub(super) struct CachedKubeconfig {
    pub(super) secret: KubeconfigSecret,
    /// Time after which the kubeconfig is read again; `None` if a watch delivers its changes.
    pub(super) expires: Option<Instant>,
    pub(super) result: ApiServerResult,
}

/// State of a kubeconfig that the connection to the tenant watches.
#[derive(Clone, Debug)]
pub struct WatchedKubeconfig {
    /// Name of the tenant.
    pub tenant: String,
    /// Reference to the Secret with the kubeconfig.
    pub secret: KubeconfigSecret,
    /// Host of the tenant's API server, or the reason why it is unknown.
    pub server: Result<ApiServerHost, Fault>,
}

impl TenantContext {
    /// Starts the watches. Returns the context, the queue of reconciles, and a future that runs the watches and never
    /// ends.
    pub(super) fn start(
        client: Client,
        events: Arc<EventEmitter>,
        shared_informers: TenantInformers,
    ) -> (Arc<Self>, ReconcileQueue, BoxFuture<'static, ()>) {
        let (stores, queue, watches) = Stores::start(&client, shared_informers);
        let context = Self {
            events,
            client,
            stores,
            kubeconfigs: Arc::default(),
            accounts_with_token: Arc::default(),
            are_bridges_reported: Arc::default(),
        };
        (Arc::new(context), queue, watches)
    }

    /// Waits until all stores have their first list.
    pub(super) async fn wait_until_ready(&self) {
        self.stores.wait_until_ready().await;
    }

    /// Returns the spec of the InfraConfig, or an empty spec if there is no InfraConfig.
    pub(super) fn config(&self) -> InfraConfigSpec {
        let config = self.stores.shared_informers.configs.get("default");
        config.map(|config| config.spec.clone()).unwrap_or_default()
    }

    /// Stores the state of a watched kubeconfig, and triggers its tenant if the state has changed.
    pub(super) fn set_kubeconfig(&self, watched: WatchedKubeconfig) {
        let WatchedKubeconfig { tenant, secret, server } = watched;
        let result = server.map(Some);
        let cached = CachedKubeconfig { secret, expires: None, result: result.clone() };
        let before = {
            let mut all = self.kubeconfigs.lock().unwrap_or_else(PoisonError::into_inner);
            all.insert(tenant.clone(), cached)
        };
        if before.is_some_and(|before| before.result != result) {
            self.stores.triggers.trigger(&tenant);
        }
    }

    /// Emits a warning Event about a tenant.
    pub(super) async fn warn(&self, tenant: &TenantCluster, reason: &str, message: &str) {
        self.events.warn(tenant, reason, message).await;
    }

    /// Returns the number of tenants that use a host network. Agents report bridges of single tenants as resources only
    /// up to a number of tenants. If the number of tenants crosses this limit, all tenants are triggered, because their
    /// NetworkAttachmentDefinitions change.
    pub(super) fn count_tenants(&self, network: &str) -> usize {
        let uses_network = |tenant: &TenantCluster| {
            tenant.spec.network.as_ref().is_some_and(|asked| asked.name == network)
        };
        let count = self.stores.shared_informers.tenants.store().state_filter(uses_network).len();
        let is_reported = count <= berth_api::names::resource::MAX_PUBLISHED_BRIDGES;
        let mut all = self.are_bridges_reported.lock().unwrap_or_else(PoisonError::into_inner);
        if all.insert(network.to_owned(), is_reported).is_some_and(|before| before != is_reported) {
            self.stores.triggers.trigger_all();
        }
        count
    }
}
