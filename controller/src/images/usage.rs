//! Objects that depend on golden images.
//!
//! A golden image is deleted only if no such object exists according to the API server. The informer stores are not
//! sufficient: they may lack an object that was created a moment ago, and objects that Berth did not create have no
//! label of Berth.

use std::collections::BTreeSet;

use berth_api::names::CLONED_FROM_LABEL;
use serde_json::Value;

use super::key::image_of_name;

/// Label of the objects that a DataImportCron created: the name of the DataImportCron.
pub(crate) const IMPORT_CRON_LABEL: &str = "cdi.kubevirt.io/dataImportCron";
/// Annotation of the claim of a clone: the strategy that CDI has chosen, by its name in a StorageProfile.
pub(crate) const CLONE_TYPE_ANNOTATION: &str = "cdi.kubevirt.io/cloneType";
/// Annotation of the claim of a host-assisted clone: NAMESPACE/NAME of the source.
const CLONE_REQUEST_ANNOTATION: &str = "k8s.io/CloneRequest";

/// Returns the names of the golden images on which a PersistentVolumeClaim, DataVolume or VolumeSnapshot depends. The name
/// of a golden image is unique in the cluster.
pub(crate) fn images_of(object: &Value) -> BTreeSet<String> {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
    let metadata = |map: &str, key: &str| object["metadata"][map][key].as_str();
    let own = text("/metadata/name").and_then(image_of_name);
    let is_of_cron = metadata("labels", IMPORT_CRON_LABEL).is_some();
    let request = metadata("annotations", CLONE_REQUEST_ANNOTATION);
    let names = [
        metadata("labels", CLONED_FROM_LABEL),
        request.and_then(|request| request.split_once('/')).map(|(_, name)| name),
        text("/spec/dataSource/name"),
        text("/spec/dataSourceRef/name"),
        text("/spec/sourceRef/name"),
        text("/spec/source/pvc/name"),
        text("/spec/source/snapshot/name"),
        text("/spec/source/persistentVolumeClaimName"),
    ];
    let images = names.into_iter().flatten().filter_map(image_of_name);
    // The volumes and snapshots of a golden image do not depend on it.
    images.filter(|image| !(is_of_cron && own == Some(image))).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn dependent_objects_are_found() {
        let image = format!("image-{}", "0a".repeat(16));
        let import = format!("{image}-123456789abc");
        for object in [
            json!({"metadata": {"labels": {"berth.dev/cloned-from": image}}}),
            json!({"metadata": {"annotations": {"k8s.io/CloneRequest": format!("images/{import}")}}}),
            json!({"spec": {"dataSource": {"kind": "PersistentVolumeClaim", "name": image}}}),
            json!({"spec": {"dataSourceRef": {"kind": "PersistentVolumeClaim", "namespace": "images", "name": import}}}),
            json!({"spec": {"sourceRef": {"kind": "DataSource", "name": image}}}),
            json!({"spec": {"source": {"pvc": {"namespace": "images", "name": image}}}}),
            json!({"spec": {"source": {"snapshot": {"name": import}}}}),
            json!({"spec": {"source": {"persistentVolumeClaimName": image}}}),
        ] {
            assert_eq!(images_of(&object), BTreeSet::from([image.clone()]), "{object}");
        }
        for object in [
            json!({}),
            json!({"metadata": {"name": image, "labels": {"berth.dev/golden-image": image}}}),
            json!({"metadata": {"name": image}, "spec": {"dataSourceRef": {"name": "volume-import-source-1"}}}),
            json!({"spec": {"source": {"http": {"url": "http://images/a.img"}}}}),
            json!({"metadata": {"annotations": {"k8s.io/CloneRequest": 7}}, "spec": "x"}),
            // A DataImportCron keeps the import as a snapshot.
            json!({
                "metadata": {"name": import, "labels": {"cdi.kubevirt.io/dataImportCron": image}},
                "spec": {"source": {"persistentVolumeClaimName": import}},
            }),
        ] {
            assert_eq!(images_of(&object), BTreeSet::new(), "{object}");
        }
    }
}
