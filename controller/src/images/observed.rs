//! Observed objects of golden images.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::names::IMAGE_SOURCE_ANNOTATION;
use berth_kubevirt_render::images::DataVolumeState;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use serde_json::{Value, json};

use super::key::{ImageKey, image_of_name};

/// Observed objects of golden images.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ObservedImages {
    /// DataVolumes that import an image once.
    pub(crate) volumes: BTreeMap<ImageKey, ObservedVolume>,
    /// DataImportCrons, which import an image on a schedule.
    pub(crate) crons: BTreeMap<ImageKey, ObservedCron>,
    /// Field `spec` of the DataSources that Berth created.
    pub(crate) sources: BTreeMap<ImageKey, Value>,
    /// Numbers of the DataVolumes that DataImportCrons created, by the golden image.
    pub(crate) imports: BTreeMap<ImageKey, u32>,
    /// Numbers of the disks that are clones, by the name of the golden image.
    pub(crate) clones: BTreeMap<String, u32>,
    /// Names of the golden images of which CDI has copied at least one disk with two pods.
    pub(crate) copied: BTreeSet<String>,
}

/// Properties that DataVolumes and DataImportCrons have in common.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ObservedImport {
    pub(crate) uid: String,
    pub(crate) is_deleting: bool,
    /// Creation time, in seconds since the epoch.
    pub(crate) creation_time: i64,
    /// The image, without credentials.
    pub(crate) source: String,
    pub(crate) storage_class: String,
}

/// DataVolume that imports an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ObservedVolume {
    pub(crate) import: ObservedImport,
    pub(crate) state: DataVolumeState,
}

/// DataImportCron.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ObservedCron {
    pub(crate) import: ObservedImport,
    /// Those fields of `spec` that the InfraConfig may change: [`changeable_fields`].
    pub(crate) settings: Value,
    /// True if at least one import is complete.
    pub(crate) is_imported: bool,
    /// Message of CDI if the most recent import is not complete.
    pub(crate) message: Option<String>,
}

impl ObservedImages {
    /// Returns the number of disks that are clones of an image.
    pub(crate) fn clones_of(&self, key: &ImageKey) -> u32 {
        self.clones.get(&key.name).copied().unwrap_or(0)
    }
}

impl ObservedImport {
    /// `storage` is the path of the requested storage.
    fn from_object(object: &DynamicObject, storage: &str) -> Self {
        let created = object.metadata.creation_timestamp.as_ref();
        let class = object.data.pointer(&format!("{storage}/storageClassName"));
        Self {
            uid: object.uid().unwrap_or_default(),
            is_deleting: object.metadata.deletion_timestamp.is_some(),
            creation_time: created.map_or(0, |created| created.0.as_second()),
            source: object.annotations().get(IMAGE_SOURCE_ANNOTATION).cloned().unwrap_or_default(),
            storage_class: class.and_then(Value::as_str).unwrap_or_default().to_owned(),
        }
    }
}

impl ObservedVolume {
    pub(crate) fn from_object(object: &DynamicObject) -> Self {
        Self {
            import: ObservedImport::from_object(object, "/spec/storage"),
            state: DataVolumeState::from_object(&object.data),
        }
    }
}

impl ObservedCron {
    pub(crate) fn from_object(object: &DynamicObject) -> Self {
        let conditions = object.data.pointer("/status/conditions").and_then(Value::as_array);
        let mut conditions = conditions.into_iter().flatten();
        let current = conditions.find(|one| one["type"] == "UpToDate" && one["status"] != "True");
        let message = current.and_then(|one| one.get("message")?.as_str());
        Self {
            import: ObservedImport::from_object(object, "/spec/template/spec/storage"),
            settings: changeable_fields(&object.data["spec"]),
            is_imported: object.data.pointer("/status/lastImportedPVC/name").is_some(),
            message: message.filter(|message| !message.is_empty()).map(str::to_owned),
        }
    }
}

/// Returns the fields of the spec of a DataImportCron that the InfraConfig may change while the golden image stays the
/// same.
pub(crate) fn changeable_fields(spec: &Value) -> Value {
    json!([spec["schedule"], spec["garbageCollect"], spec["importsToKeep"]])
}

/// Returns the golden image of a DataVolume that a DataImportCron created.
pub(crate) fn image_of_import(object: &DynamicObject) -> Option<ImageKey> {
    let name = object.name_any();
    let image = image_of_name(&name)?;
    let namespace = object.namespace().unwrap_or_default();
    Some(ImageKey { namespace, name: image.to_owned() })
}

#[cfg(test)]
mod tests {
    use berth_api::GoldenImagePhase;

    use super::*;

    fn object(value: Value) -> DynamicObject {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_data_volume_has_the_properties_of_its_image() {
        let volume = ObservedVolume::from_object(&object(json!({
            "metadata": {
                "name": "image-1", "namespace": "images", "uid": "u", "creationTimestamp": "1970-01-01T00:01:00Z",
                "annotations": {"berth.dev/image-source": "http://images/a.img"},
            },
            "spec": {"storage": {"storageClassName": "fast", "resources": {"requests": {"storage": "4Gi"}}}},
            "status": {"phase": "Succeeded"},
        })));
        let import = ObservedImport {
            uid: "u".to_owned(),
            is_deleting: false,
            creation_time: 60,
            source: "http://images/a.img".to_owned(),
            storage_class: "fast".to_owned(),
        };
        assert_eq!(volume.import, import);
        assert_eq!(volume.state.phase, GoldenImagePhase::Ready);
        assert_eq!(volume.state.size, Some("4Gi".parse().unwrap()));
        assert_eq!(ObservedVolume::from_object(&object(json!({"metadata": {}}))).import.uid, "");
    }

    #[test]
    fn a_cron_is_imported_after_its_first_import() {
        let cron = |status: Value| {
            ObservedCron::from_object(&object(json!({
                "metadata": {"name": "image-1"},
                "spec": {"schedule": "@daily", "garbageCollect": "Outdated", "importsToKeep": 2, "template": {}},
                "status": status,
            })))
        };
        let condition =
            |status: &str| json!([{"type": "UpToDate", "status": status, "message": "No digest"}]);
        let new = cron(json!({"conditions": condition("False")}));
        assert!(!new.is_imported);
        assert_eq!(new.message.as_deref(), Some("No digest"));
        assert_eq!(new.settings, json!(["@daily", "Outdated", 2]));
        let imported =
            cron(json!({"lastImportedPVC": {"name": "a"}, "conditions": condition("True")}));
        assert!(imported.is_imported && imported.message.is_none());
    }
}
