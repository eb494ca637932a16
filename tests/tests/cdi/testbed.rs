//! Control plane with CDI, the controller, a tenant, and the simulation of hosts and storage.

use std::time::Duration;

use berth_tests::cdi::{Assets, Cdi, Simulation};
use berth_tests::cluster::{ControlPlane, ControlPlaneOptions, condition, web_deployment};
use berth_tests::controller::Controller;
use berth_tests::tenant_clusters::TENANT_ADDRESS;
use serde_json::{Value, json};

use crate::classes::CLASSES;

/// Time limit for a change to reach all programs, on an idle machine.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Namespace of golden images.
pub(crate) const IMAGES: &str = "images";
/// Namespace of the tenant.
pub(crate) const NAMESPACE: &str = "cluster-bank";
/// Image on a web server.
pub(crate) const URL: &str = "http://images.example/ubuntu.img";
/// Image in a registry, which is imported on a schedule.
pub(crate) const SCHEDULED: &str = "docker://registry.example/rhel:9";
/// Names of the logs of the started programs.
const LOGS: [&str; 4] = [LOG, "cdi-controller", "cdi-apiserver", "kube-controller-manager"];
const LOG: &str = "berth-controller";

pub(crate) struct Testbed {
    // On drop, the programs are stopped in the order of the fields.
    controller: Option<Controller>,
    pub(crate) simulation: Simulation,
    _cdi: Cdi,
    pub(crate) plane: ControlPlane,
    pub(crate) cdi_version: String,
}

impl Testbed {
    pub(crate) fn start() -> Self {
        let assets = Assets::find().unwrap_or_else(|error| panic!("{error:#}"));
        let plane = ControlPlane::start(ControlPlaneOptions {
            has_controllers: true,
            // CDI needs the CA of front proxies, and the Nodes have no kubelets.
            has_kubevirt: true,
            server_address: Some(TENANT_ADDRESS),
            ..ControlPlaneOptions::default()
        })
        .unwrap();
        plane.install_machine_kinds().unwrap();
        let group = "snapshot.storage.k8s.io";
        for (kind, plural, scope) in [
            ("VolumeSnapshot", "volumesnapshots", "Namespaced"),
            ("VolumeSnapshotClass", "volumesnapshotclasses", "Cluster"),
            ("VolumeSnapshotContent", "volumesnapshotcontents", "Cluster"),
        ] {
            plane.define_kind_in_scope(group, "v1", kind, plural, scope).unwrap();
        }
        let cdi = Cdi::start(&plane, &assets).unwrap_or_else(|error| panic!("{error:#}"));
        plane.deploy(&["base/rbac-controller.yaml"]).unwrap();
        for host in ["host-a", "host-b"] {
            plane.create_node(host).unwrap();
        }
        plane.kubectl(&["create", "namespace", IMAGES]).unwrap();
        let simulation = Simulation::start(&plane).unwrap();
        let mut bed = Self {
            controller: None,
            simulation,
            _cdi: cdi,
            plane,
            cdi_version: assets.version().to_owned(),
        };
        bed.create_classes();
        bed.create_config();
        bed.restart_controller();
        bed.create_tenant();
        bed
    }

    /// Creates the storage classes, and writes their StorageProfiles when CDI has created them.
    fn create_classes(&self) {
        for class in &CLASSES {
            for object in class.objects() {
                self.plane.apply(&object.to_string()).unwrap();
            }
        }
        for class in &CLASSES {
            let profile = ["storageprofile", class.name];
            self.wait_until(
                &format!("CDI creates StorageProfile {}", class.name),
                &profile,
                || self.plane.get_json(&profile).ok(),
            );
            self.plane.apply(&class.profile().to_string()).unwrap();
            self.wait_until("CDI reads the StorageProfile", &profile, || {
                let profile = self.plane.get_json(&profile).ok()?;
                profile["status"]["claimPropertySets"][0]["volumeMode"].is_string().then_some(())
            });
        }
    }

    fn create_config(&self) {
        let classes: Vec<Value> = CLASSES.iter().map(|class| json!({"name": class.name})).collect();
        let catalog = json!([
            {"image": URL, "size": "4Gi"},
            // No time at which the test may run.
            {"image": SCHEDULED, "size": "4Gi", "schedule": "0 0 29 2 *"},
        ]);
        let config = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "InfraConfig", "metadata": {"name": "default"},
            "spec": {
                "infraStorageClasses": classes,
                "images": {"namespace": IMAGES, "keepLast": 0, "catalog": catalog},
            },
        });
        self.plane.apply(&config.to_string()).unwrap();
    }

    /// Kills the controller, if it runs, and starts it again.
    pub(crate) fn restart_controller(&mut self) {
        drop(self.controller.take());
        self.controller = Some(Controller::start(&self.plane, LOG, &[]).unwrap());
    }

    fn create_tenant(&self) {
        let tenant = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": "bank"},
            "spec": {"userDataSecretRef": {"name": "user-data"}},
        });
        self.plane.apply(&tenant.to_string()).unwrap();
        let namespace = ["namespace", NAMESPACE];
        self.wait_until("the namespace of the tenant exists", &namespace, || {
            self.plane.get_json(&namespace).ok()
        });
        let user_data = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "user-data", "namespace": NAMESPACE},
            "stringData": {"userdata": "#cloud-config\nhostname: x\n"},
        });
        self.plane.apply(&user_data.to_string()).unwrap();
    }

    /// Creates a MachineDeployment whose disks have this image and storage class, and waits until its VMs run. Returns the
    /// VirtualMachines.
    pub(crate) fn create_machines(
        &self,
        name: &str,
        image: &str,
        class: &str,
        count: u32,
    ) -> Vec<Value> {
        let mut deployment = web_deployment(NAMESPACE, count);
        deployment["metadata"]["name"] = name.into();
        deployment["spec"]["selector"]["matchLabels"]["name"] = name.into();
        let template = &mut deployment["spec"]["template"];
        template["metadata"]["labels"]["name"] = name.into();
        let provider = &mut template["spec"]["providerSpec"]["value"]["cloudProviderSpec"];
        provider["virtualMachine"]["template"]["primaryDisk"] =
            json!({"osImage": image, "size": "10Gi", "storageClassName": class});
        self.plane.apply(&deployment.to_string()).unwrap();
        let label = format!("md={name}");
        let list = |kind: &str| self.list(&[kind, "-n", NAMESPACE, "-l", &label]);
        let object = ["machinedeployment", name, "-n", NAMESPACE];
        self.wait_until(&format!("the VMs of {name} run"), &object, || {
            (list("virtualmachineinstances").len() == usize::try_from(count).ok()?).then_some(())
        });
        let machines = list("virtualmachines");
        assert_eq!(machines.len(), usize::try_from(count).unwrap(), "{name}");
        machines
    }

    /// Returns the entry of a golden image in the status of the InfraConfig, when its import is ready and it has this number
    /// of users.
    pub(crate) fn wait_for_image(&self, source: &str, class: &str, users: u32) -> Value {
        let object = ["infraconfig", "default"];
        let what = format!("the golden image of {source} in {class} has {users} users");
        self.wait_until(&what, &object, || {
            let config = self.plane.get_json(&object).ok()?;
            let images = config["status"]["goldenImages"].as_array()?;
            let is_image = |one: &&Value| one["source"] == source && one["storageClass"] == class;
            let image = images.iter().find(is_image)?;
            (image["users"] == users && image["phase"] == "Ready").then(|| image.clone())
        })
    }

    /// Returns the condition GoldenImagesReady of the InfraConfig.
    pub(crate) fn images_condition(&self) -> Value {
        let config = self.plane.get_json(&["infraconfig", "default"]).unwrap();
        condition(&config, "GoldenImagesReady").clone()
    }

    pub(crate) fn list(&self, arguments: &[&str]) -> Vec<Value> {
        let list = self.plane.get_json(arguments).unwrap_or_default();
        list["items"].as_array().cloned().unwrap_or_default()
    }

    /// Calls a function repeatedly until the function returns a value. `object` names the object that is printed after a
    /// timeout, as arguments of `kubectl get`.
    #[track_caller]
    pub(crate) fn wait_until<T>(
        &self,
        description: &str,
        object: &[&str],
        mut ask: impl FnMut() -> Option<T>,
    ) -> T {
        self.plane.wait_until(description, TIMEOUT, |_| ask()).unwrap_or_else(|error| {
            let state = self.plane.get_json(object).unwrap_or_default();
            let volumes = self.list(&["datavolumes", "-A"]);
            let volumes: Vec<String> = volumes.iter().map(summary).collect();
            let logs = LOGS.map(|name| format!("--- {name} ---\n{}\n", self.plane.log_tail(name)));
            let volumes = volumes.join("\n");
            panic!("{error}\n{object:?}: {state:#}\n{volumes}\n{}", logs.concat())
        })
    }

    /// Asserts that the controller lacked no permission.
    pub(crate) fn assert_no_refusals(&self) {
        let log = self.plane.log(LOG).unwrap();
        let refused: Vec<&str> = log.lines().filter(|line| line.contains("forbidden")).collect();
        assert!(refused.is_empty(), "a permission is missing: {refused:?}");
    }
}

/// Describes a DataVolume in one line.
fn summary(volume: &Value) -> String {
    let (metadata, status) = (&volume["metadata"], &volume["status"]);
    format!("{}/{}: {}", metadata["namespace"], metadata["name"], status["phase"])
}
