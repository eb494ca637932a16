//! Tests of golden images with a real API server, and with the permissions that `deploy/` grants. CDI does not run: the test
//! sets the phases of DataVolumes, and creates the claims of disks with the labels that CDI copies.

#![expect(
    clippy::disallowed_methods,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests read files, and fail by panicking"
)]

use std::cell::Cell;
use std::time::Duration;

use berth_tests::cluster::{ControlPlane, condition, web_deployment};
use berth_tests::controller::Controller;
use berth_tests::golden_images::{self, NAMESPACE as SHARED};
use serde_json::{Value, json};

const TIMEOUT: Duration = Duration::from_secs(60);
const LOG: &str = "images";
const URL: &str = "http://images.example/ubuntu.img";
const MACHINES: usize = 30;
/// User of the controller.
const USER: &str = "system:serviceaccount:berth-system:berth-controller";
/// Maximum number of additional requests with golden images, for any number of machines.
const ADDITIONAL_REQUESTS: usize = 20;

/// Control plane, and the controller, which tests restart.
struct Bed {
    plane: ControlPlane,
    controller: Option<Controller>,
}

/// All tests share one control plane, because starting it is the slowest step.
#[test]
fn golden_images_are_imported_and_deleted() {
    let mut bed = Bed::start();
    let plain = bed.requests_without_golden_images();
    refused_imports_are_reported(&bed);
    machines_share_one_import(&mut bed, plain);
    images_in_use_are_kept(&mut bed);
    permissions_end_with_the_tenant(&bed);
    schedules_can_be_changed(&bed);
}

impl Bed {
    fn start() -> Self {
        let plane = golden_images::start_control_plane().unwrap();
        let mut bed = Self { plane, controller: None };
        bed.write_images(&Value::Null);
        bed.restart();
        for name in ["bank", "shop"] {
            bed.create_tenant(name);
        }
        bed
    }

    /// Kills the controller, if it runs, and starts it again.
    fn restart(&mut self) {
        drop(self.controller.take());
        self.controller = Some(Controller::start(&self.plane, LOG, &[]).unwrap());
    }

    /// Writes the InfraConfig with these images.
    fn write_images(&self, images: &Value) {
        golden_images::write_images(&self.plane, images).unwrap();
    }

    fn create_tenant(&self, name: &str) {
        golden_images::create_tenant(&self.plane, name).unwrap();
        let namespace = format!("cluster-{name}");
        self.wait_until("the namespace of the tenant exists", |bed| {
            bed.plane.get_json(&["namespace", &namespace]).is_ok()
        });
        golden_images::create_user_data(&self.plane, name).unwrap();
    }

    fn create_machines(&self, tenant: &str) {
        let namespace = format!("cluster-{tenant}");
        let deployment = web_deployment(&namespace, u32::try_from(MACHINES).unwrap());
        self.plane.apply(&deployment.to_string()).unwrap();
    }

    fn delete_machines(&self, tenant: &str) {
        let namespace = format!("cluster-{tenant}");
        let delete = ["delete", "machinedeployment", "web", "-n", &namespace, "--wait=false"];
        self.plane.kubectl(&delete).unwrap();
        self.wait_until("the machines are deleted", |bed| bed.machines(tenant).is_empty());
        self.wait_until("the MachineDeployment is deleted", |bed| {
            bed.plane.get_json(&["machinedeployment", "web", "-n", &namespace]).is_err()
        });
    }

    fn machines(&self, tenant: &str) -> Vec<Value> {
        self.list(&["virtualmachines", "-n", &format!("cluster-{tenant}"), "-l", "md=web"])
    }

    fn wait_until_machines_exist(&self, tenant: &str) {
        self.wait_until(&format!("all machines of {tenant} exist"), |bed| {
            let secrets = bed.list(&["secrets", "-n", &format!("cluster-{tenant}")]);
            let is_user_data = |one: &&Value| {
                one["metadata"]["name"].as_str().is_some_and(|name| name.starts_with("userdata-"))
            };
            bed.machines(tenant).len() == MACHINES
                && secrets.iter().filter(is_user_data).count() == MACHINES
        });
    }

    fn list(&self, arguments: &[&str]) -> Vec<Value> {
        let list = self.plane.get_json(arguments).unwrap_or_default();
        list["items"].as_array().cloned().unwrap_or_default()
    }

    /// Returns the DataVolumes of golden images.
    fn imports(&self) -> Vec<Value> {
        self.list(&["datavolumes", "-n", SHARED, "-l", "berth.dev/golden-image"])
    }

    fn set_import_status(&self, name: &str, status: &Value) {
        let patch = json!({"status": status}).to_string();
        let arguments = ["patch", "datavolume", name, "-n", SHARED, "--type=merge", "-p", &patch];
        self.plane.kubectl(&arguments).unwrap();
    }

    fn wait_until(&self, what: &str, is_reached: impl Fn(&Self) -> bool) {
        self.plane
            .wait_until(what, TIMEOUT, |_| is_reached(self).then_some(()))
            .unwrap_or_else(|error| panic!("{error}: {}", self.plane.log_tail(LOG)));
    }

    /// Waits until a condition of an object has these words in its status, reason and message.
    fn wait_until_condition(&self, object: &[&str], type_: &str, words: &[&str]) {
        let mut last = Value::Null;
        let reached = self.plane.wait_until(&words.join(" "), TIMEOUT, |plane| {
            last = plane.get_json(object).unwrap_or_default();
            let one = condition(&last, type_);
            let text = format!("{} {} {}", one["status"], one["reason"], one["message"]);
            words.iter().all(|word| text.contains(word)).then_some(())
        });
        reached.unwrap_or_else(|error| {
            panic!("{error}: {:#}\n{}", last["status"], self.plane.log_tail(LOG))
        });
    }

    /// Waits until the condition GoldenImagesReady has these words.
    fn wait_until_images_are(&self, words: &[&str]) {
        self.wait_until_condition(&["infraconfig", "default"], "GoldenImagesReady", words);
    }

    /// Waits until the MachineDeployment reports that its machines wait for an image, with these words.
    fn wait_until_machines_wait(&self, tenant: &str, words: &[&str]) {
        let namespace = format!("cluster-{tenant}");
        let deployment = ["machinedeployment", "web", "-n", namespace.as_str()];
        let words = [&["WaitingForImage"][..], words].concat();
        self.wait_until_condition(&deployment, "Progressing", &words);
    }

    /// Waits until the controller sends no reads and creates, for example because it has just listed all kinds.
    fn wait_until_idle(&self) {
        let last = Cell::new(self.request_count());
        self.wait_until("the controller has sent no request for five seconds", |bed| {
            std::thread::sleep(Duration::from_secs(5));
            let current = bed.request_count();
            last.replace(current) == current
        });
    }

    /// Returns the number of reads and creates that the controller has sent. The number of patches depends on the speed of
    /// the machine.
    fn request_count(&self) -> usize {
        let log = std::fs::read_to_string(self.plane.folder().join("audit.log")).unwrap();
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
    fn requests_without_golden_images(&self) -> usize {
        self.wait_until_idle();
        let before = self.request_count();
        self.create_machines("bank");
        self.wait_until_machines_exist("bank");
        let count = self.request_count() - before;
        self.delete_machines("bank");
        count
    }
}

fn refused_imports_are_reported(bed: &Bed) {
    bed.write_images(&json!({
        "namespace": SHARED, "keepLast": 0, "catalog": [{"image": URL, "size": "4Gi"}],
    }));
    bed.create_machines("bank");
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

    bed.wait_until_idle();
    let before = bed.request_count();
    bed.set_import_status(&name, &json!({"phase": "Succeeded", "conditions": []}));
    bed.wait_until_machines_exist("bank");
    let requests = bed.request_count() - before;
    assert!(
        requests <= plain_requests + ADDITIONAL_REQUESTS,
        "golden images cost too many requests: {requests} for {MACHINES} machines, {plain_requests} without golden images"
    );
    // Another tenant uses the same import, also while the controller is killed again and again.
    bed.create_machines("shop");
    for _ in 0..3 {
        bed.restart();
        std::thread::sleep(Duration::from_secs(2));
    }
    bed.wait_until_machines_exist("shop");
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
