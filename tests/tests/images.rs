//! Tests of golden images with a real API server, and with the permissions that `deploy/` grants. CDI does not run: the test
//! sets the phases of DataVolumes, and creates the claims of disks with the labels that CDI copies.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests read files, and fail by panicking"
)]

use std::cell::Cell;
use std::time::Duration;

use berth_tests::golden_images::NAMESPACE as SHARED;
use berth_tests::image_testbed::{IMAGE as URL, ImageTestbed as Bed};
use serde_json::{Value, json};

const LOG: &str = "images";
const MACHINES: usize = 30;
/// User of the controller.
const USER: &str = "system:serviceaccount:berth-system:berth-controller";
/// Maximum number of additional requests with golden images, for any number of machines.
const ADDITIONAL_REQUESTS: usize = 20;

/// All tests share one control plane, because starting it is the slowest step.
#[test]
fn golden_images_are_imported_and_deleted() {
    let mut bed = Bed::start(LOG);
    let plain = requests_without_golden_images(&bed);
    refused_imports_are_reported(&bed);
    machines_share_one_import(&mut bed, plain);
    images_in_use_are_kept(&mut bed);
    permissions_end_with_the_tenant(&bed);
    schedules_can_be_changed(&bed);
}

/// Waits until the controller sends no reads and creates, for example because it has just listed all kinds.
fn wait_until_idle(bed: &Bed) {
    let last = Cell::new(request_count(bed));
    bed.wait_until("the controller has sent no request for five seconds", |bed| {
        std::thread::sleep(Duration::from_secs(5));
        let current = request_count(bed);
        last.replace(current) == current
    });
}

/// Returns the number of reads and creates that the controller has sent. The number of patches depends on the speed of
/// the machine.
fn request_count(bed: &Bed) -> usize {
    let log = std::fs::read_to_string(bed.plane.folder().join("audit.log")).unwrap();
    let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    events
        .filter(|event| event["user"]["username"] == USER)
        .filter(|event| ["get", "list", "create"].iter().any(|verb| event["verb"] == *verb))
        // Requests that check whether a kind is installed have no `objectRef`, and the controller repeats them.
        .filter(|event| event["objectRef"].is_object())
        .filter(|event| event["objectRef"]["resource"] != "leases")
        .count()
}

/// Returns the number of requests for the machines of a MachineDeployment whose disks are not clones.
fn requests_without_golden_images(bed: &Bed) -> usize {
    wait_until_idle(bed);
    let before = request_count(bed);
    bed.create_machines("bank", MACHINES);
    bed.wait_until_machines_exist("bank", MACHINES);
    let count = request_count(bed) - before;
    bed.delete_machines("bank");
    count
}

fn refused_imports_are_reported(bed: &Bed) {
    bed.write_images(&json!({
        "namespace": SHARED, "keepLast": 0, "catalog": [{"image": URL, "size": "4Gi"}],
    }));
    bed.create_machines("bank", MACHINES);
    bed.wait_until_images_are(&["False", "ImportFailed", "not found"]);
    bed.wait_until_machines_wait("bank", &["not found"]);
    bed.plane.kubectl(&["create", "namespace", SHARED]).unwrap();
    bed.wait_until("the import is created", |bed| bed.imports().len() == 1);
    bed.wait_until_images_are(&["False", "ImportsPending"]);
}

fn machines_share_one_import(bed: &mut Bed, plain_requests: usize) {
    let import = bed.imports().remove(0);
    let name = import["metadata"]["name"].as_str().unwrap().to_owned();
    assert_eq!(import["spec"]["source"]["http"]["url"], URL);
    assert_eq!(import["spec"]["storage"]["resources"]["requests"]["storage"], "4Gi");
    let source = bed.plane.get_json(&["datasource", &name, "-n", SHARED]);
    assert!(source.is_ok_and(|source| source["spec"]["source"]["pvc"]["name"] == name.as_str()));
    // CDI restarts its importer, and the message is in both conditions.
    let message = "Unable to process data: checksum mismatch";
    let running =
        json!({"type": "Running", "status": "False", "reason": "Error", "message": message});
    bed.set_import_status(
        &name,
        &json!({"phase": "ImportInProgress", "restartCount": 1, "conditions": [running]}),
    );
    bed.wait_until_images_are(&["False", "ImportFailed", message]);
    bed.wait_until_machines_wait("bank", &[message]);
    bed.restart();
    bed.wait_until_machines_wait("bank", &[message]);
    assert_eq!(bed.machines("bank").len(), 0);

    wait_until_idle(bed);
    let before = request_count(bed);
    bed.set_import_status(&name, &json!({"phase": "Succeeded", "conditions": []}));
    bed.wait_until_machines_exist("bank", MACHINES);
    let requests = request_count(bed) - before;
    assert!(
        requests <= plain_requests + ADDITIONAL_REQUESTS,
        "golden images cost too many requests: {requests} for {MACHINES} machines, {plain_requests} without golden images"
    );
    // Another tenant uses the same import, also while the controller is killed again and again.
    bed.create_machines("shop", MACHINES);
    for _ in 0..3 {
        bed.restart();
        std::thread::sleep(Duration::from_secs(2));
    }
    bed.wait_until_machines_exist("shop", MACHINES);
    for machine in [bed.machines("bank"), bed.machines("shop")].concat() {
        let template = &machine["spec"]["dataVolumeTemplates"][0];
        let expected = json!({"kind": "DataSource", "namespace": SHARED, "name": name});
        assert_eq!(template["spec"]["sourceRef"], expected);
        assert_eq!(template["metadata"]["labels"]["berth.dev/cloned-from"], name.as_str());
    }
    let imports = bed.imports();
    assert_eq!(imports.len(), 1, "{imports:#?}");
    assert_eq!(imports[0]["metadata"]["uid"], import["metadata"]["uid"]);
    let grants = bed.list(&["rolebindings", "-n", SHARED, "-l", "berth.dev/image-grant"]);
    assert_eq!(grants.len(), 2, "{grants:#?}");
    bed.wait_until_images_are(&["True", "ImagesImported", "1 golden images"]);
    let config = bed.plane.get_json(&["infraconfig", "default"]).unwrap();
    let images = &config["status"]["goldenImages"];
    assert_eq!(images[0]["strategy"], "CsiClone", "{images:#}");
    assert_eq!(images[0]["message"], "CSI clone: the StorageProfile selects it");
    // A removed DataSource is created again.
    bed.plane.kubectl(&["delete", "datasource", &name, "-n", SHARED]).unwrap();
    bed.wait_until("the DataSource is created again", |bed| {
        bed.plane.get_json(&["datasource", &name, "-n", SHARED]).is_ok()
    });
}

fn claim(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
            "resources": {"requests": {"storage": "10Gi"}},
        },
    })
}

fn images_in_use_are_kept(bed: &mut Bed) {
    let image = bed.imports()[0]["metadata"]["name"].as_str().unwrap().to_owned();
    let template = bed.machines("bank")[0]["spec"]["dataVolumeTemplates"][0].clone();
    let mut disk = claim("cluster-bank", "disk");
    disk["metadata"]["labels"] = template["metadata"]["labels"].clone();
    bed.plane.apply(&disk.to_string()).unwrap();
    for tenant in ["bank", "shop"] {
        bed.delete_machines(tenant);
    }
    // The disk stays, for example because an administrator retains it.
    bed.wait_until("the clone is counted", |bed| {
        let config = bed.plane.get_json(&["infraconfig", "default"]).unwrap_or_default();
        config["status"]["goldenImages"][0]["users"] == 1
    });
    bed.restart();
    std::thread::sleep(Duration::from_secs(10));
    assert_eq!(bed.imports().len(), 1);
    // A volume that Berth did not create depends on the image. No store of the controller contains it.
    let mut copy = claim(SHARED, "copy");
    copy["spec"]["dataSource"] = json!({"kind": "PersistentVolumeClaim", "name": image});
    bed.plane.apply(&copy.to_string()).unwrap();
    bed.plane.kubectl(&["delete", "pvc", "disk", "-n", "cluster-bank"]).unwrap();
    bed.wait_until("the dependent volume is found", |bed| {
        bed.plane.log(LOG).is_ok_and(|log| log.contains("an unused golden image is not deleted"))
    });
    assert_eq!(bed.imports().len(), 1);
    bed.plane.kubectl(&["delete", "pvc", "copy", "-n", SHARED]).unwrap();
    // After a restart, the check is not delayed.
    bed.restart();
    bed.wait_until("the unused image is deleted", |bed| bed.imports().is_empty());
    bed.wait_until("no DataSource remains", |bed| {
        bed.list(&["datasources", "-n", SHARED]).is_empty()
    });
    bed.wait_until_images_are(&["True", "0 golden images"]);
}

fn permissions_end_with_the_tenant(bed: &Bed) {
    bed.plane.kubectl(&["delete", "tenantcluster", "shop", "--wait=false"]).unwrap();
    bed.wait_until("only the permission of the other tenant remains", |bed| {
        let grants = bed.list(&["rolebindings", "-n", SHARED, "-l", "berth.dev/image-grant"]);
        grants.len() == 1 && grants[0]["metadata"]["name"] == "berth-image-clone-bank"
    });
}

fn schedules_can_be_changed(bed: &Bed) {
    let write = |schedule: &str| {
        let entry = json!({
            "image": "docker://registry/rhel:9", "size": "4Gi", "preload": true, "schedule": schedule,
        });
        bed.write_images(&json!({"namespace": SHARED, "catalog": [entry]}));
    };
    let has_schedule = |bed: &Bed, schedule: &str| {
        let crons = bed.list(&["dataimportcrons", "-n", SHARED]);
        crons.len() == 1 && crons[0]["spec"]["schedule"] == schedule
    };
    for schedule in ["@daily", "@weekly"] {
        write(schedule);
        bed.wait_until(schedule, |bed| has_schedule(bed, schedule));
    }
    bed.wait_until_images_are(&["False", "ImportsPending"]);
}
