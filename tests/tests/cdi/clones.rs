//! Disks of machines are clones of a golden image, by the strategy that the InfraConfig announces.

use std::collections::{BTreeMap, BTreeSet};

use berth_tests::cdi::{Origin, Volume};
use serde_json::Value;

use crate::classes::Class;
use crate::testbed::{IMAGES, NAMESPACE, Testbed, URL};

/// Header of the table of results.
pub(crate) const HEADER: &str = "| storage class | machines | imports | announced | CDI's `cloneType` | written by the storage | reason |\n\
                                 |---|--:|--:|---|---|---|---|";
/// Label of the temporary claims and pods of CDI.
const TEMPORARY_LABEL: &str = "cdi.kubevirt.io/OwnedByUID";
/// Capacity of disks. CDI requests some sizes in bytes.
const CAPACITY: [&str; 2] = ["10Gi", "10737418240"];
/// Storage class whose image is deleted.
const DELETED: &str = "copy";

/// Creates machines with disks of a storage class. Each disk must contain the image, and must be written as announced.
/// Returns a row of the table.
pub(crate) fn disks_are_clones(bed: &Testbed, class: &Class, count: u32) -> String {
    let imports_before = bed.simulation.imports().len();
    let machines = bed.create_machines(class.name, URL, class.name, count);
    let imports = bed.simulation.imports().len().saturating_sub(imports_before);
    assert_eq!(imports, 1, "{}: imports of the image", class.name);
    let images = golden_volumes(bed, class.name);
    assert_eq!(images.len(), 1, "{}: {images:#?}", class.name);

    let image = bed.wait_for_image(URL, class.name, count);
    assert_eq!(image["strategy"], class.announced, "{image:#}");
    if let Some(reason) = class.reason {
        let found = bed.images_condition();
        assert_eq!(found["status"], "True", "{found:#}");
        assert!(is_reported(&found, reason), "{found:#}");
    }
    let disks = disks(bed, &machines);
    let expected = Volume { content: URL.to_owned(), origin: class.origin };
    for disk in &disks {
        assert_eq!(disk.volume, expected, "{}: disk {}", class.name, disk.name);
        assert_eq!(disk.clone_type, class.of_cdi, "{}: disk {}", class.name, disk.name);
    }
    let volumes: BTreeSet<&str> = disks.iter().map(|disk| disk.volume_name.as_str()).collect();
    assert_eq!(volumes.len(), machines.len(), "{}: each disk has its own volume", class.name);
    temporary_claims_are_removed(bed);
    let message = image["message"].as_str().unwrap_or_default();
    let written = count_origins(&disks);
    format!(
        "| `{}` | {count} | {imports} | {} | {} | {written} | {message} |",
        class.name, class.announced, class.of_cdi
    )
}

/// Deletes machines, then their disks, then the golden image, which no disk needs any more.
pub(crate) fn unused_image_is_deleted(bed: &mut Testbed) {
    assert_eq!(golden_volumes(bed, DELETED).len(), 1);
    let object = ["machinedeployment", DELETED, "-n", NAMESPACE];
    let delete = [&["delete"][..], &object, &["--wait=false"]].concat();
    bed.plane.kubectl(&delete).unwrap();
    let claims = || bed.list(&["persistentvolumeclaims", "-n", NAMESPACE]);
    let has_class = |claim: &Value| claim["spec"]["storageClassName"] == DELETED;
    bed.wait_until("the disks are deleted", &object, || {
        (!claims().iter().any(has_class)).then_some(())
    });
    // After a restart, the check whether an image is unused is not delayed.
    bed.restart_controller();
    let config = ["infraconfig", "default"];
    bed.wait_until("the golden image is deleted", &config, || {
        golden_volumes(bed, DELETED).is_empty().then_some(())
    });
}

/// A disk of a machine.
pub(crate) struct Disk {
    /// Name of its DataVolume.
    name: String,
    /// Name of its PersistentVolume.
    volume_name: String,
    pub(crate) volume: Volume,
    /// Strategy in CDI's annotation.
    pub(crate) clone_type: String,
}

/// Returns the disks of machines, which must be bound.
pub(crate) fn disks(bed: &Testbed, machines: &[Value]) -> Vec<Disk> {
    let by_name = |kind: &str| -> BTreeMap<String, Value> {
        let objects = bed.list(&[kind, "-n", NAMESPACE]);
        objects.into_iter().map(|one| (text(&one["metadata"]["name"]).to_owned(), one)).collect()
    };
    let (claims, volumes) = (by_name("persistentvolumeclaims"), by_name("datavolumes"));
    let templates = machines.iter().flat_map(|one| one["spec"]["dataVolumeTemplates"].as_array());
    let names = templates.flatten().map(|template| text(&template["metadata"]["name"]));
    names
        .map(|name| {
            let claim = claims.get(name).unwrap_or_else(|| panic!("{name} has no claim"));
            assert_eq!(claim["status"]["phase"], "Bound", "{claim:#}");
            let capacity = text(&claim["status"]["capacity"]["storage"]);
            assert!(CAPACITY.contains(&capacity), "{claim:#}");
            let volume_name = text(&claim["spec"]["volumeName"]).to_owned();
            let volume = bed.simulation.volume(&volume_name);
            let annotations = &volumes[name]["metadata"]["annotations"];
            Disk {
                name: name.to_owned(),
                volume: volume.unwrap_or_else(|| panic!("{volume_name} does not exist")),
                volume_name,
                clone_type: text(&annotations["cdi.kubevirt.io/cloneType"]).to_owned(),
            }
        })
        .collect()
}

/// Returns the number of disks of each origin.
pub(crate) fn count_origins(disks: &[Disk]) -> String {
    let mut counts: BTreeMap<Origin, usize> = BTreeMap::new();
    for disk in disks {
        *counts.entry(disk.volume.origin).or_default() += 1;
    }
    let counts: Vec<String> =
        counts.iter().map(|(origin, count)| format!("{count} by {origin}")).collect();
    counts.join(", ")
}

/// Returns the DataVolumes that import images into a storage class.
fn golden_volumes(bed: &Testbed, class: &str) -> Vec<Value> {
    let mut volumes = bed.list(&["datavolumes", "-n", IMAGES, "-l", "berth.dev/golden-image"]);
    volumes.retain(|one| one["spec"]["storage"]["storageClassName"] == class);
    volumes
}

/// Returns true if the condition has this reason, or if its message has the cause: other storage classes of the test also
/// lack objects, and the condition has one reason.
fn is_reported(condition: &Value, reason: &str) -> bool {
    let cause = match reason {
        "CsiDriverMissing" => "no CSIDriver has the name",
        _ => "no VolumeSnapshotClass has the driver",
    };
    condition["reason"] == reason || text(&condition["message"]).contains(cause)
}

/// Waits until the temporary claims of CDI are deleted. They have the labels of the disks, and must not be counted as users
/// of the image.
fn temporary_claims_are_removed(bed: &Testbed) {
    let temporary = ["persistentvolumeclaims", "-A", "-l", TEMPORARY_LABEL];
    bed.wait_until("the temporary claims are deleted", &temporary, || {
        bed.list(&temporary).is_empty().then_some(())
    });
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
