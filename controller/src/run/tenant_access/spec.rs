//! Reference of a TenantCluster to the Secret with its kubeconfig.

use berth_api::{InfraConfigSpec, TenantCluster};
use kube::ResourceExt as _;

use crate::tenants::kubeconfig_secret::KubeconfigSecret;

/// Reference of a TenantCluster to the Secret with its kubeconfig, and, if the reference is not permitted, the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AccessSpec {
    pub(super) secret: KubeconfigSecret,
    pub(super) refusal: Option<String>,
    pub(super) permits_insecure: bool,
    /// UID of the TenantCluster, because a new TenantCluster of the same name is another tenant.
    uid: Option<String>,
}

impl AccessSpec {
    /// Returns the reference of a TenantCluster to its kubeconfig; `None` if there is none. Also `None` before the
    /// first status of the TenantCluster: the controller may lack the permission to read Secrets in the tenant's
    /// namespace, which the reconciler of tenants creates before it writes the first status.
    pub(super) fn of_tenant(tenant: &TenantCluster, config: &InfraConfigSpec) -> Option<Self> {
        tenant.status.as_ref()?.namespace.as_ref()?;
        let reference = tenant.spec.kubeconfig_secret_ref.as_ref()?;
        let secret = KubeconfigSecret::resolve(&tenant.name_any(), reference);
        Some(Self {
            refusal: secret.refusal(Some(tenant), config),
            secret,
            permits_insecure: tenant.spec.insecure_skip_tls_verify.unwrap_or(false),
            uid: tenant.uid(),
        })
    }

    /// Returns a description of the Secret for messages: the field of the reference, and namespace and name.
    pub(super) fn secret_description(&self) -> String {
        format!("spec.kubeconfigSecretRef: Secret {}/{}", self.secret.namespace, self.secret.name)
    }
}
