//! Watch of PersistentVolumeClaims. The extender reserves the node that the scheduler has selected for a claim until
//! the volume of the claim is provisioned.

use std::collections::BTreeSet;
use std::sync::Arc;

use berth_runtime::watch::{Config, Event, continue_after_error, watch_events};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::core::DeserializeGuard;
use kube::{Api, ResourceExt as _};

use super::service::ExtenderService;
use super::unlisted_kinds::ListedKind;

/// Annotation that the scheduler sets on a claim to select the node on which the volume is to be provisioned.
pub(super) const SELECTED_NODE_ANNOTATION: &str = "volume.kubernetes.io/selected-node";

/// Namespace and name of a PersistentVolumeClaim.
pub(super) type VolumeClaimKey = (String, String);

/// Passes claims without a volume to the extender; never ends. Other claims are ignored.
pub(super) async fn watch_claims(service: Arc<ExtenderService>) {
    let api: Api<DeserializeGuard<PersistentVolumeClaim>> = Api::all(service.client.clone());
    let mut listed: Vec<(VolumeClaimKey, Option<String>)> = Vec::new();
    // Claims without a volume that are in the extender's state. A change of a claim with a volume is ignored unless
    // the claim is in this set.
    let mut unbound: BTreeSet<VolumeClaimKey> = BTreeSet::new();
    let handle = |event: Event<DeserializeGuard<PersistentVolumeClaim>>| match event {
        Event::Init => {
            service.readiness_gate.set_listed(ListedKind::Claims, false);
            listed.clear();
        }
        Event::InitApply(object) => {
            listed.extend(object.0.ok().and_then(|claim| read_unbound_claim(&claim)));
        }
        Event::InitDone => {
            unbound = listed.iter().map(|(claim, _)| claim.clone()).collect();
            let all = std::mem::take(&mut listed);
            service.update(|extender, now| extender.replace_claims(now, all));
            service.readiness_gate.set_listed(ListedKind::Claims, true);
        }
        Event::Apply(object) => {
            let Ok(claim) = object.0 else { return };
            let key = (claim.namespace().unwrap_or_default(), claim.name_any());
            let node = read_unbound_claim(&claim).map(|(_, node)| node);
            let is_unbound = node.is_some();
            if is_unbound || unbound.contains(&key) {
                service.update(|extender, now| extender.update_claim(now, &key.0, &key.1, node));
            }
            if is_unbound {
                unbound.insert(key);
            } else {
                unbound.remove(&key);
            }
        }
        Event::Delete(object) => {
            let metadata = object.0.map_or_else(|invalid| invalid.metadata, |claim| claim.metadata);
            let key = (metadata.namespace.unwrap_or_default(), metadata.name.unwrap_or_default());
            unbound.remove(&key);
            service.update(|extender, now| extender.update_claim(now, &key.0, &key.1, None));
        }
    };
    watch_events(api, Config::default(), "persistentvolumeclaims", handle, continue_after_error)
        .await;
}

/// Returns namespace and name of a claim and its selected node; `None` if the claim has a volume.
fn read_unbound_claim(claim: &PersistentVolumeClaim) -> Option<(VolumeClaimKey, Option<String>)> {
    let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
    let key = (claim.namespace().unwrap_or_default(), claim.name_any());
    let node = claim.annotations().get(SELECTED_NODE_ANNOTATION).cloned();
    volume.is_none_or(str::is_empty).then_some((key, node))
}
