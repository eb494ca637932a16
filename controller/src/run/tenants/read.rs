//! Step 2 of a reconcile of a tenant: reads hosts, configuration, facts of the infra cluster, and the tenant's
//! kubeconfig.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use berth_api::{ConditionReason, InfraConfigSpec, TenantCluster};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, ResourceExt as _};

use super::context::{ApiServerResult, CachedKubeconfig, TenantContext};
use super::error::{Error, none_if_not_found, with_request};
use crate::run::api_requests::catch_forbidden;
use crate::tenants::binding_plugins::BindingPlugins;
use crate::tenants::cluster::ClusterFacts;
use crate::tenants::deletion::NamespaceState;
use crate::tenants::fault::Fault;
use crate::tenants::hosts::TenantHostState;
use crate::tenants::kubeconfig::parse_server;
use crate::tenants::kubeconfig_secret::KubeconfigSecret;
use crate::tenants::load_balancer_service::LoadBalancerService;
use crate::tenants::pool_use::PoolUse;

/// Age after which a kubeconfig that no watch delivers is read again. The first value is for a valid kubeconfig, the
/// second value for an invalid or missing one.
const KUBECONFIG_CACHE_TTL: (Duration, Duration) =
    (Duration::from_secs(600), Duration::from_secs(30));

/// Input that a reconcile reads before it builds objects.
pub(super) struct ObservedState {
    pub(super) namespace: NamespaceState,
    pub(super) hosts: Vec<Arc<TenantHostState>>,
    pub(super) config: InfraConfigSpec,
    pub(super) cluster: Arc<ClusterFacts>,
    pub(super) binding_plugins: BindingPlugins,
    pub(super) tenants: Vec<Arc<TenantCluster>>,
    /// Services of type LoadBalancer in the tenant's namespace.
    pub(super) load_balancers: Vec<LoadBalancerService>,
    /// Address pools of load balancers, and addresses of Services, of all tenants.
    pub(super) pool_use: PoolUse,
    /// Host of the tenant's own API server, or the reason why it is unknown.
    pub(super) api_server: Result<ApiServerResult, Error>,
}

impl TenantContext {
    /// Reads all input of a reconcile of a tenant.
    pub(super) async fn read_observed_state(
        &self,
        tenant: &TenantCluster,
        namespace: NamespaceState,
    ) -> ObservedState {
        let api_server = if namespace == NamespaceState::Terminating {
            Ok(Ok(None))
        } else {
            self.api_server(tenant).await
        };
        ObservedState {
            namespace,
            hosts: self.stores.hosts(),
            config: self.config(),
            cluster: self.stores.cluster.facts(),
            binding_plugins: self.stores.kubevirt.plugins(),
            tenants: self.stores.shared_informers.tenants.all(),
            load_balancers: self.stores.services.load_balancers(&tenant.name_any()),
            pool_use: self.pool_use(),
            api_server,
        }
    }

    /// Returns the host of the tenant's own API server, if the tenant has a kubeconfig. Usually, the connection to the
    /// tenant watches the Secret with the kubeconfig. If this watch has delivered no answer yet, the Secret is read
    /// here.
    async fn api_server(&self, tenant: &TenantCluster) -> Result<ApiServerResult, Error> {
        let Some(reference) = &tenant.spec.kubeconfig_secret_ref else { return Ok(Ok(None)) };
        let name = tenant.name_any();
        let secret = KubeconfigSecret::resolve(&name, reference);
        if let Some(refusal) = secret.refusal(Some(tenant), &self.config()) {
            let message = format!("{} {refusal}", describe_secret(&secret));
            return Ok(Err(Fault::new(ConditionReason::InvalidKubeconfig, message)));
        }
        let known = {
            let all = self.kubeconfigs.lock().unwrap_or_else(PoisonError::into_inner);
            all.get(&name).filter(|cached| cached.secret == secret).cloned()
        };
        let is_current = |cached: &CachedKubeconfig| {
            cached.expires.is_none_or(|expires| Instant::now() < expires)
        };
        if let Some(cached) = known.filter(is_current) {
            return Ok(cached.result);
        }
        let result = self.read_kubeconfig(&secret).await?;
        let ttl = if result.is_ok() { KUBECONFIG_CACHE_TTL.0 } else { KUBECONFIG_CACHE_TTL.1 };
        let expires = Instant::now().checked_add(ttl);
        let mut all = self.kubeconfigs.lock().unwrap_or_else(PoisonError::into_inner);
        // The watch may have delivered the kubeconfig during this read.
        let is_watched = |one: &&CachedKubeconfig| one.secret == secret && one.expires.is_none();
        if let Some(watched) = all.get(&name).filter(is_watched) {
            return Ok(watched.result.clone());
        }
        all.insert(name, CachedKubeconfig { secret, expires, result: result.clone() });
        Ok(result)
    }

    async fn read_kubeconfig(
        &self,
        reference: &KubeconfigSecret,
    ) -> Result<ApiServerResult, Error> {
        let KubeconfigSecret { namespace, name, key, .. } = reference;
        let description = describe_secret(reference);
        let fault = |message: String| Err(Fault::new(ConditionReason::InvalidKubeconfig, message));
        let api: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        let read = none_if_not_found(api.get(name).await);
        // In the tenant's own namespace, a missing permission is a temporary error, which is retried: the controller
        // has just created the RoleBinding, which takes effect a moment later.
        let read = if reference.is_own() { read.map(Ok) } else { catch_forbidden(read) };
        let secret = match with_request(format!("get {description}"), read)? {
            Ok(Some(secret)) => secret,
            Ok(None) => return Ok(fault(format!("{description} does not exist"))),
            Err(forbidden) => return Ok(fault(format!("{description} {forbidden}"))),
        };
        let data = secret.data.unwrap_or_default();
        let Some(bytes) = data.get(key) else {
            return Ok(fault(format!("{description} has no entry {key}")));
        };
        let text = String::from_utf8_lossy(&bytes.0);
        Ok(match parse_server(&text) {
            Ok(server) => Ok(Some(server)),
            Err(error) => fault(format!("{description}: entry {key} {error}")),
        })
    }
}

fn describe_secret(secret: &KubeconfigSecret) -> String {
    format!("spec.kubeconfigSecretRef: Secret {}/{}", secret.namespace, secret.name)
}
