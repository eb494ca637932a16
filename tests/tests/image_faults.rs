//! Fault test of golden images and disks with a real API server: the controller is killed at random moments while an image is
//! imported, while disks are cloned, while machines are created, changed and deleted. An observer with its own watches
//! verifies that no volume in use is deleted. KubeVirt and CDI are simulated; the garbage collector is real.

#![expect(
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "tests show their progress, and fail by panicking"
)]

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use berth_tests::cluster::{ControlPlane, web_deployment};
use berth_tests::controller::Controller;
use berth_tests::disk_observer::DiskObserver;
use berth_tests::golden_images::{
    NAMESPACE, STORAGE_CLASS, create_tenant, create_user_data, start_control_plane, write_images,
};
use berth_tests::simulated::{MachineDisks, Random};
use berth_tests::wait;
use serde_json::{Value, json};

/// Name of the controller's log.
const LOG: &str = "image-faults";
const TENANTS: [&str; 2] = ["bank", "shop"];
/// Images of the catalog. The machines are changed from the first to the second.
const IMAGES: [&str; 2] = ["http://images.example/a.img", "http://images.example/b.img"];
/// Number of phases of the test; the controller is killed equally often in each of them.
const PHASES: usize = 5;
/// Time within which the observer receives the events of all kinds.
const EVENT_TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Clone, Copy, Debug)]
struct RunSize {
    /// Number of machines of all tenants together.
    machines: usize,
    /// Number of kills of the controller.
    kills: usize,
    /// Longest wait before a kill, in milliseconds.
    max_wait_millis: u64,
    /// Time limit for a phase, on an idle machine.
    timeout: Duration,
}

const SMALL: RunSize =
    RunSize { machines: 20, kills: 5, max_wait_millis: 4_000, timeout: Duration::from_secs(60) };
const LARGE: RunSize = RunSize {
    machines: 1_000,
    kills: 50,
    max_wait_millis: 8_000,
    timeout: Duration::from_secs(600),
};

struct Bed {
    // On drop, the parts are stopped in the order of the fields.
    controller: Controller,
    observer: DiskObserver,
    _disks: MachineDisks,
    plane: ControlPlane,
    random: Random,
    size: RunSize,
    kills: usize,
}

#[test]
fn killed_controller_imports_once_and_deletes_no_volume_in_use() {
    let size = if std::env::var_os("BERTH_FAULTS").is_some() { LARGE } else { SMALL };
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let seed = u64::from(now.subsec_nanos());
    eprintln!("{size:?}, seed {seed}");
    let mut bed = Bed::start(size, seed);
    bed.machines_share_one_import();
    bed.disks_are_added_and_removed();
    bed.machines_change_to_another_image();
    bed.deleted_machines_leave_no_volumes();
    assert!(bed.kills >= size.kills, "{} kills", bed.kills);
}

impl Bed {
    fn start(size: RunSize, seed: u64) -> Self {
        let plane = start_control_plane().unwrap();
        // The controller reads from this object whether KubeVirt attaches disks to running machines.
        plane.install_kubevirt_crds(&["kubevirts.kubevirt.io"]).unwrap();
        plane.kubectl(&["create", "namespace", "kubevirt"]).unwrap();
        let kubevirt = json!({
            "apiVersion": "kubevirt.io/v1", "kind": "KubeVirt",
            "metadata": {"name": "kubevirt", "namespace": "kubevirt"}, "spec": {},
        });
        plane.apply(&kubevirt.to_string()).unwrap();
        let status = json!({"status": {"phase": "Deployed", "observedKubeVirtVersion": "v1.9.0"}});
        set_status(&plane, "/apis/kubevirt.io/v1/namespaces/kubevirt/kubevirts/kubevirt", &status);
        plane.kubectl(&["create", "namespace", NAMESPACE]).unwrap();
        let entry = |image: &&str| json!({"image": image, "size": "4Gi"});
        let catalog: Vec<Value> = IMAGES.iter().map(entry).collect();
        let images = json!({"namespace": NAMESPACE, "keepLast": 0, "catalog": catalog});
        write_images(&plane, &images).unwrap();
        let observer = DiskObserver::start(&plane.kubeconfig());
        let disks = MachineDisks::start(&plane.kubeconfig(), seed).unwrap();
        let controller = Controller::start(&plane, LOG, &[]).unwrap();
        let random = Random::new(seed);
        let bed = Self { controller, observer, _disks: disks, plane, random, size, kills: 0 };
        for tenant in TENANTS {
            create_tenant(&bed.plane, tenant).unwrap();
            bed.wait_until("the namespace of the tenant exists", |bed| {
                bed.plane.get_json(&["namespace", &namespace(tenant)]).is_ok()
            });
            create_user_data(&bed.plane, tenant).unwrap();
        }
        bed
    }

    /// All machines of both tenants are created at the same time, and are clones of one import.
    fn machines_share_one_import(&mut self) {
        self.apply_deployments(IMAGES[0], &[]);
        self.kill_controller();
        self.wait_until_complete(&[]);
        let imports = self.observer.imports();
        assert_eq!(imports.values().collect::<Vec<_>>(), [&1], "{imports:?}");
        self.end_phase("machines are created");
    }

    /// Hotpluggable disks are added to all machines and removed from them. A guest uses a removed disk for a random time.
    fn disks_are_added_and_removed(&mut self) {
        self.apply_deployments(IMAGES[0], &["a", "b"]);
        self.kill_controller();
        self.wait_until_complete(&["a", "b"]);
        self.end_phase("disks are added");
        self.apply_deployments(IMAGES[0], &["b"]);
        self.kill_controller();
        self.wait_until_complete(&["b"]);
        self.end_phase("disks are removed");
    }

    /// The machines are replaced by machines of another image, and the first image is deleted.
    fn machines_change_to_another_image(&mut self) {
        let first = self.observer.imports();
        self.apply_deployments(IMAGES[1], &["b"]);
        self.kill_controller();
        self.wait_until_complete(&["b"]);
        let imports = self.observer.imports();
        assert_eq!(imports.values().collect::<Vec<_>>(), [&1, &1], "{imports:?}");
        let unused: BTreeSet<&str> = first.keys().map(String::as_str).collect();
        self.wait_until_images_are_deleted(&unused);
        self.end_phase("machines are replaced");
    }

    fn deleted_machines_leave_no_volumes(&mut self) {
        for tenant in TENANTS {
            let namespace = namespace(tenant);
            let delete = ["delete", "machinedeployment", "web", "-n", &namespace, "--wait=false"];
            self.plane.kubectl(&delete).unwrap();
        }
        self.kill_controller();
        for kind in ["machinedeployments", "virtualmachines"] {
            self.wait_until(&format!("no {kind} remain"), |bed| bed.list(&[kind, "-A"]).is_empty());
        }
        let imports = self.observer.imports();
        self.wait_until_images_are_deleted(&imports.keys().map(String::as_str).collect());
        for kind in ["datavolumes", "persistentvolumeclaims", "datasources"] {
            self.wait_until(&format!("no {kind} remain"), |bed| bed.list(&[kind, "-A"]).is_empty());
        }
        self.end_phase("machines are deleted");
    }

    /// Writes the MachineDeployments of all tenants, with hotpluggable disks of these names.
    fn apply_deployments(&self, image: &str, disks: &[&str]) {
        let disk = |name: &&str| json!({"name": name, "hotpluggable": true, "size": "1Gi", "storageClassName": STORAGE_CLASS});
        let disks: Vec<Value> = disks.iter().map(disk).collect();
        for tenant in TENANTS {
            let replicas = u32::try_from(self.size.machines / TENANTS.len()).unwrap();
            let mut deployment = web_deployment(&namespace(tenant), replicas);
            let spec = &mut deployment["spec"];
            spec["strategy"] =
                json!({"rollingUpdate": {"maxSurge": "50%", "maxUnavailable": "50%"}});
            let template = &mut spec["template"]["spec"]["providerSpec"]["value"]["cloudProviderSpec"]
                ["virtualMachine"]["template"];
            template["primaryDisk"]["osImage"] = image.into();
            template["secondaryDisks"] = json!(disks);
            self.plane.apply(&deployment.to_string()).unwrap();
        }
    }

    /// Kills the controller at random moments, and starts it again. The new controller has the same identity, so it acquires
    /// the Lease at once.
    fn kill_controller(&mut self) {
        for _ in 0..self.size.kills.div_ceil(PHASES) {
            std::thread::sleep(Duration::from_millis(self.random.below(self.size.max_wait_millis)));
            self.controller.running.stop();
            self.kills += 1;
            self.controller = Controller::start(&self.plane, LOG, &[]).unwrap();
        }
    }

    /// Waits until all machines run with the current template, and exactly the volumes of these machines exist.
    fn wait_until_complete(&self, disks: &[&str]) {
        let count = self.size.machines / TENANTS.len();
        for tenant in TENANTS {
            let namespace = namespace(tenant);
            self.wait_until(&format!("{count} machines of {tenant} are available"), |bed| {
                let deployment = ["machinedeployment", "web", "-n", namespace.as_str()];
                let deployment = bed.plane.get_json(&deployment).unwrap_or_default();
                let status = &deployment["status"];
                status["observedGeneration"] == deployment["metadata"]["generation"]
                    && ["replicas", "updatedReplicas", "availableReplicas"]
                        .iter()
                        .all(|field| status[field] == json!(count))
            });
            let expected = || -> BTreeSet<String> {
                let machines = self.names("virtualmachines", &namespace);
                let of_machine = |machine: &String| -> Vec<String> {
                    let more = disks.iter().map(|disk| format!("{machine}-disk-{disk}"));
                    more.chain([machine.clone()]).collect()
                };
                machines.iter().flat_map(of_machine).collect()
            };
            for kind in ["datavolumes", "persistentvolumeclaims"] {
                self.wait_until(&format!("exactly the {kind} of the machines exist"), |bed| {
                    let names = bed.names(kind, &namespace);
                    names.len() == count * (1 + disks.len()) && names == expected()
                });
            }
        }
    }

    /// Waits until golden images are deleted. A controller that has found an image in use looks for its users again after five
    /// minutes, so the controller is killed when they do not exist any more.
    fn wait_until_images_are_deleted(&mut self, images: &BTreeSet<&str>) {
        self.wait_until("the images have no clones", |bed| {
            let clones = bed.list(&["persistentvolumeclaims", "-A", "-l", "berth.dev/cloned-from"]);
            let image =
                |claim: &Value| claim["metadata"]["labels"]["berth.dev/cloned-from"].clone();
            clones.iter().all(|claim| !images.contains(image(claim).as_str().unwrap_or_default()))
        });
        self.controller.running.stop();
        self.controller = Controller::start(&self.plane, LOG, &[]).unwrap();
        self.wait_until("the images are deleted", |bed| {
            let remaining = bed.names("datavolumes", NAMESPACE);
            remaining.iter().all(|name| !images.contains(name.as_str()))
        });
    }

    /// Fails if a rule was violated until now.
    fn end_phase(&self, phase: &str) {
        eprintln!("{phase}: {} kills", self.kills);
        let kept = wait::wait_until("no rule is violated", EVENT_TIMEOUT, || {
            let found = self.observer.violations();
            if found.is_empty() { Ok(()) } else { Err(found.join("\n").into()) }
        });
        kept.unwrap_or_else(|error| panic!("{phase}: {error}\n{}", self.plane.log_tail(LOG)));
    }

    fn list(&self, arguments: &[&str]) -> Vec<Value> {
        let mut list = self.plane.get_json(arguments).unwrap_or_default();
        list["items"].as_array_mut().map(std::mem::take).unwrap_or_default()
    }

    fn names(&self, kind: &str, namespace: &str) -> BTreeSet<String> {
        let name = |one: &Value| one["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        self.list(&[kind, "-n", namespace]).iter().map(name).collect()
    }

    #[track_caller]
    fn wait_until(&self, what: &str, is_reached: impl Fn(&Self) -> bool) {
        self.plane
            .wait_until(what, self.size.timeout, |_| is_reached(self).then_some(()))
            .unwrap_or_else(|error| {
                let found = self.observer.violations();
                panic!("{error}\n{found:#?}\n{}", self.plane.log_tail(LOG))
            });
    }
}

fn namespace(tenant: &str) -> String {
    format!("cluster-{tenant}")
}

/// Merges a status into the object at this path.
fn set_status(plane: &ControlPlane, path: &str, status: &Value) {
    let path = format!("{path}/status");
    let (merge, body) = ("application/merge-patch+json", status.to_string());
    match plane.api_client().send_body("PATCH", &path, merge, &body) {
        Some(Ok(_)) => {}
        Some(Err(refusal)) => panic!("{path}: {refusal}"),
        None => panic!("{path}: no response"),
    }
}
