//! Reads objects from a live cluster, with list requests only.

use std::path::Path;

use anyhow::Context;
use berth_runtime::call::CallError;
use berth_runtime::cli::{EXIT_BAD_INPUT, EXIT_UNREACHABLE, Failure};
use kube::api::ApiResource;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::Value;

use super::input::ReplacedObjects;
use crate::api_resource::{api_resource, deployment_resource};
use crate::fleet::{FleetItem, InputObject};
use crate::list::{PAGE_SIZE, is_expired, list_objects};
use berth_api::Problem;
use berth_kubevirt_render::machines::MACHINE_DEPLOYMENT_KIND;

/// Kinds that placement reads: group, version, kind and plural, and true if the kind is optional.
const LISTED_KINDS: [(&str, &str, &str, &str, bool); 19] = [
    ("berth.dev", "v1alpha1", "InfraNode", "infranodes", false),
    ("berth.dev", "v1alpha1", "HostProfile", "hostprofiles", true),
    ("berth.dev", "v1alpha1", "InfraConfig", "infraconfigs", true),
    ("", "v1", "Node", "nodes", false),
    ("", "v1", "Pod", "pods", false),
    ("", "v1", "Namespace", "namespaces", true),
    ("", "v1", "ResourceQuota", "resourcequotas", true),
    ("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", true),
    ("", "v1", "PersistentVolume", "persistentvolumes", true),
    ("storage.k8s.io", "v1", "StorageClass", "storageclasses", true),
    ("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses", true),
    ("kubevirt.io", "v1", "KubeVirt", "kubevirts", true),
    ("kubevirt.io", "v1", "VirtualMachine", "virtualmachines", true),
    ("kubevirt.io", "v1", "VirtualMachineInstance", "virtualmachineinstances", true),
    (
        "instancetype.kubevirt.io",
        "v1beta1",
        "VirtualMachineClusterInstancetype",
        "virtualmachineclusterinstancetypes",
        true,
    ),
    (
        "instancetype.kubevirt.io",
        "v1beta1",
        "VirtualMachineInstancetype",
        "virtualmachineinstancetypes",
        true,
    ),
    (
        "instancetype.kubevirt.io",
        "v1beta1",
        "VirtualMachineClusterPreference",
        "virtualmachineclusterpreferences",
        true,
    ),
    (
        "instancetype.kubevirt.io",
        "v1beta1",
        "VirtualMachinePreference",
        "virtualmachinepreferences",
        true,
    ),
    (
        "k8s.cni.cncf.io",
        "v1",
        "NetworkAttachmentDefinition",
        "network-attachment-definitions",
        true,
    ),
];

/// Kinds with which machines of tenants are rendered: group, version, kind and plural. They are optional.
const TENANT_KINDS: [[&str; 4]; 2] = [
    ["berth.dev", "v1alpha1", "TenantCluster", "tenantclusters"],
    ["berth.dev", "v1alpha1", "VlanClaim", "vlanclaims"],
];

/// Objects that are listed.
pub(super) struct Listing<'a> {
    /// True if MachineDeployments are listed, which decide how machines leave a drained host.
    pub(super) is_drain: bool,
    /// True if the objects with which machines of tenants are rendered are listed.
    pub(super) has_tenants: bool,
    /// Objects that are left out, because other objects replace them.
    pub(super) replaced: &'a ReplacedObjects,
    /// Maximum number of objects.
    pub(super) max_objects: usize,
}

/// Reason why a kind cannot be listed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ListError {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("there are more than {0} objects")]
    TooManyObjects(usize),
}

/// Reason why the state of a cluster is not known.
#[derive(Debug, thiserror::Error)]
#[error("{objects}")]
pub(super) struct ListingError {
    /// Plural name of the kind.
    pub(super) objects: String,
    #[source]
    pub(super) cause: ListError,
}

impl ListingError {
    /// Returns the failure of a command. `server` is the address of the API server.
    pub(super) fn into_failure(self, server: &str) -> Failure {
        let Self { objects, cause } = self;
        let error = anyhow::Error::from(cause).context(format!("{server}: {objects}"));
        Failure { exit_code: EXIT_UNREACHABLE, error }
    }
}

/// Lists all objects that placement reads, with the kubeconfig at `path`. If `is_drain` is true, also lists
/// MachineDeployments.
///
/// # Errors
/// Returns an error if the kubeconfig is invalid, if the API server is unreachable, or if it refuses to list a kind
/// that is not optional.
pub(super) fn list_items(
    path: &Path,
    is_drain: bool,
    problems: &mut Vec<Problem>,
) -> Result<Vec<FleetItem>, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let name = path.display().to_string();
        let read = Kubeconfig::read_from(path).with_context(|| name.clone())?;
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(read, &options).await;
        let config = config.with_context(|| name.clone());
        let config = config.map_err(|error| Failure { exit_code: EXIT_BAD_INPUT, error })?;
        let server = config.cluster_url.to_string();
        let client = Client::try_from(config).with_context(|| name)?;
        let replaced = ReplacedObjects::default();
        let listing =
            Listing { is_drain, has_tenants: false, replaced: &replaced, max_objects: usize::MAX };
        let listed = list_items_with_client(&client, &listing, problems).await;
        listed.map_err(|error| error.into_failure(&server))
    })
}

/// Lists all objects that placement reads, as [`list_items`] does.
pub(super) async fn list_items_with_client(
    client: &Client,
    listing: &Listing<'_>,
    problems: &mut Vec<Problem>,
) -> Result<Vec<FleetItem>, ListingError> {
    let mut lister = Lister { client, listing, items: Vec::new(), problems };
    let kinds = LISTED_KINDS.iter().map(|&(group, version, kind, plural, is_optional)| {
        (api_resource(group, version, kind, plural), is_optional)
    });
    let for_drain = listing.is_drain.then(|| (deployment_resource(), true));
    let for_tenants = TENANT_KINDS.iter().filter(|_| listing.has_tenants);
    let for_tenants = for_tenants
        .map(|&[group, version, kind, plural]| (api_resource(group, version, kind, plural), true));
    for (resource, is_optional) in kinds.chain(for_drain).chain(for_tenants) {
        let result = if is_optional {
            lister.list_optional_kind(&resource).await.map(drop)
        } else {
            lister.list_kind(&resource).await
        };
        result.map_err(|cause| ListingError { objects: resource.plural.clone(), cause })?;
    }
    let storage = lister.list_reported_storage().await;
    storage.map_err(|cause| ListingError { objects: "csistoragecapacities".to_owned(), cause })?;
    Ok(lister.items)
}

/// Lists kinds one after the other.
struct Lister<'a> {
    client: &'a Client,
    listing: &'a Listing<'a>,
    items: Vec<FleetItem>,
    problems: &'a mut Vec<Problem>,
}

impl Lister<'_> {
    /// Lists the CSIStorageCapacities in the version that the API server serves, and the CSIDrivers that report their
    /// storage with these objects. If the capacities cannot be listed, the drivers are not listed either: with the drivers
    /// alone, the hosts would seem to have no free storage.
    async fn list_reported_storage(&mut self) -> Result<(), ListError> {
        for version in ["v1", "v1beta1"] {
            let capacities = api_resource(
                "storage.k8s.io",
                version,
                "CSIStorageCapacity",
                "csistoragecapacities",
            );
            let problem_count = self.problems.len();
            if self.list_optional_kind(&capacities).await? {
                let drivers = api_resource("storage.k8s.io", "v1", "CSIDriver", "csidrivers");
                self.list_optional_kind(&drivers).await?;
                break;
            }
            // A permission that is missing is missing for all versions.
            if self.problems.len() > problem_count {
                break;
            }
        }
        Ok(())
    }

    /// Lists a kind. If the server refuses the list, adds a problem, unless the kind is not installed, and returns false.
    async fn list_optional_kind(&mut self, resource: &ApiResource) -> Result<bool, ListError> {
        let error = match self.list_kind(resource).await {
            Ok(()) => return Ok(true),
            Err(ListError::Call(error)) => error,
            Err(error) => return Err(error),
        };
        let Some(status) = error.status() else { return Err(error.into()) };
        if status.code != 404 {
            let message = format!("cannot be listed: {}; this kind is ignored", status.message);
            self.problems.push(Problem::new(&resource.plural, "", "", message));
        }
        Ok(false)
    }

    /// Lists a kind; a list that expires is repeated once.
    async fn list_kind(&mut self, resource: &ApiResource) -> Result<(), ListError> {
        let count = self.items.len();
        match self.list_kind_once(resource).await {
            Err(ListError::Call(error)) if is_expired(&error) => {
                self.items.truncate(count);
                self.list_kind_once(resource).await
            }
            result => result,
        }
    }

    async fn list_kind_once(&mut self, resource: &ApiResource) -> Result<(), ListError> {
        let Listing { replaced, max_objects, .. } = *self.listing;
        let items = &mut self.items;
        let remaining = max_objects.saturating_sub(items.len());
        let page_size = usize::try_from(PAGE_SIZE).unwrap_or(usize::MAX);
        let visit = |mut object: Value| {
            // The objects of a list have no kind.
            if let Some(fields) = object.as_object_mut() {
                fields.entry("apiVersion").or_insert_with(|| resource.api_version.clone().into());
                fields.entry("kind").or_insert_with(|| resource.kind.clone().into());
            }
            if replaced.contains(&object) {
                return;
            }
            let location = resource.plural.clone();
            let found = InputObject { location, object };
            items.push(if resource.kind == MACHINE_DEPLOYMENT_KIND {
                FleetItem::from_cluster_deployment(&found)
            } else {
                FleetItem::from_input(found)
            });
        };
        // A plan without some of the objects would be wrong.
        let max_pages = remaining.div_ceil(page_size).max(1);
        let is_complete = list_objects(self.client, resource, "", None, max_pages, visit).await?;
        if is_complete { Ok(()) } else { Err(ListError::TooManyObjects(max_objects)) }
    }
}
