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
use crate::list::{is_expired, list_objects};
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
    pub(super) replaced: &'a ReplacedObjects,
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
        let listing = Listing { is_drain, has_tenants: false, replaced: &replaced };
        list_items_with_client(&client, &server, &listing, problems).await
    })
}

/// Lists all objects that placement reads, as [`list_items`] does. `server` is the address of the API server, for
/// messages.
pub(super) async fn list_items_with_client(
    client: &Client,
    server: &str,
    listing: &Listing<'_>,
    problems: &mut Vec<Problem>,
) -> Result<Vec<FleetItem>, Failure> {
    let replaced = listing.replaced;
    let mut items = Vec::new();
    let kinds = LISTED_KINDS.iter().map(|&(group, version, kind, plural, is_optional)| {
        (api_resource(group, version, kind, plural), is_optional)
    });
    let for_drain = listing.is_drain.then(|| (deployment_resource(), true));
    let for_tenants = TENANT_KINDS.iter().filter(|_| listing.has_tenants);
    let for_tenants = for_tenants
        .map(|&[group, version, kind, plural]| (api_resource(group, version, kind, plural), true));
    for (resource, is_optional) in kinds.chain(for_drain).chain(for_tenants) {
        let result = if is_optional {
            let listed = list_optional_kind(client, &resource, replaced, &mut items, problems);
            listed.await.map(drop)
        } else {
            list_kind(client, &resource, replaced, &mut items).await
        };
        if let Err(error) = result {
            return Err(list_failure(error, server, &resource.plural));
        }
    }
    if let Err(error) = list_reported_storage(client, replaced, &mut items, problems).await {
        return Err(list_failure(error, server, "csistoragecapacities"));
    }
    Ok(items)
}

fn list_failure(error: CallError, server: &str, plural: &str) -> Failure {
    let error = anyhow::Error::from(error).context(format!("{server}: {plural}"));
    Failure { exit_code: EXIT_UNREACHABLE, error }
}

/// Lists the CSIStorageCapacities in the version that the API server serves, and the CSIDrivers that report their
/// storage with these objects. If the capacities cannot be listed, the drivers are not listed either: with the drivers
/// alone, the hosts would seem to have no free storage.
async fn list_reported_storage(
    client: &Client,
    replaced: &ReplacedObjects,
    items: &mut Vec<FleetItem>,
    problems: &mut Vec<Problem>,
) -> Result<(), CallError> {
    for version in ["v1", "v1beta1"] {
        let capacities =
            api_resource("storage.k8s.io", version, "CSIStorageCapacity", "csistoragecapacities");
        let problem_count = problems.len();
        if list_optional_kind(client, &capacities, replaced, items, problems).await? {
            let drivers = api_resource("storage.k8s.io", "v1", "CSIDriver", "csidrivers");
            list_optional_kind(client, &drivers, replaced, items, problems).await?;
            break;
        }
        // A permission that is missing is missing for all versions.
        if problems.len() > problem_count {
            break;
        }
    }
    Ok(())
}

/// Lists a kind. If the server refuses the list, adds a problem, unless the kind is not installed, and returns false.
async fn list_optional_kind(
    client: &Client,
    resource: &ApiResource,
    replaced: &ReplacedObjects,
    items: &mut Vec<FleetItem>,
    problems: &mut Vec<Problem>,
) -> Result<bool, CallError> {
    let Err(error) = list_kind(client, resource, replaced, items).await else { return Ok(true) };
    let Some(status) = error.status() else { return Err(error) };
    if status.code != 404 {
        let message = format!("cannot be listed: {}; this kind is ignored", status.message);
        problems.push(Problem::new(&resource.plural, "", "", message));
    }
    Ok(false)
}

/// Lists a kind; a list that expires is repeated once.
async fn list_kind(
    client: &Client,
    resource: &ApiResource,
    replaced: &ReplacedObjects,
    items: &mut Vec<FleetItem>,
) -> Result<(), CallError> {
    let count = items.len();
    match list_kind_once(client, resource, replaced, items).await {
        Err(error) if is_expired(&error) => {
            items.truncate(count);
            list_kind_once(client, resource, replaced, items).await
        }
        result => result,
    }
}

async fn list_kind_once(
    client: &Client,
    resource: &ApiResource,
    replaced: &ReplacedObjects,
    items: &mut Vec<FleetItem>,
) -> Result<(), CallError> {
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
    // A plan without some of the objects would be wrong, so there is no limit.
    list_objects(client, resource, "", None, usize::MAX, visit).await?;
    Ok(())
}
