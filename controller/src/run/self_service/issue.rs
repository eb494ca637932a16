//! Issues the kubeconfig of a requester: a token of the ServiceAccount in the tenant's namespace, in the Secret of the
//! request's namespace. No message has the token: the API server's message about the Secret is reduced to its reason.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use berth_api::names::{KUBECONFIGS_SECRET, MANAGED_BY_LABEL, TENANT_USER};
use berth_api::{ConditionReason, IssuedKubeconfig, TenantCluster, TenantRequest, Time};
use berth_runtime::call::{CallError, with_timeout};
use k8s_openapi::ByteString;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret, ServiceAccount};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use super::service::SelfService;
use crate::run::clock::now_in_seconds;
use crate::run::reconcile::ReconcileFailure;
use crate::self_service::kubeconfig::{
    ApiServer, kubeconfig_key, render_kubeconfig, rotation_time,
};
use crate::tenants::fault::Fault;

/// ConfigMap in each namespace with the certificates of the API server's authority.
const AUTHORITY_CONFIG_MAP: (&str, &str) = ("kube-root-ca.crt", "ca.crt");

impl SelfService {
    /// Ensures that the Secret has a kubeconfig whose token is in the first half of its life.
    pub(super) async fn ensure_kubeconfig(
        &self,
        request: &TenantRequest,
        tenant: &str,
        account_uid: &str,
        token_seconds: u32,
    ) -> Result<Result<IssuedKubeconfig, Fault>, ReconcileFailure> {
        let server = match self.api_server(tenant).await? {
            Ok(server) => server,
            Err(fault) => return Ok(Err(fault)),
        };
        let server_hash = hash_server(&server, account_uid);
        let namespace = request.namespace().unwrap_or_default();
        let key = kubeconfig_key(tenant);
        let issued = request.status.as_ref().and_then(|status| status.kubeconfig.clone());
        let secret = self.read_secret(&namespace).await?;
        if let Some(issued) = issued
            && issued.server_hash == server_hash
            && issued.key == key
            && Timestamp::now() < rotation_time(&issued)
            && secret.as_ref().is_some_and(|one| owns_key(one, tenant, &key))
        {
            return Ok(Ok(issued));
        }
        // A token stays valid until it expires: none is created that cannot be written.
        if secret.is_some_and(|one| one.immutable == Some(true)) {
            return Ok(Err(secret_fault(&namespace, "it is immutable")));
        }
        if self.is_terminating(&namespace).await? {
            return Ok(Err(secret_fault(&namespace, "its namespace is being deleted")));
        }
        let token = self.request_token(tenant, token_seconds).await?;
        let Some(status) = token.status else {
            let message = format!("TokenRequest in cluster-{tenant} has no token");
            return Err(ReconcileFailure::PrerequisiteNotMet(message));
        };
        let kubeconfig = render_kubeconfig(tenant, &server, &status.token);
        let data = json!({ key.as_str(): ByteString(kubeconfig.into_bytes()) });
        if let Err(error) = self.apply_secret(&namespace, tenant, &data).await {
            return match refused_secret(&error, &namespace) {
                Some(fault) => Ok(Err(fault)),
                None => {
                    let request = format!("apply Secret {namespace}/{KUBECONFIGS_SECRET}");
                    Err(ReconcileFailure::with_request(request)(error))
                }
            };
        }
        tracing::info!(namespace, tenant, "issued a kubeconfig");
        let expires = Timestamp::from_second(status.expiration_timestamp.0.as_second());
        Ok(Ok(IssuedKubeconfig {
            secret: KUBECONFIGS_SECRET.to_owned(),
            key,
            issued_at: now_in_seconds(),
            expires_at: Time(expires.unwrap_or_default()),
            server_hash,
        }))
    }

    /// Removes the kubeconfig of a tenant from the Secret.
    pub(super) async fn remove_kubeconfig(
        &self,
        namespace: &str,
        tenant: &str,
    ) -> Result<(), ReconcileFailure> {
        let key = kubeconfig_key(tenant);
        let data = self.read_secret(namespace).await?.and_then(|secret| secret.data);
        if !data.is_some_and(|data| data.contains_key(&key)) {
            return Ok(());
        }
        match self.apply_secret(namespace, tenant, &json!({})).await {
            Ok(()) => Ok(()),
            // A namespace that is being deleted accepts no objects, and an immutable Secret keeps its data. The token is
            // invalid in both cases, because its ServiceAccount is deleted.
            Err(error) if refused_secret(&error, namespace).is_some() => Ok(()),
            Err(error) => {
                let request = format!("apply Secret {namespace}/{KUBECONFIGS_SECRET}");
                Err(ReconcileFailure::with_request(request)(error))
            }
        }
    }

    /// Returns true if a namespace is being deleted, and so accepts no objects.
    async fn is_terminating(&self, namespace: &str) -> Result<bool, ReconcileFailure> {
        let api: Api<Namespace> = Api::all(self.context.client.clone());
        let found = with_timeout(api.get_metadata_opt(namespace)).await;
        let request = format!("get Namespace {namespace}");
        let found = found.map_err(ReconcileFailure::with_request(request))?;
        Ok(found.is_some_and(|found| found.metadata.deletion_timestamp.is_some()))
    }

    async fn read_secret(&self, namespace: &str) -> Result<Option<Secret>, ReconcileFailure> {
        let api: Api<Secret> = Api::namespaced(self.context.client.clone(), namespace);
        let found = with_timeout(api.get_opt(KUBECONFIGS_SECRET)).await;
        let request = format!("get Secret {namespace}/{KUBECONFIGS_SECRET}");
        found.map_err(ReconcileFailure::with_request(request))
    }

    /// Applies the part of the Secret that belongs to a tenant. Each tenant has a field manager of its own, so that an apply for
    /// one tenant does not remove the kubeconfigs of others.
    async fn apply_secret(
        &self,
        namespace: &str,
        tenant: &str,
        data: &Value,
    ) -> Result<(), CallError> {
        let api: Api<Secret> = Api::namespaced(self.context.client.clone(), namespace);
        let params = PatchParams::apply(&field_manager(tenant)).force();
        let body = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": KUBECONFIGS_SECRET,
                "namespace": namespace,
                "labels": { MANAGED_BY_LABEL.0: MANAGED_BY_LABEL.1 },
            },
            "data": data,
        });
        with_timeout(api.patch(KUBECONFIGS_SECRET, &params, &Patch::Apply(&body))).await?;
        self.context.metrics.count_write("Secret");
        Ok(())
    }

    async fn request_token(
        &self,
        tenant: &str,
        token_seconds: u32,
    ) -> Result<TokenRequest, ReconcileFailure> {
        let namespace = TenantCluster::namespace_of(tenant);
        let api: Api<ServiceAccount> = Api::namespaced(self.context.client.clone(), &namespace);
        let spec = TokenRequestSpec {
            expiration_seconds: Some(i64::from(token_seconds)),
            ..TokenRequestSpec::default()
        };
        let request = TokenRequest { spec, ..TokenRequest::default() };
        let params = PostParams::default();
        let created = with_timeout(api.create_token_request(TENANT_USER, &params, &request)).await;
        let request = format!("create TokenRequest {namespace}/{TENANT_USER}");
        created.map_err(ReconcileFailure::with_request(request))
    }

    /// Returns address and authority of this cluster's API server for kubeconfigs.
    async fn api_server(&self, tenant: &str) -> Result<Result<ApiServer, Fault>, ReconcileFailure> {
        let not_configured = |message: String| {
            Ok(Err(Fault::new(ConditionReason::KubeconfigNotConfigured, message)))
        };
        let config = self.context.config();
        let settings = config.spec.self_service.clone().unwrap_or_default();
        let Some(url) = settings.server else {
            let message = "selfService.server of the InfraConfig is not set".to_owned();
            return not_configured(message);
        };
        let authority = match settings.certificate_authority {
            Some(authority) => Some(authority),
            None => self.published_authority(tenant).await?,
        };
        let Some(authority) = authority else {
            let (name, key) = AUTHORITY_CONFIG_MAP;
            return not_configured(format!(
                "ConfigMap cluster-{tenant}/{name} has no {key}: set selfService.certificateAuthority of the InfraConfig"
            ));
        };
        // The base64 in JSON, as in a Secret.
        let encoded = serde_json::to_value(ByteString(authority.into_bytes())).unwrap_or_default();
        let authority = encoded.as_str().unwrap_or_default().to_owned();
        Ok(Ok(ApiServer { url, authority }))
    }

    async fn published_authority(&self, tenant: &str) -> Result<Option<String>, ReconcileFailure> {
        let (name, key) = AUTHORITY_CONFIG_MAP;
        let namespace = TenantCluster::namespace_of(tenant);
        let api: Api<ConfigMap> = Api::namespaced(self.context.client.clone(), &namespace);
        let found = with_timeout(api.get_opt(name)).await;
        let request = format!("get ConfigMap {namespace}/{name}");
        let found = found.map_err(ReconcileFailure::with_request(request))?;
        Ok(found.and_then(|map| map.data).and_then(|mut data| data.remove(key)))
    }
}

/// Returns the time until the token of a kubeconfig is replaced.
pub(super) fn until_rotation(issued: &IssuedKubeconfig) -> Duration {
    let seconds = rotation_time(issued).as_second() - Timestamp::now().as_second();
    Duration::from_secs(u64::try_from(seconds).unwrap_or_default() + 1)
}

/// Returns the field manager of the kubeconfig of a tenant.
fn field_manager(tenant: &str) -> String {
    format!("{TENANT_USER}-{tenant}")
}

/// Returns true if a key of the Secret has the value that the controller has written for a tenant. The API server removes a field
/// from a manager when another client changes its value.
fn owns_key(secret: &Secret, tenant: &str, key: &str) -> bool {
    let manager = field_manager(tenant);
    let entries = secret.metadata.managed_fields.iter().flatten();
    let own = entries.filter(|entry| entry.manager.as_deref() == Some(manager.as_str()));
    let field = format!("f:{key}");
    let mut fields = own.filter_map(|entry| entry.fields_v1.as_ref());
    fields.any(|fields| fields.0.get("f:data").is_some_and(|data| data.get(&field).is_some()))
        && secret.data.as_ref().is_some_and(|data| data.contains_key(key))
}

/// Returns a hash that changes if an issued kubeconfig is no longer valid.
fn hash_server(server: &ApiServer, account_uid: &str) -> String {
    let mut hasher = DefaultHasher::new();
    (&server.url, &server.authority, account_uid).hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// Returns a fault if the API server refused the Secret, with the reason of the refusal instead of its message, which may have
/// parts of the Secret.
fn refused_secret(error: &CallError, namespace: &str) -> Option<Fault> {
    let status = error.status()?;
    matches!(status.code, 400 | 403 | 404 | 422)
        .then(|| secret_fault(namespace, &format!("the API server refuses it: {}", status.reason)))
}

/// Returns the fault of a Secret that cannot be written.
fn secret_fault(namespace: &str, problem: &str) -> Fault {
    let message = format!(
        "Secret {namespace}/{KUBECONFIGS_SECRET} cannot be written: {problem}; delete an immutable Secret"
    );
    Fault::new(ConditionReason::ApplyFailed, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_another_client_is_replaced() {
        let secret = |manager: &str| -> Secret {
            serde_json::from_value(json!({
                "apiVersion": "v1", "kind": "Secret",
                "metadata": {
                    "name": "berth-kubeconfigs", "namespace": "team-a",
                    "managedFields": [{
                        "manager": manager, "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1",
                        "fieldsV1": {"f:data": {"f:shop.kubeconfig": {}}},
                    }],
                },
                "data": {"shop.kubeconfig": "eA=="},
            }))
            .unwrap()
        };
        assert!(owns_key(&secret("berth-tenant-user-shop"), "shop", "shop.kubeconfig"));
        assert!(!owns_key(&secret("kubectl-edit"), "shop", "shop.kubeconfig"));
        assert!(!owns_key(&secret("berth-tenant-user-bank"), "shop", "shop.kubeconfig"));
        assert!(!owns_key(&secret("berth-tenant-user-shop"), "shop", "bank.kubeconfig"));
    }
}
