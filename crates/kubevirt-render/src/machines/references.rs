//! References to entries of Secrets and ConfigMaps, and the check whether a MachineDeployment may use them.

use berth_api::names::MANAGED_BY_LABEL;
use berth_api::{InfraConfigSpec, SecretReference, TenantCluster};

/// Type of a Secret with a token of a ServiceAccount.
const SERVICE_ACCOUNT_TOKEN: &str = "kubernetes.io/service-account-token";

/// Looks up entries of Secrets and ConfigMaps.
pub trait ReferenceResolver {
    /// Returns the value of an entry of a Secret or ConfigMap.
    ///
    /// # Errors
    /// Returns an error if the entry does not exist, or if the controller may not read it.
    fn resolve(&self, reference: &EntryReference) -> Result<String, ResolveError>;
}

/// Reason why a reference cannot be resolved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// The controller may not read the Secret or ConfigMap, or no object may refer to it.
    #[error("{} {}/{}: {message}", reference.kind, reference.namespace, reference.name)]
    Forbidden {
        /// The reference that cannot be resolved.
        reference: EntryReference,
        /// Message of the API server, or the [`SecretRefusal`].
        message: String,
    },
    /// The Secret or ConfigMap has no entry with this key.
    #[error("{} {}/{} has no entry `{}`", .0.kind, .0.namespace, .0.name, .0.key)]
    EntryNotFound(EntryReference),
    /// The Secret or ConfigMap does not exist.
    #[error("{} {}/{} does not exist", .0.kind, .0.namespace, .0.name)]
    ObjectNotFound(EntryReference),
}

/// An entry of a Secret or ConfigMap.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryReference {
    /// `Secret` or `ConfigMap`.
    pub kind: &'static str,
    /// Namespace of the Secret or ConfigMap.
    pub namespace: String,
    /// Name of the Secret or ConfigMap.
    pub name: String,
    pub key: String,
}

/// Reason why no object may refer to a Secret, even in its own namespace.
///
/// The controller copies values of Secrets into VirtualMachines, which users may read who may not read Secrets. The Secrets
/// of a tenant's namespace include tokens of ServiceAccounts, and Secrets that the controller has created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretRefusal {
    /// The Secret is a token of a ServiceAccount.
    #[error("is a token of a ServiceAccount, whose values are not copied: refer to another Secret")]
    ServiceAccountToken,
    /// The controller has created the Secret.
    #[error("is managed by Berth, and its values are not copied: refer to another Secret")]
    ManagedByBerth,
}

impl SecretRefusal {
    /// Returns the reason why no object may refer to a Secret of this type with this label of its manager; `None` if objects
    /// may refer to it.
    #[must_use]
    pub fn find(secret_type: Option<&str>, managed_by: Option<&str>) -> Option<Self> {
        if secret_type == Some(SERVICE_ACCOUNT_TOKEN) {
            Some(Self::ServiceAccountToken)
        } else if managed_by == Some(MANAGED_BY_LABEL.1) {
            Some(Self::ManagedByBerth)
        } else {
            None
        }
    }
}

/// The Secrets and ConfigMaps to which an object may refer: all objects in certain namespaces, and the objects that
/// InfraConfig lists.
///
/// The controller reads Secrets and ConfigMaps with its own rights. Without this check, the author of a
/// MachineDeployment could read Secrets with the controller's rights.
#[derive(Clone, Debug)]
pub struct ReferenceScope<'a> {
    namespaces: Vec<String>,
    /// References that InfraConfig lists; `None` if its list does not apply to the object.
    listed_references: Option<&'a [SecretReference]>,
}

impl<'a> ReferenceScope<'a> {
    /// Creates the scope for an object that may refer to all Secrets and ConfigMaps in `namespaces`.
    #[must_use]
    pub fn new(namespaces: &[&str], config: &'a InfraConfigSpec) -> Self {
        let mut own: Vec<String> = Vec::new();
        for namespace in namespaces.iter().filter(|namespace| !namespace.is_empty()) {
            if !own.iter().any(|known| known == namespace) {
                own.push((*namespace).to_owned());
            }
        }
        Self { namespaces: own, listed_references: Some(&config.secret_references) }
    }

    /// Creates the scope for an object of a tenant. The list of the InfraConfig does not apply to a requested tenant: its
    /// requester writes MachineDeployments, and can read VirtualMachines, which have the values.
    #[must_use]
    pub fn for_tenant(
        namespaces: &[&str],
        tenant: Option<&TenantCluster>,
        config: &'a InfraConfigSpec,
    ) -> Self {
        let scope = Self::new(namespaces, config);
        match tenant.is_some_and(TenantCluster::is_requested) {
            true => Self { listed_references: None, ..scope },
            false => scope,
        }
    }

    /// Returns true if the object may refer to a Secret or ConfigMap.
    #[must_use]
    pub fn is_permitted(&self, namespace: &str, name: &str) -> bool {
        let matches =
            |listed: &SecretReference| listed.namespace == namespace && listed.name == name;
        self.namespaces.iter().any(|own| own == namespace)
            || self.listed_references.unwrap_or_default().iter().any(matches)
    }

    /// Returns the message for a reference that is not permitted. The message does not reveal whether the object
    /// exists.
    #[must_use]
    pub fn not_permitted_message(&self) -> String {
        let namespaces = self.namespaces.join(" or ");
        match self.listed_references {
            Some(_) => format!(
                "is not in namespace {namespaces}, and not listed in InfraConfig's spec.secretReferences"
            ),
            None => format!(
                "is not in namespace {namespaces}; InfraConfig's spec.secretReferences does not apply to tenants that users request"
            ),
        }
    }
}
