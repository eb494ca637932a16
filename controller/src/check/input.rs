//! Input of the checks: the objects of the cluster, as data without connections.

use std::collections::BTreeMap;

use berth_runtime::certificate::ExpiryState;
use serde_json::Value;

use super::host::Host;
use super::kind::Kind;
use super::lease::{Election, LeaseState};
use super::read::{Read, ReadError, Unread};
use super::release::Release;
use super::tenant_input::TenantInput;

/// Lists of objects by kind and namespace ([`LISTS`](super::LISTS)).
pub type Lists = BTreeMap<(Kind, &'static str), Read<Vec<Value>>>;

/// The CA bundle of a webhook: certificates with which the API server verifies the webhook's server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaBundle {
    /// Kind and name of the webhook configuration, and name of the webhook.
    pub webhook: String,
    /// True if the API server refuses VMs, their disks or pods while it cannot call the webhook.
    pub is_needed_for_vms: bool,
    /// Validity of the certificate that expires last.
    pub validity: Result<BundleValidity, InvalidBundle>,
}

/// Remaining validity of the certificate that expires last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleValidity {
    /// Time at which this certificate expires.
    pub end: String,
    /// Expiry state of this certificate by the clock.
    pub expiry: ExpiryState,
}

/// Error for a bundle whose certificates cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidBundle(pub String);

/// Input of the checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// Version of the API server, such as `v1.36.2`.
    pub kubernetes: Read<String>,
    /// Lists of objects.
    pub lists: Lists,
    /// CustomResourceDefinitions by name. If one does not exist, its value is `ReadError::NotFound`.
    pub crds: BTreeMap<String, Read<Value>>,
    /// Hosts, from their InfraNodes.
    pub hosts: Read<Vec<Host>>,
    /// Leases of the leader elections.
    pub leases: BTreeMap<Election, Read<LeaseState>>,
    /// CA bundles of all webhooks.
    pub ca_bundles: Read<Vec<CaBundle>>,
    /// The tenant to check; `None` without `--tenant`.
    pub tenant: Option<TenantInput>,
}

impl Default for Input {
    /// Returns an input of a cluster without objects.
    fn default() -> Self {
        Self {
            kubernetes: Err(ReadError::NotRequested),
            lists: BTreeMap::new(),
            crds: BTreeMap::new(),
            hosts: Err(ReadError::NotRequested),
            leases: BTreeMap::new(),
            ca_bundles: Err(ReadError::NotRequested),
            tenant: None,
        }
    }
}

impl Input {
    /// Returns the objects of a kind in all namespaces. The list is empty if the API server does not serve the
    /// kind.
    pub(super) fn objects(&self, kind: Kind) -> Result<&[Value], Unread> {
        self.objects_in(kind, "")
    }

    /// Returns the objects of a kind in a namespace.
    pub(super) fn objects_in(
        &self,
        kind: Kind,
        namespace: &'static str,
    ) -> Result<&[Value], Unread> {
        let [.., plural] = kind.resource();
        match self.lists.get(&(kind, namespace)) {
            Some(Ok(all)) => Ok(all),
            Some(Err(ReadError::NotFound)) => Ok(&[]),
            Some(Err(error)) => Err(Unread::new(plural, error)),
            None => Err(Unread::new(plural, &ReadError::NotRequested)),
        }
    }

    /// Returns a CustomResourceDefinition; `None` if it does not exist.
    pub(super) fn crd(&self, name: &str) -> Result<Option<&Value>, Unread> {
        match self.crds.get(name) {
            Some(Ok(crd)) => Ok(Some(crd)),
            Some(Err(ReadError::NotFound)) => Ok(None),
            Some(Err(error)) => Err(Unread::new(format!("CRD {name}"), error)),
            None => Err(Unread::new(format!("CRD {name}"), &ReadError::NotRequested)),
        }
    }

    pub(super) fn hosts(&self) -> Result<&[Host], Unread> {
        match &self.hosts {
            Ok(hosts) => Ok(hosts),
            Err(ReadError::NotFound) => Ok(&[]),
            Err(error) => Err(Unread::new("infranodes", error)),
        }
    }

    /// Returns the state of a Lease; `None` if the Lease does not exist.
    pub(super) fn lease(&self, election: Election) -> Result<Option<&LeaseState>, Unread> {
        let (namespace, name) = election.lease();
        let lease = || format!("Lease {namespace}/{name}");
        match self.leases.get(&election) {
            Some(Ok(state)) => Ok(Some(state)),
            Some(Err(ReadError::NotFound)) => Ok(None),
            Some(Err(error)) => Err(Unread::new(lease(), error)),
            None => Err(Unread::new(lease(), &ReadError::NotRequested)),
        }
    }

    /// Returns the objects of the tenant that `--tenant` names.
    pub(super) fn tenant(&self) -> Result<&TenantInput, Unread> {
        let objects = "objects of a tenant (--tenant NAME)";
        self.tenant.as_ref().ok_or_else(|| Unread::new(objects, &ReadError::NotRequested))
    }

    /// Returns the Kubernetes release of the API server; `None` if it is unknown.
    pub(super) fn kubernetes_release(&self) -> Option<Release> {
        self.kubernetes.as_ref().ok()?.parse().ok()
    }

    /// Returns the KubeVirt object; `None` if KubeVirt is not installed. KubeVirt permits only one such object in a
    /// cluster.
    pub(super) fn kubevirt(&self) -> Result<Option<&Value>, Unread> {
        self.objects(Kind::KubeVirt).map(|all| all.first())
    }
}
