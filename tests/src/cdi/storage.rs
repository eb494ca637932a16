//! Simulation of CSI drivers: a PersistentVolumeClaim (here: claim) gets a volume, which is empty, a clone of another volume,
//! or the content of a snapshot; and volumes are expanded. The volume controller of kube-controller-manager binds claims and
//! volumes.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, Result};
use berth_api::Quantity;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

use crate::kubevirt::current_time;
use crate::kubevirt::provisioner::{
    PROVISIONER_ANNOTATION, SELECTED_NODE_ANNOTATION, affinity_to_node, create_volume,
    delete_released_volumes, provisioned_volume,
};

/// Namespace and name of an object.
type Key = (String, String);

/// Content of a volume, and the origin of the content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Image that was written to the volume, or empty.
    pub content: String,
    /// Origin of the content.
    pub origin: Origin,
}

/// Origin of the content of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// The volume is empty.
    Empty,
    /// A pod has downloaded an image.
    Import,
    /// The storage has restored a snapshot.
    Snapshot,
    /// The storage has cloned another volume.
    Clone,
    /// Two pods have copied another volume.
    Copy,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "empty",
            Self::Import => "import",
            Self::Snapshot => "snapshot",
            Self::Clone => "clone",
            Self::Copy => "copy",
        })
    }
}

/// Storage of all CSI drivers.
pub(super) struct Storage {
    client: Client,
    snapshots: ApiResource,
    /// Volumes, by the name of the PersistentVolume.
    volumes: Mutex<BTreeMap<String, Volume>>,
    /// Contents of snapshots.
    contents: Mutex<BTreeMap<Key, String>>,
}

impl Storage {
    pub(super) fn new(client: Client) -> Self {
        let kind = GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", "VolumeSnapshot");
        Self {
            client,
            snapshots: ApiResource::from_gvk(&kind),
            volumes: Mutex::default(),
            contents: Mutex::default(),
        }
    }

    /// Returns a volume, by the name of its PersistentVolume.
    pub(super) fn volume(&self, name: &str) -> Option<Volume> {
        lock(&self.volumes).get(name).cloned()
    }

    /// Writes an image to a volume.
    pub(super) fn write(&self, name: &str, content: &str, origin: Origin) {
        let volume = Volume { content: content.to_owned(), origin };
        lock(&self.volumes).insert(name.to_owned(), volume);
    }

    /// Handles each claim and each snapshot once. Returns the first error, after all of them.
    pub(super) async fn sync(&self) -> Result<()> {
        let all: Api<PersistentVolumeClaim> = Api::all(self.client.clone());
        let claims: BTreeMap<Key, PersistentVolumeClaim> = all
            .list(&ListParams::default().match_any())
            .await?
            .items
            .into_iter()
            .map(|claim| ((claim.namespace().unwrap_or_default(), claim.name_any()), claim))
            .collect();
        let mut result = self.take_snapshots(&claims).await;
        for claim in claims.values() {
            if claim.metadata.deletion_timestamp.is_some() {
                continue;
            }
            let done = if volume_name(claim).is_none() {
                self.provision(claim, &claims).await
            } else {
                self.expand(claim).await
            };
            result = result.and(done);
        }
        result.and(delete_released_volumes(&self.client).await)
    }

    /// Creates the volume of a claim, unless a populator of CDI does, or its source does not exist yet.
    async fn provision(
        &self,
        claim: &PersistentVolumeClaim,
        claims: &BTreeMap<Key, PersistentVolumeClaim>,
    ) -> Result<()> {
        // The volume controller adds the annotation when a driver must create the volume.
        let Some(driver) = claim.annotations().get(PROVISIONER_ANNOTATION) else { return Ok(()) };
        let Some(source) = self.source(claim, claims) else { return Ok(()) };
        let name = format!("pvc-{}", claim.uid().unwrap_or_default());
        lock(&self.volumes).entry(name.clone()).or_insert(source);
        create_volume(&self.client, csi_volume(&serde_json::to_value(claim)?, driver, &name)).await
    }

    /// Returns the volume that a driver creates for a claim.
    fn source(
        &self,
        claim: &PersistentVolumeClaim,
        claims: &BTreeMap<Key, PersistentVolumeClaim>,
    ) -> Option<Volume> {
        let Some(source) = claim.spec.as_ref()?.data_source_ref.as_ref() else {
            return Some(Volume { content: String::new(), origin: Origin::Empty });
        };
        let key = (claim.namespace().unwrap_or_default(), source.name.clone());
        match source.kind.as_str() {
            "PersistentVolumeClaim" => {
                let volume = self.volume(volume_name(claims.get(&key)?)?)?;
                Some(Volume { content: volume.content, origin: Origin::Clone })
            }
            "VolumeSnapshot" => {
                let content = lock(&self.contents).get(&key).cloned()?;
                Some(Volume { content, origin: Origin::Snapshot })
            }
            _ => None,
        }
    }

    /// Expands the volume of a claim whose request was raised.
    async fn expand(&self, claim: &PersistentVolumeClaim) -> Result<()> {
        let Some(requested) = requested_size(claim) else { return Ok(()) };
        let status = claim.status.as_ref();
        let capacity = status.and_then(|status| status.capacity.as_ref()?.get("storage"));
        // The volume controller writes the capacity when it binds the claim.
        let Some(capacity) = capacity else { return Ok(()) };
        if requested.parse::<Quantity>()? <= capacity.0.parse::<Quantity>()? {
            return Ok(());
        }
        let size = json!({"storage": requested});
        let parameters = PatchParams::default();
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let patch = Patch::Merge(json!({"spec": {"capacity": size}}));
        volumes.patch(volume_name(claim).unwrap_or_default(), &parameters, &patch).await?;
        let namespace = claim.namespace().unwrap_or_default();
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), &namespace);
        let patch = Patch::Merge(json!({"status": {"capacity": size}}));
        claims.patch_status(&claim.name_any(), &parameters, &patch).await?;
        Ok(())
    }

    /// Takes the snapshots that are not ready.
    async fn take_snapshots(&self, claims: &BTreeMap<Key, PersistentVolumeClaim>) -> Result<()> {
        let all: Api<DynamicObject> = Api::all_with(self.client.clone(), &self.snapshots);
        for snapshot in all.list(&ListParams::default()).await?.items {
            if snapshot.data["status"]["readyToUse"] == true {
                continue;
            }
            let namespace = snapshot.namespace().unwrap_or_default();
            let key = (namespace.clone(), snapshot.name_any());
            let source = &snapshot.data["spec"]["source"]["persistentVolumeClaimName"];
            let source = (namespace.clone(), source.as_str().unwrap_or_default().to_owned());
            let claim =
                claims.get(&source).with_context(|| format!("{key:?}: {source:?}: is missing"))?;
            let volume = volume_name(claim).and_then(|name| self.volume(name));
            let volume = volume.with_context(|| format!("{key:?}: {source:?}: has no volume"))?;
            lock(&self.contents).insert(key, volume.content);
            let status = json!({"status": {
                "readyToUse": true, "creationTime": current_time(), "restoreSize": requested_size(claim),
                "boundVolumeSnapshotContentName": format!("snapcontent-{}", snapshot.uid().unwrap_or_default()),
            }});
            let api: Api<DynamicObject> =
                Api::namespaced_with(self.client.clone(), &namespace, &self.snapshots);
            // The kind has no status subresource in the tests.
            let patch = Patch::Merge(status);
            api.patch(&snapshot.name_any(), &PatchParams::default(), &patch).await?;
        }
        Ok(())
    }
}

fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the name of the volume of a claim; `None` if it has none.
pub(super) fn volume_name(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.spec.as_ref()?.volume_name.as_deref().filter(|name| !name.is_empty())
}

fn requested_size(claim: &PersistentVolumeClaim) -> Option<String> {
    let resources = claim.spec.as_ref()?.resources.as_ref()?;
    Some(resources.requests.as_ref()?.get("storage")?.0.clone())
}

/// Returns the volume that a driver creates for a claim. If a node is selected, only this node can reach the volume.
fn csi_volume(claim: &Value, driver: &str, name: &str) -> Value {
    let mut volume = provisioned_volume(claim, driver, name);
    volume["spec"]["csi"] = json!({"driver": driver.replace('/', "."), "volumeHandle": name});
    if let Some(node) = claim["metadata"]["annotations"][SELECTED_NODE_ANNOTATION].as_str() {
        volume["spec"]["nodeAffinity"] = affinity_to_node(node);
    }
    volume
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_are_on_the_selected_node() {
        let mut claim = json!({
            "metadata": {"name": "disk", "namespace": "vms", "uid": "u1"},
            "spec": {"storageClassName": "local", "accessModes": ["ReadWriteOnce"], "volumeMode": "Block",
                "resources": {"requests": {"storage": "1Gi"}}},
        });
        let volume = |claim: &Value| -> PersistentVolume {
            serde_json::from_value(csi_volume(claim, "a.example/path", "pvc-u1")).unwrap()
        };
        let shared = volume(&claim).spec.unwrap();
        assert_eq!(shared.csi.unwrap().driver, "a.example.path");
        assert!(shared.node_affinity.is_none());
        claim["metadata"]["annotations"] = json!({SELECTED_NODE_ANNOTATION: "host-a"});
        let affinity = json!(volume(&claim).spec.unwrap().node_affinity.unwrap().required);
        assert_eq!(affinity["nodeSelectorTerms"][0]["matchExpressions"][0]["values"][0], "host-a");
    }
}
