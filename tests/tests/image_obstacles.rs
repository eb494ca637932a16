//! Bad input and faults of golden images with a real API server: messages of the importer, quotas, StorageClasses,
//! VolumeSnapshotClasses, a deleted InfraConfig, and a cluster without CDI. Machines wait, and the conditions name the
//! reason. The real API server enforces the quota; the messages of the importer are those in CDI's source.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use berth_tests::golden_images::{
    NAMESPACE, STORAGE_CLASS, create_storage_class, define_kinds, delete_storage_class,
};
use berth_tests::image_testbed::{IMAGE, ImageTestbed};
use serde_json::{Value, json};

const LOG: &str = "image-obstacles";
const TENANT: &str = "bank";
const OTHER_TENANT: &str = "shop";
const MACHINES: usize = 3;
/// Resource of a quota that permits no DataVolume.
const QUOTA_RESOURCE: &str = "count/datavolumes.cdi.kubevirt.io";
/// Faults of an import after which CDI restarts its importer, and the message of CDI 1.66 for each (cmd/cdi-importer, and
/// `simplifyKnownMessage` of pkg/controller/util.go).
const IMPORTER_MESSAGES: [(&str, &str); 2] = [
    (
        "unreachable URL",
        "Unable to connect to http data source: HTTP request errored: Get \"http://images.example/ubuntu.img\": dial tcp: \
         lookup images.example: no such host",
    ),
    ("image larger than the volume", "DataVolume too small to contain image"),
];
/// Message of CDI 1.66 for a wrong checksum, after which it does not try again.
const CHECKSUM_MESSAGE: &str =
    "Unable to process data: checksum mismatch: expected 00, calculated ff";

/// All tests share one control plane, because starting it is the slowest step.
#[test]
fn obstacles_are_reported_and_machines_wait() {
    let mut bed = ImageTestbed::start(LOG);
    exhausted_quota_is_reported(&bed);
    messages_of_the_importer_are_reported(&bed);
    ended_imports_are_repeated(&bed);
    missing_storage_class_delays_the_import(&mut bed);
    missing_snapshot_class_is_the_reason_of_copies(&bed);
    several_default_classes_change_nothing(&bed);
    deleted_config_ends_the_wait(&bed);
    missing_cdi_is_reported(&mut bed);
}

/// A ResourceQuota forbids the DataVolume. The import is created when the quota permits it.
fn exhausted_quota_is_reported(bed: &ImageTestbed) {
    bed.plane.kubectl(&["create", "namespace", NAMESPACE]).unwrap();
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none", "namespace": NAMESPACE},
        "spec": {"hard": {QUOTA_RESOURCE: "0"}},
    });
    bed.plane.apply(&quota.to_string()).unwrap();
    bed.wait_until("the quota is enforced", |bed| {
        let quota = bed.plane.get_json(&["resourcequota", "none", "-n", NAMESPACE]);
        quota.is_ok_and(|quota| quota["status"]["used"][QUOTA_RESOURCE] == "0")
    });
    write_images(bed);
    bed.create_machines(TENANT, MACHINES);
    bed.wait_until_images_are(&["False", "ImportFailed", "exceeded quota"]);
    bed.wait_until_machines_wait(TENANT, &["exceeded quota"]);
    bed.plane.kubectl(&["delete", "resourcequota", "none", "-n", NAMESPACE]).unwrap();
    bed.wait_until("the import is created", |bed| bed.imports().len() == 1);
}

/// CDI restarts its importer after each of these faults; the DataVolume stays, also while CDI does not run.
fn messages_of_the_importer_are_reported(bed: &ImageTestbed) {
    let (name, uid) = import(bed);
    for (fault, message) in IMPORTER_MESSAGES {
        let running =
            json!({"type": "Running", "status": "False", "reason": "Error", "message": message});
        let status =
            json!({"phase": "ImportInProgress", "restartCount": 1, "conditions": [running]});
        bed.set_import_status(&name, &status);
        // URLs in messages are changed, because they may have credentials.
        let end = message.rsplit(": ").next().unwrap();
        bed.wait_until_images_are(&["False", "ImportFailed", end]);
        bed.wait_until_machines_wait(TENANT, &[end]);
        assert_machines_wait(bed, fault);
    }
    // The phase of an import in several stages, or of a CDI that was stopped before it began.
    for phase in ["Paused", "Pending"] {
        bed.set_import_status(&name, &json!({"phase": phase, "restartCount": 0, "conditions": []}));
        bed.wait_until_images_are(&["False", "ImportsPending"]);
        assert_machines_wait(bed, phase);
    }
    assert_eq!(import(bed).1, uid, "an import that CDI tries again was replaced");
}

/// An import in phase `Failed`, such as one with a wrong checksum, is deleted and created again, because CDI does not try
/// again.
fn ended_imports_are_repeated(bed: &ImageTestbed) {
    let (name, uid) = import(bed);
    let running = json!({
        "type": "Running", "status": "False", "reason": "Error", "message": CHECKSUM_MESSAGE,
    });
    bed.set_import_status(&name, &json!({"phase": "Failed", "conditions": [running]}));
    bed.wait_until_images_are(&["False", "ImportFailed", "checksum mismatch"]);
    bed.wait_until_machines_wait(TENANT, &["checksum mismatch"]);
    bed.wait_until("the import is repeated", |bed| {
        let imports = bed.imports();
        imports.len() == 1 && imports[0]["metadata"]["uid"] != *uid
    });
    assert_machines_wait(bed, "wrong checksum");
}

/// The StorageClass is deleted during the import, which makes the template of the machines invalid. The import stays,
/// although `keepLast` is 0 and the controller starts again, and continues when the class exists again.
fn missing_storage_class_delays_the_import(bed: &mut ImageTestbed) {
    let (name, uid) = import(bed);
    bed.set_import_status(&name, &json!({"phase": "ImportInProgress"}));
    delete_storage_class(&bed.plane).unwrap();
    // The machines name the template that has the class.
    let deployment = ["machinedeployment", "web", "-n", "cluster-bank"];
    bed.wait_until_condition(&deployment, "Valid", &["False", STORAGE_CLASS, "not found"]);
    let missing = format!("StorageClass {STORAGE_CLASS} does not exist");
    bed.wait_until_images_are(&["False", "ImportsPending", &missing]);
    // The new process of the controller has seen no valid template.
    bed.restart();
    bed.wait_until_images_are(&["0 golden images"]);
    // CDI completes the import that had begun.
    bed.set_import_status(&name, &json!({"phase": "Succeeded"}));
    assert_machines_wait(bed, "no StorageClass");
    create_storage_class(&bed.plane).unwrap();
    bed.wait_until_machines_exist(TENANT, MACHINES);
    bed.wait_until_images_are(&["True", "ImagesImported", "1 golden images"]);
    // An import for the class without its StorageProfile may have begun.
    bed.wait_until("no other import exists", |bed| bed.imports().len() == 1);
    assert_eq!(import(bed), (name, uid), "the import was repeated");
}

/// A StorageProfile selects smart clones: without a VolumeSnapshotClass of the driver, disks are copied, and the status has
/// the reason until the class exists.
fn missing_snapshot_class_is_the_reason_of_copies(bed: &ImageTestbed) {
    let profile = json!({"status": {"cloneStrategy": "snapshot"}}).to_string();
    let patch = ["patch", "storageprofile", STORAGE_CLASS, "--type=merge", "-p", &profile];
    bed.plane.kubectl(&patch).unwrap();
    wait_until_strategy_is(bed, "HostAssisted", "no VolumeSnapshotClass has the driver");
    let class = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass", "metadata": {"name": "rbd"},
        "driver": "rbd.csi.ceph.com", "deletionPolicy": "Delete",
    });
    bed.plane.apply(&class.to_string()).unwrap();
    wait_until_strategy_is(bed, "Snapshot", "VolumeSnapshotClass rbd");
}

/// An InfraConfig with two default classes is invalid: the condition names both, and the image is not imported again.
fn several_default_classes_change_nothing(bed: &ImageTestbed) {
    let classes = json!([
        {"name": STORAGE_CLASS, "isDefaultClass": true}, {"name": "slow", "isDefaultClass": true},
    ]);
    let spec = json!({"spec": {"infraStorageClasses": classes}}).to_string();
    let patch = ["patch", "infraconfig", "default", "--type=merge", "-p", &spec];
    bed.plane.kubectl(&patch).unwrap();
    let words = ["False", "fast, slow have isDefaultClass"];
    bed.wait_until_condition(&["infraconfig", "default"], "Ready", &words);
    let (_, uid) = import(bed);
    assert_eq!(bed.machines(TENANT).len(), MACHINES);
    let classes = json!([{"name": STORAGE_CLASS, "isDefaultClass": true}]);
    let spec = json!({"spec": {"infraStorageClasses": classes}}).to_string();
    let patch = ["patch", "infraconfig", "default", "--type=merge", "-p", &spec];
    bed.plane.kubectl(&patch).unwrap();
    bed.wait_until_condition(&["infraconfig", "default"], "Ready", &["True"]);
    assert_eq!(import(bed).1, uid, "the image was imported again");
}

/// Without an InfraConfig there are no golden images, so machines wait for none. Later, the import continues.
fn deleted_config_ends_the_wait(bed: &ImageTestbed) {
    let (name, uid) = import(bed);
    bed.set_import_status(&name, &json!({"phase": "ImportInProgress"}));
    bed.wait_until_images_are(&["False", "ImportsPending"]);
    bed.create_machines(OTHER_TENANT, 1);
    bed.wait_until_machines_wait(OTHER_TENANT, &[]);
    bed.plane.kubectl(&["delete", "infraconfig", "default"]).unwrap();
    bed.wait_until_machines_exist(OTHER_TENANT, 1);
    write_images(bed);
    bed.wait_until_images_are(&["False", "ImportsPending"]);
    bed.set_import_status(&name, &json!({"phase": "Succeeded"}));
    bed.wait_until_images_are(&["True", "1 golden images"]);
    bed.delete_machines(OTHER_TENANT);
    assert_eq!(import(bed), (name, uid), "the import was repeated");
}

/// The kinds of CDI are removed, and with them the imports. New machines wait until CDI is installed and has imported the
/// image.
fn missing_cdi_is_reported(bed: &mut ImageTestbed) {
    let crds = ["datavolumes.cdi.kubevirt.io", "datasources.cdi.kubevirt.io"];
    bed.plane.kubectl(&[&["delete", "crd"], &crds[..]].concat()).unwrap();
    bed.restart();
    bed.wait_until_images_are(&["False", "CrdMissing", "datavolumes.cdi.kubevirt.io"]);
    bed.create_machines(OTHER_TENANT, 1);
    bed.wait_until_machines_wait(OTHER_TENANT, &[]);
    define_kinds(&bed.plane).unwrap();
    bed.wait_until("the image is imported again", |bed| bed.imports().len() == 1);
    let machines = bed.machines(OTHER_TENANT);
    assert!(machines.is_empty(), "a machine was created without its image");
    let (name, _) = import(bed);
    bed.set_import_status(&name, &json!({"phase": "Succeeded"}));
    bed.wait_until_machines_exist(OTHER_TENANT, 1);
}

/// Writes the InfraConfig with the image of the machines. Unused images are deleted immediately.
fn write_images(bed: &ImageTestbed) {
    bed.write_images(&json!({
        "namespace": NAMESPACE, "keepLast": 0, "catalog": [{"image": IMAGE, "size": "4Gi"}],
    }));
}

/// Returns the name and the UID of the only import.
fn import(bed: &ImageTestbed) -> (String, String) {
    let imports = bed.imports();
    assert_eq!(imports.len(), 1, "{imports:#?}");
    let text = |field: &str| imports[0]["metadata"][field].as_str().unwrap().to_owned();
    (text("name"), text("uid"))
}

#[track_caller]
fn assert_machines_wait(bed: &ImageTestbed, obstacle: &str) {
    let machines = bed.machines(TENANT);
    assert_eq!(machines, Vec::<Value>::new(), "{obstacle}: machines were created");
}

fn wait_until_strategy_is(bed: &ImageTestbed, strategy: &str, message: &str) {
    bed.wait_until(&format!("the strategy is {strategy}"), |bed| {
        let config = bed.plane.get_json(&["infraconfig", "default"]).unwrap_or_default();
        let image = &config["status"]["goldenImages"][0];
        let has_message = image["message"].as_str().is_some_and(|text| text.contains(message));
        image["strategy"] == strategy && has_message
    });
}
