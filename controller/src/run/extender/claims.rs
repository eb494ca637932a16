//! Watch of PersistentVolumeClaims. The extender reserves the node that the scheduler has selected for a claim, and the
//! storage that the claim requests, until the volume of the claim is provisioned.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_placement::rules::UnboundClaim;
use berth_runtime::watch::{Config, Event, continue_after_error, watch_events};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::core::DeserializeGuard;

use super::service::ExtenderService;
use super::unlisted_kinds::ListedKind;

/// Annotation that the scheduler sets on a claim to select the node on which the volume is to be provisioned.
pub(super) const SELECTED_NODE_ANNOTATION: &str = "volume.kubernetes.io/selected-node";

/// Label of the claims with which CDI clones the volume of another claim: the UID of the other claim (`LabelOwnedByUID`
/// in pkg/controller/populators of CDI).
const OWNER_UID_LABEL: &str = "cdi.kubevirt.io/OwnedByUID";

/// Namespace and name of a PersistentVolumeClaim.
pub(super) type VolumeClaimKey = (String, String);

/// Passes claims without a volume to the extender; never ends. Other claims are ignored, except those of CDI's
/// populators.
pub(super) async fn watch_claims(service: Arc<ExtenderService>) {
    let api: Api<DeserializeGuard<PersistentVolumeClaim>> = Api::all(service.client.clone());
    let mut listed: Vec<(VolumeClaimKey, UnboundClaim)> = Vec::new();
    let mut listed_of_populators: Vec<ObjectMeta> = Vec::new();
    // Claims without a volume that are in the extender's state, by UID. A change of a claim with a volume is ignored
    // unless the claim is in this map.
    let mut unbound = UnboundKeys::new();
    let handle = |event: Event<DeserializeGuard<PersistentVolumeClaim>>| match event {
        Event::Init => {
            service.readiness_gate.set_listed(ListedKind::Claims, false);
            listed.clear();
            listed_of_populators.clear();
            unbound.clear();
        }
        Event::InitApply(object) => {
            let Ok(claim) = object.0 else { return };
            match read_unbound_claim(&claim) {
                Some(unbound_claim) => {
                    unbound.insert(uid(&claim.metadata), key(&claim.metadata));
                    listed.push((key(&claim.metadata), unbound_claim));
                }
                None => listed_of_populators
                    .extend(owner_uid(&claim.metadata).is_some().then_some(claim.metadata)),
            }
        }
        Event::InitDone => {
            let all = std::mem::take(&mut listed);
            let of_populators = std::mem::take(&mut listed_of_populators);
            let of_populators = of_populators
                .iter()
                .filter_map(|metadata| Some((owner(&unbound, metadata)?, metadata.name.clone()?)));
            let of_populators = of_populators.collect();
            service.update(|extender, now| {
                extender.replace_claims(now, all);
                extender.replace_populator_claims(of_populators);
            });
            service.readiness_gate.set_listed(ListedKind::Claims, true);
        }
        Event::Apply(object) => {
            let Ok(claim) = object.0 else { return };
            let (namespace, name) = key(&claim.metadata);
            if let Some(unbound_claim) = read_unbound_claim(&claim) {
                unbound.insert(uid(&claim.metadata), (namespace.clone(), name.clone()));
                service.update(|extender, now| {
                    extender.update_claim(now, &namespace, &name, Some(unbound_claim));
                });
                return;
            }
            if unbound.remove(&uid(&claim.metadata)).is_some() {
                service.update(|extender, now| extender.update_claim(now, &namespace, &name, None));
            }
            if let Some(owner) = owner(&unbound, &claim.metadata) {
                service.update(|extender, _| extender.update_populator_claim(&owner, &name, true));
            }
        }
        Event::Delete(object) => {
            let metadata = object.0.map_or_else(|invalid| invalid.metadata, |claim| claim.metadata);
            let (namespace, name) = key(&metadata);
            unbound.remove(&uid(&metadata));
            service.update(|extender, now| extender.update_claim(now, &namespace, &name, None));
            if let Some(owner) = owner(&unbound, &metadata) {
                service.update(|extender, _| extender.update_populator_claim(&owner, &name, false));
            }
        }
    };
    watch_events(api, Config::default(), "persistentvolumeclaims", handle, continue_after_error)
        .await;
}

/// Namespaces and names of claims without a volume, by UID.
type UnboundKeys = BTreeMap<String, VolumeClaimKey>;

fn key(metadata: &ObjectMeta) -> VolumeClaimKey {
    (metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
}

fn uid(metadata: &ObjectMeta) -> String {
    metadata.uid.clone().unwrap_or_default()
}

/// Returns a claim without a volume; `None` if the claim has a volume.
fn read_unbound_claim(claim: &PersistentVolumeClaim) -> Option<UnboundClaim> {
    UnboundClaim::from_object(claim).unwrap_or_else(|error| {
        let (namespace, name) = key(&claim.metadata);
        tracing::warn!(%namespace, %name, %error, "failed to read a PersistentVolumeClaim; its storage is not counted");
        let annotations = claim.metadata.annotations.as_ref();
        let selected_node = annotations.and_then(|all| all.get(SELECTED_NODE_ANNOTATION)).cloned();
        Some(UnboundClaim { selected_node, ..UnboundClaim::default() })
    })
}

/// Returns the claim without a volume for which CDI has created a claim with this metadata. Both are in the same
/// namespace, so that no tenant affects the claims of another tenant.
fn owner(unbound: &UnboundKeys, metadata: &ObjectMeta) -> Option<VolumeClaimKey> {
    let owner = unbound.get(owner_uid(metadata)?)?;
    (metadata.namespace.as_deref() == Some(owner.0.as_str())).then(|| owner.clone())
}

/// Returns the UID of the claim for which CDI has created a claim with this metadata: for an import or upload, the owner
/// (`createPVCPrime` in pkg/controller/populators of CDI); for a clone, the value of a label.
fn owner_uid(metadata: &ObjectMeta) -> Option<&str> {
    let mut owners = metadata.owner_references.iter().flatten();
    let owner = owners
        .find(|owner| owner.kind == "PersistentVolumeClaim" && owner.controller == Some(true));
    let label = || metadata.labels.as_ref()?.get(OWNER_UID_LABEL);
    owner.map(|owner| owner.uid.as_str()).or_else(|| label().map(String::as_str))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn metadata(fields: Value) -> ObjectMeta {
        serde_json::from_value(fields).unwrap()
    }

    #[test]
    fn a_claim_with_an_invalid_size_keeps_its_selected_node() {
        let claim = |size: &str| {
            let annotations = json!({SELECTED_NODE_ANNOTATION: "a"});
            let object = json!({"metadata": {"name": "disk", "annotations": annotations},
                "spec": {"resources": {"requests": {"storage": size}}}});
            read_unbound_claim(&serde_json::from_value(object).unwrap()).unwrap()
        };
        assert_eq!(claim("big").bytes, None);
        assert_eq!(claim("1Ki").bytes, Some(1024));
        for size in ["big", "1Ki"] {
            assert_eq!(claim(size).selected_node.as_deref(), Some("a"));
        }
    }

    #[test]
    fn claims_of_populators_are_found_by_the_uid_of_their_owner() {
        let disk = ("vms".to_owned(), "disk".to_owned());
        let unbound = UnboundKeys::from([("u1".to_owned(), disk.clone())]);
        let owner_reference = |uid: &str| json!([{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "disk", "uid": uid, "controller": true}]);
        let import = json!({"namespace": "vms", "name": "prime-u1", "ownerReferences": owner_reference("u1")});
        assert_eq!(owner(&unbound, &metadata(import)), Some(disk.clone()));
        let labels = json!({OWNER_UID_LABEL: "u1"});
        let clone = json!({"namespace": "vms", "name": "tmp-pvc-u1", "labels": labels});
        assert_eq!(owner(&unbound, &metadata(clone)), Some(disk));
        for other in [
            json!({"namespace": "vms", "name": "disk", "uid": "u1"}),
            json!({"namespace": "vms", "name": "prime-u2", "ownerReferences": owner_reference("u2")}),
            json!({"namespace": "other", "name": "prime-u1", "ownerReferences": owner_reference("u1")}),
            json!({"namespace": "other", "name": "tmp-pvc-u1", "labels": labels}),
        ] {
            assert_eq!(owner(&unbound, &metadata(other.clone())), None, "{other}");
        }
    }
}
