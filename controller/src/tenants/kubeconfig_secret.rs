//! Resolves the reference of a TenantCluster to the Secret with its kubeconfig.

use berth_api::{InfraConfigSpec, SecretRef, TenantCluster};
use berth_kubevirt_render::machines::ReferenceScope;

/// Key of the entry in the Secret if the reference names no key.
const DEFAULT_KEY: &str = "kubeconfig";

/// The Secret with a tenant's kubeconfig.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeconfigSecret {
    pub namespace: String,
    pub name: String,
    /// Key of the entry with the kubeconfig.
    pub key: String,
    tenant_namespace: String,
}

impl KubeconfigSecret {
    /// Resolves the reference of a TenantCluster.
    #[must_use]
    pub fn resolve(tenant: &str, reference: &SecretRef) -> Self {
        let own = TenantCluster::namespace_of(tenant);
        Self {
            namespace: reference.namespace.clone().unwrap_or_else(|| own.clone()),
            name: reference.name.clone(),
            key: reference.key.clone().unwrap_or_else(|| DEFAULT_KEY.to_owned()),
            tenant_namespace: own,
        }
    }

    /// Returns true if the Secret is in the namespace of the tenant. Such a reference is always permitted.
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.namespace == self.tenant_namespace
    }

    /// Returns the reason why the tenant may not refer to the Secret; `None` if the reference is permitted. `tenant` is `None`
    /// if the TenantCluster cannot be parsed.
    #[must_use]
    pub fn refusal(
        &self,
        tenant: Option<&TenantCluster>,
        config: &InfraConfigSpec,
    ) -> Option<String> {
        let scope = ReferenceScope::for_tenant(&[&self.tenant_namespace], tenant, config);
        (!scope.is_permitted(&self.namespace, &self.name)).then(|| scope.not_permitted_message())
    }
}

#[cfg(test)]
mod tests {
    use berth_api::names::TENANT_REQUEST_UID_ANNOTATION;
    use berth_api::{SecretReference, TenantClusterSpec};

    use super::*;

    #[test]
    fn other_namespaces_need_an_entry() {
        let resolve = |namespace: Option<&str>, key: Option<&str>| {
            let (namespace, key) = (namespace.map(str::to_owned), key.map(str::to_owned));
            let reference = SecretRef { name: "admin".to_owned(), namespace, key };
            KubeconfigSecret::resolve("bank", &reference)
        };
        let own = resolve(None, None);
        assert_eq!((own.namespace.as_str(), own.key.as_str()), ("cluster-bank", "kubeconfig"));
        assert!(own.is_own());
        assert_eq!(own, resolve(Some("cluster-bank"), Some("kubeconfig")));
        assert_eq!(own.refusal(None, &InfraConfigSpec::default()), None);
        let other = resolve(Some("infra"), Some("value"));
        assert_eq!(other.key, "value");
        assert!(!other.is_own());
        assert!(other.refusal(None, &InfraConfigSpec::default()).is_some());
        let listed = SecretReference { namespace: "infra".to_owned(), name: "admin".to_owned() };
        let config = InfraConfigSpec { secret_references: vec![listed], ..Default::default() };
        assert_eq!(other.refusal(None, &config), None);
        let mut tenant = TenantCluster::new("bank", TenantClusterSpec::default());
        assert_eq!(other.refusal(Some(&tenant), &config), None);
        // A requester chooses the name of the Secret.
        tenant.metadata.annotations =
            Some([(TENANT_REQUEST_UID_ANNOTATION.to_owned(), "u".to_owned())].into());
        let refusal = other.refusal(Some(&tenant), &config).unwrap();
        assert!(refusal.contains("does not apply to tenants that users request"), "{refusal}");
        assert_eq!(own.refusal(Some(&tenant), &config), None);
    }
}
