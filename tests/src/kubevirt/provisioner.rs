//! Simulation of provisioners: a PersistentVolumeClaim (here: claim) of a StorageClass with the binding mode
//! `WaitForFirstConsumer` gets a volume that only its selected node can reach, and volumes of deleted claims are
//! deleted. The volume controller of kube-controller-manager binds claims and volumes.

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

/// Annotation that the scheduler sets on a claim to select the node on which the volume is to be provisioned.
pub(crate) const SELECTED_NODE_ANNOTATION: &str = "volume.kubernetes.io/selected-node";
/// Annotation that the volume controller sets on a claim to name the provisioner that must create the volume.
pub(crate) const PROVISIONER_ANNOTATION: &str = "volume.kubernetes.io/storage-provisioner";

/// Provisioner whose volumes are folders of a host; those of others are local volumes.
const HOST_PATH_PROVISIONER: &str = "kubevirt.io.hostpath-provisioner";

/// Handles each claim once, and deletes volumes whose claims are deleted. Returns the first error, after all claims.
pub(super) async fn sync(client: &Client) -> Result<()> {
    let claims: Api<PersistentVolumeClaim> = Api::all(client.clone());
    let mut result = Ok(());
    for claim in claims.list(&ListParams::default()).await?.items {
        if should_provision(&claim) {
            result = result.and(create_local_volume(client, &claim).await);
        }
    }
    result.and(delete_released_volumes(client).await)
}

/// Returns true if a provisioner creates a volume for the claim (`shouldProvision` of
/// sig-storage-lib-external-provisioner). A populator creates the volume of a claim with a data source.
fn should_provision(claim: &PersistentVolumeClaim) -> bool {
    let has_annotation =
        |key: &str| claim.annotations().get(key).is_some_and(|value| !value.is_empty());
    let needs_volume = claim.spec.as_ref().is_some_and(|spec| {
        spec.volume_name.as_deref().is_none_or(str::is_empty) && spec.data_source_ref.is_none()
    });
    needs_volume
        && claim.metadata.deletion_timestamp.is_none()
        && [PROVISIONER_ANNOTATION, SELECTED_NODE_ANNOTATION].into_iter().all(has_annotation)
}

/// Creates the volume of a claim on the claim's selected node, unless the volume exists.
///
/// # Errors
/// Fails if no node is selected, or if the server refuses the volume.
pub(super) async fn create_local_volume(
    client: &Client,
    claim: &PersistentVolumeClaim,
) -> Result<()> {
    create_volume(client, local_volume(&serde_json::to_value(claim)?)?).await
}

/// Creates a volume, unless the volume exists.
///
/// # Errors
/// Fails if the server refuses the volume.
pub(crate) async fn create_volume(client: &Client, volume: Value) -> Result<()> {
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let volume = serde_json::from_value(volume)?;
    match volumes.create(&PostParams::default(), &volume).await {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        created => Ok(created.map(drop)?),
    }
}

/// Returns the volume that a provisioner of local volumes creates for a claim.
fn local_volume(claim: &Value) -> Result<Value> {
    let metadata = &claim["metadata"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let annotation = |key: &str| {
        metadata["annotations"][key].as_str().with_context(|| {
            let (namespace, name) = (text(&metadata["namespace"]), text(&metadata["name"]));
            format!("PersistentVolumeClaim {namespace}/{name}: annotation {key}: is missing")
        })
    };
    let node = annotation(SELECTED_NODE_ANNOTATION)?;
    let provisioner = annotation(PROVISIONER_ANNOTATION)?;
    let name = format!("pvc-{}", text(&metadata["uid"]));
    let (source, folder) = match provisioner {
        HOST_PATH_PROVISIONER => ("hostPath", "/var/hpvolumes"),
        _ => ("local", "/var/lib/volumes"),
    };
    let mut volume = provisioned_volume(claim, provisioner, &name);
    volume["spec"][source] = json!({"path": format!("{folder}/{name}")});
    volume["spec"]["nodeAffinity"] = affinity_to_node(node);
    Ok(volume)
}

/// Returns a volume that a provisioner creates for a claim, without its source and its node affinity.
pub(crate) fn provisioned_volume(claim: &Value, provisioner: &str, name: &str) -> Value {
    let (metadata, spec) = (&claim["metadata"], &claim["spec"]);
    json!({
        "metadata": {
            "name": name,
            // Without this annotation, the volume controller would try to delete the volume.
            "annotations": {"pv.kubernetes.io/provisioned-by": provisioner},
        },
        "spec": {
            "accessModes": spec["accessModes"], "capacity": spec["resources"]["requests"],
            "storageClassName": spec["storageClassName"], "volumeMode": spec["volumeMode"],
            "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": metadata["namespace"],
                "name": metadata["name"], "uid": metadata["uid"],
            },
        },
    })
}

/// Returns the node affinity of a volume that only this Node can reach.
pub(crate) fn affinity_to_node(node: &str) -> Value {
    json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
        {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]},
    ]}]}})
}

/// Returns the volume for a claim whose spec names this volume. Every Node can mount this type of volume, without a
/// driver and without an attachment.
pub(super) fn shared_volume(claim: &Value, namespace: &str) -> Value {
    let spec = &claim["spec"];
    let path = format!("/{}", spec["volumeName"].as_str().unwrap_or_default());
    json!({
        "metadata": {"name": spec["volumeName"]},
        "spec": {
            "accessModes": spec["accessModes"], "storageClassName": spec["storageClassName"],
            "capacity": spec["resources"]["requests"], "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace,
                "name": claim["metadata"]["name"],
            },
            "nfs": {"server": "192.0.2.1", "path": path},
        },
    })
}

/// Deletes the volumes whose claims are deleted.
pub(crate) async fn delete_released_volumes(client: &Client) -> Result<()> {
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
    fn claims_get_a_volume_on_their_selected_node() {
        let mut claim = json!({
            "metadata": {"name": "disk", "namespace": "vms", "uid": "u1", "annotations": {
                PROVISIONER_ANNOTATION: "rancher.io/local-path",
            }},
            "spec": {"storageClassName": "local", "accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem",
                "resources": {"requests": {"storage": "1Gi"}}},
        });
        let should_provision =
            |claim: &Value| should_provision(&serde_json::from_value(claim.clone()).unwrap());
        assert!(!should_provision(&claim), "no node is selected");
        assert_eq!(
            local_volume(&claim).unwrap_err().to_string(),
            "PersistentVolumeClaim vms/disk: annotation volume.kubernetes.io/selected-node: is missing"
        );
        claim["metadata"]["annotations"][SELECTED_NODE_ANNOTATION] = "host-a".into();
        assert!(should_provision(&claim));
        let volume: PersistentVolume =
            serde_json::from_value(local_volume(&claim).unwrap()).unwrap();
        assert_eq!(volume.name_any(), "pvc-u1");
        let affinity = json!(volume.spec.unwrap().node_affinity.unwrap().required);
        assert_eq!(affinity["nodeSelectorTerms"][0]["matchExpressions"][0]["values"][0], "host-a");
        claim["metadata"]["annotations"][PROVISIONER_ANNOTATION] = HOST_PATH_PROVISIONER.into();
        let volume = local_volume(&claim).unwrap();
        assert_eq!(volume["spec"]["hostPath"]["path"], "/var/hpvolumes/pvc-u1");
        claim["spec"]["dataSourceRef"] = json!({"kind": "VolumeImportSource", "name": "image"});
        assert!(!should_provision(&claim), "a populator creates the volume");
    }
}
