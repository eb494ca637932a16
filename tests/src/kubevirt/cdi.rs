//! Simulation of CDI and of its provisioner: each DataVolume gets a claim with a volume, and its image is imported at
//! once. The volume controller of kube-controller-manager binds the claim.

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
    PostParams,
};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

use crate::cluster::ControlPlane;

const GROUP: &str = "cdi.kubevirt.io";
const VERSION: &str = "v1beta1";
/// Kinds of CDI, and the scope of each. If DataVolumes are defined, virt-controller waits for lists of all these kinds.
const KINDS: [(&str, &str, &str); 5] = [
    ("DataVolume", "datavolumes", "Namespaced"),
    ("DataSource", "datasources", "Namespaced"),
    ("StorageProfile", "storageprofiles", "Cluster"),
    ("CDI", "cdis", "Cluster"),
    ("CDIConfig", "cdiconfigs", "Cluster"),
];

/// Defines CDI's kinds with schemas that accept any content.
///
/// # Errors
/// Fails if the server refuses a definition.
pub fn define_kinds(plane: &ControlPlane) -> Result<()> {
    for (kind, plural, scope) in KINDS {
        plane.define_kind_in_scope(GROUP, VERSION, kind, plural, scope)?;
    }
    Ok(())
}

/// Handles each DataVolume once, and deletes volumes whose claims are deleted. Returns the first error, after all
/// DataVolumes.
pub(super) async fn sync_volumes(client: &Client) -> Result<()> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, VERSION, "DataVolume"));
    let all: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let mut result = Ok(());
    for volume in all.list(&ListParams::default()).await?.items {
        let namespace = volume.namespace().unwrap_or_default();
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace, &resource);
        result = result.and(sync_volume(client, &api, &volume).await);
    }
    result.and(delete_released_volumes(client).await)
}

async fn sync_volume(
    client: &Client,
    api: &Api<DynamicObject>,
    data_volume: &DynamicObject,
) -> Result<()> {
    let is_imported = data_volume.data["status"]["phase"] == "Succeeded";
    if is_imported || data_volume.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let namespace = data_volume.namespace().unwrap_or_default();
    let name = data_volume.name_any();
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &namespace);
    let Some(claim) = claims.get_opt(&name).await? else {
        let (volume, claim) = new_volume(data_volume)?;
        let volumes: Api<PersistentVolume> = Api::all(client.clone());
        // The volume may exist since an earlier round.
        match volumes.create(&PostParams::default(), &volume).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            created => drop(created?),
        }
        claims.create(&PostParams::default(), &claim).await?;
        return Ok(());
    };
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    if phase == Some("Bound") {
        let condition = |type_: &str| json!({"type": type_, "status": "True"});
        let status = json!({"status": {"phase": "Succeeded", "progress": "100.0%",
            "conditions": [condition("Bound"), condition("Ready")]}});
        api.patch(&name, &PatchParams::default(), &Patch::Merge(status)).await?;
    }
    Ok(())
}

/// Returns the volume of a DataVolume and its claim, each of which names the other.
fn new_volume(data_volume: &DynamicObject) -> Result<(PersistentVolume, PersistentVolumeClaim)> {
    let namespace = data_volume.namespace().unwrap_or_default();
    let (name, uid) = (data_volume.name_any(), data_volume.uid().unwrap_or_default());
    let spec = &data_volume.data["spec"];
    let fields = ["storage", "pvc"].map(|field| &spec[field]).into_iter().find(|it| it.is_object());
    let requested = fields
        .with_context(|| format!("DataVolume {namespace}/{name}: spec.storage: is missing"))?;
    let volume_name = format!("pv-{uid}");
    let modes = match &requested["accessModes"] {
        Value::Null => json!(["ReadWriteOnce"]),
        modes => modes.clone(),
    };
    let volume = json!({
        "metadata": {"name": volume_name},
        "spec": {
            "accessModes": modes, "storageClassName": requested["storageClassName"],
            "capacity": requested["resources"]["requests"], "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace, "name": name},
            // Every Node can mount this type of volume, without a driver and without an attachment.
            "nfs": {"server": "192.0.2.1", "path": format!("/{volume_name}")},
        },
    });
    let owner = json!({
        "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "DataVolume", "name": name, "uid": uid,
        "controller": true, "blockOwnerDeletion": true,
    });
    let claim = json!({
        "metadata": {"name": name, "ownerReferences": [owner]},
        "spec": {
            "accessModes": modes, "storageClassName": requested["storageClassName"],
            "resources": requested["resources"], "volumeName": volume_name,
        },
    });
    Ok((serde_json::from_value(volume)?, serde_json::from_value(claim)?))
}

/// Deletes the volumes whose claims are deleted, as a provisioner does.
async fn delete_released_volumes(client: &Client) -> Result<()> {
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    for volume in volumes.list(&ListParams::default()).await?.items {
        let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
        if phase == Some("Released") && volume.metadata.deletion_timestamp.is_none() {
            volumes.delete(&volume.name_any(), &DeleteParams::default()).await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_and_claims_name_each_other() {
        let data_volume = json!({
            "metadata": {"name": "web-1", "namespace": "vms", "uid": "u1"},
            "spec": {"storage": {"storageClassName": "longhorn", "resources": {"requests": {"storage": "1Gi"}}}},
        });
        let (volume, claim) = new_volume(&serde_json::from_value(data_volume).unwrap()).unwrap();
        let (volume, claim) = (json!(volume), json!(claim));
        assert_eq!(claim["spec"]["volumeName"], volume["metadata"]["name"]);
        assert_eq!(volume["spec"]["claimRef"]["name"], "web-1");
        assert_eq!(volume["spec"]["capacity"]["storage"], "1Gi");
        assert_eq!(claim["metadata"]["ownerReferences"][0]["kind"], "DataVolume");
        let without = json!({"metadata": {"name": "a", "namespace": "b"}, "spec": {}});
        let error = new_volume(&serde_json::from_value(without).unwrap()).unwrap_err();
        assert_eq!(error.to_string(), "DataVolume b/a: spec.storage: is missing");
    }
}
