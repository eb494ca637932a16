//! Stores of the objects that golden images depend on. Kinds of CDI and of the snapshot controller may be missing.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::names::{
    CLONED_FROM_LABEL, GOLDEN_IMAGE_LABEL, IMAGE_GRANT_LABEL, IMAGE_SOURCE_ANNOTATION,
};
use berth_runtime::watch::{OptionalInformer, OptionalKind};
use futures::FutureExt as _;
use futures::future::{BoxFuture, join_all};
use kube::Client;
use kube::api::{ApiResource, DynamicObject};
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::api_resource::api_resource;
use crate::images::usage::{CLONE_TYPE_ANNOTATION, IMPORT_CRON_LABEL};

/// Label of the temporary claims from which CDI moves the volume to the claim of a disk. They have the labels of the claim
/// of the disk, which would be counted twice.
const TEMPORARY_CLAIM_LABEL: &str = "cdi.kubevirt.io/OwnedByUID";

/// Stores of the objects that golden images depend on.
pub(super) struct ImageStores {
    /// DataVolumes that import golden images.
    pub(super) volumes: OptionalInformer,
    /// DataSources of golden images.
    pub(super) sources: OptionalInformer,
    /// DataImportCrons of golden images.
    pub(super) crons: OptionalInformer,
    /// DataVolumes that DataImportCrons created.
    pub(super) imports: OptionalInformer,
    /// PersistentVolumeClaims that are clones of golden images.
    pub(super) clones: OptionalInformer,
    /// RoleBindings of tenants that permit to clone golden images.
    pub(super) grants: OptionalInformer,
    pub(super) storage_classes: OptionalInformer,
    pub(super) storage_profiles: OptionalInformer,
    pub(super) snapshot_classes: OptionalInformer,
    pub(super) csi_drivers: OptionalInformer,
    /// Objects of the kind CDI, of which there is one.
    pub(super) cdis: OptionalInformer,
}

pub(super) fn volume_resource() -> ApiResource {
    api_resource("cdi.kubevirt.io", "v1beta1", "DataVolume", "datavolumes")
}

pub(super) fn source_resource() -> ApiResource {
    api_resource("cdi.kubevirt.io", "v1beta1", "DataSource", "datasources")
}

pub(super) fn cron_resource() -> ApiResource {
    api_resource("cdi.kubevirt.io", "v1beta1", "DataImportCron", "dataimportcrons")
}

pub(super) fn claim_resource() -> ApiResource {
    api_resource("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
}

pub(super) fn snapshot_resource() -> ApiResource {
    api_resource("snapshot.storage.k8s.io", "v1", "VolumeSnapshot", "volumesnapshots")
}

pub(super) fn grant_resource() -> ApiResource {
    api_resource("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings")
}

impl ImageStores {
    /// Returns the stores, and a future that updates them and never ends. Each change sends the signal `changed`.
    pub(super) fn start(client: &Client, changed: &Arc<Notify>) -> (Self, BoxFuture<'static, ()>) {
        let mut watches: Vec<BoxFuture<'static, ()>> = Vec::new();
        let mut start =
            |resource: ApiResource, label: Option<&str>, trim: fn(&mut DynamicObject)| {
                let label_selector = label.map(str::to_owned);
                let kind = OptionalKind { resource, label_selector, trim };
                let changed = Arc::clone(changed);
                let (informer, watch) =
                    OptionalInformer::start(client, kind, move |_, _| changed.notify_one());
                watches.push(watch.boxed());
                informer
            };
        let cdi =
            |kind: &str, plural: &str| api_resource("cdi.kubevirt.io", "v1beta1", kind, plural);
        let storage =
            |group: &str, kind: &str, plural: &str| api_resource(group, "v1", kind, plural);
        let snapshots = "snapshot.storage.k8s.io";
        let clone_selector = format!("{CLONED_FROM_LABEL},!{TEMPORARY_CLAIM_LABEL}");
        let stores = Self {
            volumes: start(volume_resource(), Some(GOLDEN_IMAGE_LABEL), trim_volume),
            sources: start(source_resource(), Some(GOLDEN_IMAGE_LABEL), remove_managed_fields),
            crons: start(cron_resource(), Some(GOLDEN_IMAGE_LABEL), remove_managed_fields),
            imports: start(volume_resource(), Some(IMPORT_CRON_LABEL), keep_identity),
            clones: start(claim_resource(), Some(clone_selector.as_str()), keep_clone),
            grants: start(grant_resource(), Some(IMAGE_GRANT_LABEL), remove_managed_fields),
            storage_classes: start(
                storage("storage.k8s.io", "StorageClass", "storageclasses"),
                None,
                remove_managed_fields,
            ),
            storage_profiles: start(
                cdi("StorageProfile", "storageprofiles"),
                None,
                remove_managed_fields,
            ),
            snapshot_classes: start(
                storage(snapshots, "VolumeSnapshotClass", "volumesnapshotclasses"),
                None,
                remove_managed_fields,
            ),
            csi_drivers: start(
                storage("storage.k8s.io", "CSIDriver", "csidrivers"),
                None,
                keep_identity,
            ),
            cdis: start(cdi("CDI", "cdis"), None, remove_managed_fields),
        };
        let run = async move {
            join_all(watches).await;
        };
        (stores, run.boxed())
    }

    /// Waits until each kind is listed or known not to be installed.
    pub(super) async fn wait_until_ready(&self) {
        let all = [
            &self.volumes,
            &self.sources,
            &self.crons,
            &self.imports,
            &self.clones,
            &self.grants,
            &self.storage_classes,
            &self.storage_profiles,
            &self.snapshot_classes,
            &self.csi_drivers,
            &self.cdis,
        ];
        for kind in all {
            kind.wait_until_ready().await;
        }
    }
}

fn remove_managed_fields(object: &mut DynamicObject) {
    object.metadata.managed_fields = None;
}

/// Removes all fields but identity and labels, because there may be ten thousand clones.
fn keep_identity(object: &mut DynamicObject) {
    object.metadata.managed_fields = None;
    object.metadata.annotations = None;
    object.metadata.owner_references = None;
    object.metadata.finalizers = None;
    object.data = Value::Null;
    if let Some(labels) = &mut object.metadata.labels {
        labels.retain(|label, _| [CLONED_FROM_LABEL, IMPORT_CRON_LABEL].contains(&label.as_str()));
    }
}

/// Removes all fields of a claim but identity, labels, and the strategy of the clone.
fn keep_clone(object: &mut DynamicObject) {
    let annotations = object.metadata.annotations.take();
    let strategy = annotations.and_then(|mut all| all.remove_entry(CLONE_TYPE_ANNOTATION));
    keep_identity(object);
    object.metadata.annotations = strategy.map(|entry| BTreeMap::from([entry]));
}

/// Removes the fields of a DataVolume that are not read: headers of the download may come from a Secret, and the progress
/// changes often.
fn trim_volume(object: &mut DynamicObject) {
    object.metadata.managed_fields = None;
    if let Some(annotations) = &mut object.metadata.annotations {
        annotations.retain(|key, _| key == IMAGE_SOURCE_ANNOTATION);
    }
    let field = |pointer: &str| object.data.pointer(pointer).cloned().unwrap_or_default();
    object.data = json!({
        "spec": {
            "source": {"http": {"checksum": field("/spec/source/http/checksum")}},
            "storage": field("/spec/storage"),
        },
        "status": {
            "phase": field("/status/phase"), "restartCount": field("/status/restartCount"),
            "conditions": field("/status/conditions"),
        },
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::observed::ObservedVolume;

    #[test]
    fn a_stored_volume_has_all_fields_that_are_read() {
        for checksum in [json!("sha256:00"), Value::Null] {
            let mut object: DynamicObject = serde_json::from_value(json!({
                "metadata": {"name": "image-1", "annotations": {"berth.dev/image-source": "a", "other": "b"}},
                "spec": {
                    "source": {"http": {"url": "http://a", "extraHeaders": ["secret"], "checksum": checksum}},
                    "storage": {"storageClassName": "fast", "resources": {"requests": {"storage": "4Gi"}}},
                },
                "status": {"phase": "ImportInProgress", "restartCount": 2, "conditions": [
                    {"type": "Running", "status": "False", "message": "why"},
                ]},
            }))
            .unwrap();
            let before = ObservedVolume::from_object(&object);
            trim_volume(&mut object);
            assert_eq!(ObservedVolume::from_object(&object), before);
            assert!(!object.data.to_string().contains("secret"));
        }
    }

    #[test]
    fn a_stored_clone_has_the_name_of_its_image() {
        let mut object: DynamicObject = serde_json::from_value(json!({
            "metadata": {
                "name": "web-1", "labels": {"berth.dev/cloned-from": "image-1", "app": "x"},
                "annotations": {"cdi.kubevirt.io/cloneType": "copy", "other": "x"},
            },
            "spec": {},
        }))
        .unwrap();
        keep_clone(&mut object);
        let annotations = object.metadata.annotations.unwrap_or_default();
        assert_eq!(
            annotations.into_iter().collect::<Vec<_>>(),
            [("cdi.kubevirt.io/cloneType".to_owned(), "copy".to_owned())]
        );
        let labels = object.metadata.labels.unwrap_or_default();
        assert_eq!(
            labels.into_iter().collect::<Vec<_>>(),
            [("berth.dev/cloned-from".to_owned(), "image-1".to_owned())]
        );
    }
}
