//! Where the volumes are of VMs that are on no host yet: asked once, at the beginning, as no watch tells of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_runtime::client::{CallError, within};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{NodeSelector, PersistentVolume, PersistentVolumeClaim};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::{Api, Client, ResourceExt as _};

use super::Sidecar;
use super::others::SELECTED;
use berth_extender::node_selector;
use berth_kubevirt_render::launcher::Configuration;

/// Namespace and name.
type Claim = (String, String);

/// Requests at a time: after a failure of the whole cluster thousands of VMs begin at once.
const AT_ONCE: usize = 16;

/// Tells the desk of VMs that are on no host yet, and where their volumes are.
pub(super) async fn look(sidecar: &Arc<Sidecar>) {
    let vms = std::mem::take(&mut *sidecar.pending_vms());
    let claims: BTreeSet<Claim> = vms.iter().flat_map(|vm| vm.claims().cloned()).collect();
    let client = &sidecar.client;
    let asked = futures::stream::iter(claims).map(|claim| async move {
        let found = volume(client, &claim).await;
        (claim, found)
    });
    let found: Vec<_> = asked.buffer_unordered(AT_ONCE).collect().await;
    let mut volumes = BTreeMap::new();
    for ((namespace, name), found) in found {
        match found {
            Ok(Some(selector)) => drop(volumes.insert((namespace, name), selector)),
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(%namespace, %name, %error, "failed to read where the volume of a claim is");
            }
        }
    }
    sidecar.extender().pending_vms(vms, volumes);
}

/// Which hosts a claim's volume is tied to, or the node that was selected for one that is yet to be made.
async fn volume(
    client: &Client,
    (namespace, name): &Claim,
) -> Result<Option<NodeSelector>, CallError> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    let Some(claim) = within(claims.get_opt(name)).await? else { return Ok(None) };
    let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone());
    let Some(volume) = volume.filter(|name| !name.is_empty()) else {
        return Ok(claim.annotations().get(SELECTED).map(|node| node_selector(node)));
    };
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let volume = within(volumes.get_opt(&volume)).await?;
    Ok(volume.and_then(|volume| volume.spec?.node_affinity?.required))
}

/// How KubeVirt is configured, by which launcher pods are predicted; its defaults if that is not known.
pub(super) async fn kubevirt(client: &Client) -> Configuration {
    let kind = GroupVersionKind::gvk("kubevirt.io", "v1", "KubeVirt");
    let resource = ApiResource::from_gvk_with_plural(&kind, "kubevirts");
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let read = match within(api.list(&ListParams::default().limit(1))).await {
        Ok(list) => match list.items.into_iter().next() {
            Some(object) => serde_json::to_value(object).map_err(|error| error.to_string()),
            None => return Configuration::default(),
        },
        Err(error) if error.code() == Some(404) => return Configuration::default(),
        Err(error) => Err(error.to_string()),
    };
    let read = read.and_then(|object| {
        Configuration::from_kubevirt(&object).map_err(|invalid| invalid.to_string())
    });
    read.unwrap_or_else(|error| {
        tracing::warn!(%error, "failed to read the KubeVirt object; its defaults are taken");
        Configuration::default()
    })
}
