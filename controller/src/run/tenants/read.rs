//! Step 2 of a reconcile of a tenant: reads hosts, configuration, facts of the infra cluster, and the tenant's
//! kubeconfig.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use berth_api::{ConditionReason, InfraConfigSpec, SecretRef, TenantCluster};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, ResourceExt as _};

use super::context::{ApiServerResult, CachedKubeconfig, Context};
use super::error::{Error, none_if_not_found, with_request};
use crate::run::api_requests::catch_forbidden;
use crate::tenants::binding_plugins::BindingPlugins;
use crate::tenants::cluster::ClusterFacts;
use crate::tenants::deletion::NamespaceState;
use crate::tenants::fault::Fault;
use crate::tenants::hosts::HostState;
use crate::tenants::kubeconfig::parse_server;
use crate::tenants::kubeconfig_secret::KubeconfigSecret;
use crate::tenants::load_balancer_service::LoadBalancerService;

/// Age after which a kubeconfig is read again. The first value is for a valid kubeconfig, the second for an invalid
/// or missing one.
const KUBECONFIG_CACHE_TTL: (Duration, Duration) =
    (Duration::from_secs(600), Duration::from_secs(30));

/// Input that a reconcile reads before it builds objects.
pub(super) struct ObservedState {
    pub(super) namespace: NamespaceState,
    pub(super) hosts: Vec<Arc<HostState>>,
    pub(super) config: InfraConfigSpec,
    pub(super) cluster: Arc<ClusterFacts>,
    pub(super) binding_plugins: BindingPlugins,
    /// All tenants.
    pub(super) tenants: Vec<Arc<TenantCluster>>,
    /// Services of type LoadBalancer in the tenant's namespace.
    pub(super) load_balancers: Vec<LoadBalancerService>,
    /// Host of the tenant's own API server, or the reason why it is unknown.
    pub(super) api_server: Result<ApiServerResult, Error>,
}

impl Context {
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
            api_server,
        }
    }

    /// Returns the host of the tenant's own API server, if the tenant has one. Secrets are read and not watched,
    /// because the permission to watch Secrets includes the permission to read all of them.
    async fn api_server(&self, tenant: &TenantCluster) -> Result<ApiServerResult, Error> {
        let Some(secret) = tenant.spec.kubeconfig_secret_ref.clone() else { return Ok(Ok(None)) };
        let name = tenant.name_any();
        let known = {
            let all = self.kubeconfigs.lock().unwrap_or_else(PoisonError::into_inner);
            all.get(&name).filter(|cached| cached.secret == secret).cloned()
        };
        if let Some(cached) = known {
            let ttl =
                if cached.result.is_ok() { KUBECONFIG_CACHE_TTL.0 } else { KUBECONFIG_CACHE_TTL.1 };
            if cached.read_at.elapsed() < ttl {
                return Ok(cached.result);
            }
        }
        let answer = self.read_kubeconfig(&name, &secret).await?;
        let cached = CachedKubeconfig { secret, read_at: Instant::now(), result: answer.clone() };
        self.kubeconfigs.lock().unwrap_or_else(PoisonError::into_inner).insert(name, cached);
        Ok(answer)
    }

    async fn read_kubeconfig(
        &self,
        tenant: &str,
        secret_ref: &SecretRef,
    ) -> Result<ApiServerResult, Error> {
        let reference = KubeconfigSecret::resolve(tenant, secret_ref);
        let KubeconfigSecret { namespace, name, key, .. } = &reference;
        let place = format!("spec.kubeconfigSecretRef: Secret {namespace}/{name}");
        let fault = |message: String| Err(Fault::new(ConditionReason::InvalidKubeconfig, message));
        if let Some(refusal) = reference.refusal(&self.config()) {
            return Ok(fault(format!("{place} {refusal}")));
        }
        let api: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        let read = none_if_not_found(api.get(name).await);
        // In the tenant's own namespace, a missing permission is an error that is retried: the RoleBinding was
        // created a moment ago, and takes effect soon.
        let read = if reference.is_own() { read.map(Ok) } else { catch_forbidden(read) };
        let secret = match with_request(format!("get {place}"), read)? {
            Ok(Some(secret)) => secret,
            Ok(None) => return Ok(fault(format!("{place} does not exist"))),
            Err(forbidden) => return Ok(fault(format!("{place} {forbidden}"))),
        };
        let data = secret.data.unwrap_or_default();
        let Some(bytes) = data.get(key) else {
            return Ok(fault(format!("{place} has no entry {key}")));
        };
        let text = String::from_utf8_lossy(&bytes.0);
        Ok(match parse_server(&text) {
            Ok(server) => Ok(Some(server)),
            Err(error) => fault(format!("{place}: entry {key} {error}")),
        })
    }
}
