//! Objects of one tenant, for the checks of that tenant.

use berth_runtime::untrusted::UntrustedError;
use serde_json::Value;

use super::read::{Read, ReadError, Unread};
use crate::tenants::kubeconfig_rules::RefusedKubeconfig;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantInput {
    /// Name of the TenantCluster.
    pub name: String,
    /// The TenantCluster.
    pub object: Read<Value>,
    /// The tenant's namespace.
    pub namespace: Read<Value>,
    /// The NetworkAttachmentDefinition that the status names, as namespace/name; `None` if it names none.
    pub definition: Option<(String, Read<Value>)>,
    pub machine_deployments: Read<Vec<Value>>,
    /// The Secret with the tenant's kubeconfig.
    pub kubeconfig: KubeconfigState,
    /// Answer of the tenant's API server; `None` if the kubeconfig is not used.
    pub api_server: Option<ApiServerAnswer>,
}

/// State of a tenant's kubeconfig. Contains no part of the kubeconfig.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KubeconfigState {
    /// The TenantCluster names no Secret, or was not read.
    NotReferenced,
    /// The kubeconfig can be used. The value names the Secret.
    Usable(String),
    /// The kubeconfig cannot be used.
    Unusable {
        /// Namespace and name of the Secret.
        secret: String,
        /// Reason why the kubeconfig cannot be used.
        problem: KubeconfigProblem,
    },
}

/// Problem of a tenant's kubeconfig. The texts contain no part of the kubeconfig.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KubeconfigProblem {
    /// The tenant may not refer to this Secret.
    #[error("{0}")]
    NotPermitted(String),
    /// The Secret could not be read.
    #[error("{0}")]
    Unread(ReadError),
    /// The InfraConfig, which permits references to other namespaces, could not be read.
    #[error("InfraConfig: {0}")]
    ConfigUnread(ReadError),
    /// The Secret has no entry with this key.
    #[error("the Secret has no entry `{0}`")]
    NoEntry(String),
    /// Berth refuses the kubeconfig, for example because it runs a program.
    #[error("{0}")]
    Refused(RefusedKubeconfig),
    /// The client of this machine cannot use the kubeconfig.
    #[error(
        "no client can be created: a certificate or a key is malformed; or certificate-authority-data is missing, \
         and this machine has no root CA certificates"
    )]
    NoClient,
}

impl KubeconfigProblem {
    /// Returns the error if an object could not be read; `None` for any other problem, such as a Secret that does not
    /// exist.
    pub(super) fn unread(&self, secret: &str) -> Option<Unread> {
        match self {
            Self::Unread(ReadError::NotFound) => None,
            Self::Unread(error) => Some(Unread::new(format!("Secret {secret}"), error)),
            Self::ConfigUnread(error) => Some(Unread::new("infraconfigs", error)),
            _ => None,
        }
    }
}

/// Answer of a tenant's API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApiServerAnswer {
    Version(String),
    /// HTTP status code of an error.
    Status(u16),
    /// The request failed, or its address is refused.
    Failed(UntrustedError),
}
