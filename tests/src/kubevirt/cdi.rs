//! Simulation of CDI: each DataVolume gets a PersistentVolumeClaim (here: claim), and its image is imported
//! ([`super::data_volume`]).
//!
//! These parts of CDI are left out: the phase `PVCBound` before `ImportScheduled`, importer pods, and the second claim
//! from which a populator moves the volume to the claim of the DataVolume.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{
    ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

use super::data_volume::{Import, new_status, next_phase};
use super::provisioner;
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
/// Annotation of DataVolumes whose volumes are created by populators. CDI also uses populators if the provisioner of
/// the StorageClass has a CSIDriver, which no provisioner has here.
const POPULATOR_ANNOTATION: &str = "cdi.kubevirt.io/storage.usePopulator";

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

/// CDI's controllers.
pub(super) struct Cdi {
    client: Client,
    starts_imports: Arc<AtomicBool>,
    completes_imports: Arc<AtomicBool>,
}

impl Cdi {
    pub(super) fn new(
        client: Client,
        starts_imports: Arc<AtomicBool>,
        completes_imports: Arc<AtomicBool>,
    ) -> Self {
        Self { client, starts_imports, completes_imports }
    }

    /// Handles each DataVolume once. Returns the first error, after all DataVolumes.
    pub(super) async fn sync(&self) -> Result<()> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, VERSION, "DataVolume"));
        let all: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
        let mut result = Ok(());
        for volume in all.list(&ListParams::default()).await?.items {
            let namespace = volume.namespace().unwrap_or_default();
            let api: Api<DynamicObject> =
                Api::namespaced_with(self.client.clone(), &namespace, &resource);
            result = result.and(self.sync_data_volume(&api, &volume).await);
        }
        result
    }

    async fn sync_data_volume(
        &self,
        api: &Api<DynamicObject>,
        data_volume: &DynamicObject,
    ) -> Result<()> {
        let phase = data_volume.data["status"]["phase"].as_str().unwrap_or_default();
        if phase == "Succeeded" || data_volume.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        let (namespace, name) =
            (data_volume.namespace().unwrap_or_default(), data_volume.name_any());
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), &namespace);
        let waits_for_consumer = self.waits_for_consumer(requested_volume(data_volume)?).await?;
        let uses_populator = waits_for_consumer
            && data_volume.annotations().get(POPULATOR_ANNOTATION).is_some_and(|is| is == "true");
        let Some(claim) = claims.get_opt(&name).await? else {
            let mut claim = new_claim(data_volume, uses_populator)?;
            if !waits_for_consumer {
                let uid = data_volume.uid().unwrap_or_default();
                claim["spec"]["volumeName"] = format!("pv-{uid}").into();
                let volume = provisioner::shared_volume(&claim, &namespace);
                provisioner::create_volume(&self.client, volume).await?;
            }
            claims.create(&PostParams::default(), &serde_json::from_value(claim)?).await?;
            return Ok(());
        };
        let claim_phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
        let import = Import {
            waits_for_consumer,
            uses_populator,
            has_selected_node: claim
                .annotations()
                .contains_key(provisioner::SELECTED_NODE_ANNOTATION),
            is_bound: claim_phase == Some("Bound"),
            may_start: self.starts_imports.load(Ordering::SeqCst),
            may_complete: self.completes_imports.load(Ordering::SeqCst),
        };
        if phase == "ImportInProgress" && uses_populator && import.may_complete && !import.is_bound
        {
            // The populator binds the imported volume to the claim of the DataVolume.
            provisioner::create_local_volume(&self.client, &claim).await?;
        }
        let next = next_phase(phase, import);
        if next != phase {
            let status = Patch::Merge(json!({"status": new_status(next, &name, import.is_bound)}));
            api.patch(&name, &PatchParams::default(), &status).await?;
        }
        Ok(())
    }

    /// Returns true if claims of the requested StorageClass wait for their first consumer.
    async fn waits_for_consumer(&self, requested: &Value) -> Result<bool> {
        let Some(name) = requested["storageClassName"].as_str() else { return Ok(false) };
        let classes: Api<StorageClass> = Api::all(self.client.clone());
        let class = classes.get_opt(name).await?;
        let mode = class.and_then(|class| class.volume_binding_mode);
        Ok(mode.as_deref() == Some("WaitForFirstConsumer"))
    }
}

/// Returns the volume that a DataVolume requests.
fn requested_volume(data_volume: &DynamicObject) -> Result<&Value> {
    let spec = &data_volume.data["spec"];
    let fields = ["storage", "pvc"].map(|field| &spec[field]).into_iter().find(|it| it.is_object());
    fields.with_context(|| {
        let namespace = data_volume.namespace().unwrap_or_default();
        format!("DataVolume {namespace}/{}: spec.storage: is missing", data_volume.name_any())
    })
}

/// Returns the claim of a DataVolume.
fn new_claim(data_volume: &DynamicObject, uses_populator: bool) -> Result<Value> {
    let (name, uid) = (data_volume.name_any(), data_volume.uid().unwrap_or_default());
    let requested = requested_volume(data_volume)?;
    let modes = match &requested["accessModes"] {
        Value::Null => json!(["ReadWriteOnce"]),
        modes => modes.clone(),
    };
    let owner = json!({
        "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "DataVolume", "name": name, "uid": uid,
        "controller": true, "blockOwnerDeletion": true,
    });
    let mut claim = json!({
        "metadata": {"name": name, "annotations": data_volume.annotations(), "ownerReferences": [owner]},
        "spec": {
            "accessModes": modes, "storageClassName": requested["storageClassName"],
            "resources": requested["resources"],
        },
    });
    if uses_populator {
        // Provisioners ignore a claim with a data source of another API group.
        claim["spec"]["dataSourceRef"] = json!({
            "apiGroup": GROUP, "kind": "VolumeImportSource", "name": format!("volume-import-source-{uid}"),
        });
    }
    Ok(claim)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data_volume(spec: &Value) -> DynamicObject {
        let object =
            json!({"metadata": {"name": "web-1", "namespace": "vms", "uid": "u1"}, "spec": spec});
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn data_volumes_and_claims_refer_to_each_other() {
        let spec = json!({"storage": {"storageClassName": "longhorn", "resources": {"requests": {"storage": "1Gi"}}}});
        let mut claim = new_claim(&data_volume(&spec), false).unwrap();
        assert_eq!(claim["metadata"]["ownerReferences"][0]["kind"], "DataVolume");
        claim["spec"]["volumeName"] = "pv-u1".into();
        let volume = provisioner::shared_volume(&claim, "vms");
        assert_eq!(claim["spec"]["volumeName"], volume["metadata"]["name"]);
        assert_eq!(volume["spec"]["claimRef"]["name"], "web-1");
        assert_eq!(volume["spec"]["capacity"]["storage"], "1Gi");
        let populated = new_claim(&data_volume(&spec), true).unwrap();
        assert_eq!(populated["spec"]["dataSourceRef"]["kind"], "VolumeImportSource");
        let error = new_claim(&data_volume(&json!({})), false).unwrap_err();
        assert_eq!(error.to_string(), "DataVolume vms/web-1: spec.storage: is missing");
    }
}
