//! What all looks at tenants share.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use berth_api::{ConditionReason, InfraConfigSpec, SecretRef, TenantCluster};
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client, ResourceExt as _};

use super::error::{Error, at, found};
use super::stores::{Followers, Queue, Stores};
use crate::run::calls::forbidden;
use crate::run::events::Events;
use crate::tenants::fault::Fault;
use crate::tenants::kubeconfig::{Server, server};
use berth_kubevirt_render::machines::Scope;

/// A kubeconfig is read again after so long; one that is wrong or not there, sooner.
const KUBECONFIG: (Duration, Duration) = (Duration::from_secs(600), Duration::from_secs(30));

/// What all looks at tenants share.
#[derive(Clone)]
pub(super) struct Context {
    pub(super) client: Client,
    pub(super) stores: Arc<Stores>,
    events: Arc<Events>,
    kubeconfigs: Arc<Mutex<BTreeMap<String, Read>>>,
    /// Namespaces whose CSI account has its token, by the account's UID.
    pub(super) tokens: Arc<Mutex<BTreeSet<String>>>,
    /// Whether single tenants' bridges are told, by network.
    told: Arc<Mutex<BTreeMap<String, bool>>>,
}

type Answer = Result<Option<Server>, Fault>;

/// A kubeconfig that was read.
#[derive(Clone, Debug)]
struct Read {
    of: SecretRef,
    at: Instant,
    answer: Answer,
}

impl Context {
    /// Begins to watch.
    pub(super) fn start(
        client: Client,
        events: Arc<Events>,
        followers: Followers,
    ) -> (Arc<Self>, Queue, BoxFuture<'static, ()>) {
        let (stores, queue, watches) = Stores::start(&client, followers);
        let context = Self {
            events,
            client,
            stores,
            kubeconfigs: Arc::default(),
            tokens: Arc::default(),
            told: Arc::default(),
        };
        (Arc::new(context), queue, watches)
    }

    /// Waits until everything that is there is known.
    pub(super) async fn ready(&self) {
        self.stores.ready().await;
    }

    /// The cluster's configuration; an empty one if there is none.
    pub(super) fn config(&self) -> InfraConfigSpec {
        let config = self.stores.followers.configs.get("default");
        config.map(|config| config.spec.clone()).unwrap_or_default()
    }

    /// Tells people.
    pub(super) async fn tell(&self, tenant: &TenantCluster, reason: &str, message: &str) {
        self.events.warn(tenant, reason, message).await;
    }

    /// How many tenants a host network has. When that makes a difference to how they are attached, all are looked at.
    pub(super) fn tenants_of(&self, network: &str) -> usize {
        let of = |tenant: &TenantCluster| {
            tenant.spec.network.as_ref().is_some_and(|asked| asked.name == network)
        };
        let count = self.stores.followers.tenants.store().state_filter(of).len();
        let told = count <= berth_api::names::resource::BRIDGES_TOLD;
        let mut all = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if all.insert(network.to_owned(), told).is_some_and(|before| before != told) {
            self.stores.news.look_at_all();
        }
        count
    }

    /// Where the tenant's own API server is, if it has one. Secrets are not watched: whoever could would see all of them.
    pub(super) async fn api_server(&self, tenant: &TenantCluster) -> Result<Answer, Error> {
        let Some(secret) = tenant.spec.kubeconfig_secret_ref.clone() else { return Ok(Ok(None)) };
        let name = tenant.name_any();
        let known = {
            let all = self.kubeconfigs.lock().unwrap_or_else(PoisonError::into_inner);
            all.get(&name).filter(|read| read.of == secret).cloned()
        };
        if let Some(read) = known {
            let long = if read.answer.is_ok() { KUBECONFIG.0 } else { KUBECONFIG.1 };
            if read.at.elapsed() < long {
                return Ok(read.answer);
            }
        }
        let answer = self.read_kubeconfig(&name, &secret).await?;
        let read = Read { of: secret, at: Instant::now(), answer: answer.clone() };
        self.kubeconfigs.lock().unwrap_or_else(PoisonError::into_inner).insert(name, read);
        Ok(answer)
    }

    async fn read_kubeconfig(&self, tenant: &str, of: &SecretRef) -> Result<Answer, Error> {
        let own = || TenantCluster::namespace_of(tenant);
        let namespace = of.namespace.clone().unwrap_or_else(own);
        let key = of.key.as_deref().unwrap_or("kubeconfig");
        let place = format!("spec.kubeconfigSecretRef: Secret {namespace}/{}", of.name);
        let fault = |message: String| Err(Fault::new(ConditionReason::InvalidKubeconfig, message));
        let (own, config) = (own(), self.config());
        let scope = Scope::new(&[&own], &config);
        if !scope.permits(&namespace, &of.name) {
            return Ok(fault(format!("{place} {}", scope.refusal())));
        }
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &namespace);
        let read = found(api.get(&of.name).await);
        // In its own namespace the right was bound a moment ago, and comes.
        let read = if namespace == own { read.map(Ok) } else { forbidden(read) };
        let secret = match at(format!("get {place}"), read)? {
            Ok(Some(secret)) => secret,
            Ok(None) => return Ok(fault(format!("{place} does not exist"))),
            Err(why) => return Ok(fault(format!("{place} {why}"))),
        };
        let data = secret.data.unwrap_or_default();
        let Some(bytes) = data.get(key) else {
            return Ok(fault(format!("{place} has no entry {key}")));
        };
        let text = String::from_utf8_lossy(&bytes.0);
        Ok(match server(&text) {
            Ok(server) => Ok(Some(server)),
            Err(message) => fault(format!("{place}: entry {key} {message}")),
        })
    }
}

/// The address that a policy can have, and what is to be said if there is none.
pub(super) fn address(server: Option<&Server>) -> (Option<IpAddr>, Option<String>) {
    match server {
        None => (None, None),
        Some(Server::Address(address)) => (Some(*address), None),
        Some(Server::Name(_)) => {
            // The name comes from a Secret.
            let message = "its kubeconfig names the API server by a host name, and policies take addresses: open the way by a \
                           custom policy";
            (None, Some(message.to_owned()))
        }
    }
}
