//! Reads the volumes of VMs that have no host yet, once at the start of the watches. The volumes are not watched.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_extender::selector_for_node;
use berth_kubevirt_render::launcher::Configuration;
use berth_runtime::call::{CallError, with_timeout};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{NodeSelector, PersistentVolume, PersistentVolumeClaim};
use kube::api::{DynamicObject, ListParams};
use kube::{Api, Client, ResourceExt as _};

use super::claims::{SELECTED_NODE_ANNOTATION, VolumeClaimKey};
use super::service::ExtenderService;
use crate::run::api_requests::kubevirt_resource;

/// Number of concurrent requests. Many volumes may have to be read: after a failure of the whole cluster, thousands
/// of VMs start at the same time.
const MAX_CONCURRENT_REQUESTS: usize = 16;

/// Reads the volumes of VMs that have no host yet, and passes these VMs to the extender, with the node selectors of
/// their volumes.
pub(super) async fn read_pending_volumes(service: &Arc<ExtenderService>) {
    let vms = std::mem::take(&mut *service.pending_vms());
    let claims: BTreeSet<VolumeClaimKey> = vms.iter().flat_map(|vm| vm.claims().cloned()).collect();
    let client = &service.client;
    let requests = futures::stream::iter(claims).map(|claim| async move {
        let selector = read_node_selector(client, &claim).await;
        (claim, selector)
    });
    let results: Vec<_> = requests.buffer_unordered(MAX_CONCURRENT_REQUESTS).collect().await;
    let mut volumes = BTreeMap::new();
    for ((namespace, name), selector) in results {
        match selector {
            Ok(Some(selector)) => drop(volumes.insert((namespace, name), selector)),
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(%namespace, %name, %error, "failed to read the volume of a PersistentVolumeClaim");
            }
        }
    }
    service.extender().set_pending_vms(vms, volumes);
}

/// Returns the node selector of the volume of a PersistentVolumeClaim (PVC). For a volume that is not provisioned yet,
/// returns a selector of the node that was selected for the PVC. Returns `None` if there is neither a volume nor a
/// selected node, or if the PVC does not exist.
async fn read_node_selector(
    client: &Client,
    (namespace, name): &VolumeClaimKey,
) -> Result<Option<NodeSelector>, CallError> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    let Some(claim) = with_timeout(claims.get_opt(name)).await? else { return Ok(None) };
    let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone());
    let Some(volume) = volume.filter(|name| !name.is_empty()) else {
        return Ok(claim
            .annotations()
            .get(SELECTED_NODE_ANNOTATION)
            .map(|node| selector_for_node(node)));
    };
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let volume = with_timeout(volumes.get_opt(&volume)).await?;
    Ok(volume.and_then(|volume| volume.spec?.node_affinity?.required))
}

/// Returns KubeVirt's configuration, on which the predicted launcher pods depend; the defaults if it cannot be read.
pub(super) async fn kubevirt_configuration(client: &Client) -> Configuration {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &kubevirt_resource());
    let read = match with_timeout(api.list(&ListParams::default().limit(1))).await {
        Ok(list) => match list.items.into_iter().next() {
            Some(object) => serde_json::to_value(object).map_err(anyhow::Error::from),
            None => return Configuration::default(),
        },
        Err(error) if error.status_code() == Some(404) => return Configuration::default(),
        Err(error) => Err(error.into()),
    };
    let read = read.and_then(|object| Ok(Configuration::from_kubevirt(&object)?));
    read.unwrap_or_else(|error| {
        tracing::warn!(%error, "failed to read the KubeVirt object; its defaults are used");
        Configuration::default()
    })
}
