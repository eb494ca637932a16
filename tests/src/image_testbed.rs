//! Control plane with two tenants, and a controller that imports golden images and can be killed. CDI does not run: tests set
//! the phases of DataVolumes.

#![expect(clippy::panic, clippy::unwrap_used, reason = "tests fail by panicking")]

use std::time::Duration;

use serde_json::{Value, json};

use crate::cluster::{ControlPlane, condition, web_deployment};
use crate::controller::Controller;
use crate::golden_images::{self, NAMESPACE};

/// Tenants with machines.
pub const TENANTS: [&str; 2] = ["bank", "shop"];
/// Image of the machines of `web_deployment`.
pub const IMAGE: &str = "http://images.example/ubuntu.img";
const TIMEOUT: Duration = Duration::from_secs(60);

/// The tenants, and the controller.
#[derive(Debug)]
pub struct ImageTestbed {
    pub plane: ControlPlane,
    controller: Option<Controller>,
    log: &'static str,
}

impl ImageTestbed {
    /// Starts the control plane and the controller without golden images. `log` is the name of the controller's log.
    #[must_use]
    pub fn start(log: &'static str) -> Self {
        let plane = golden_images::start_control_plane().unwrap();
        let mut bed = Self { plane, controller: None, log };
        bed.write_images(&Value::Null);
        bed.restart();
        for name in TENANTS {
            golden_images::create_tenant(&bed.plane, name).unwrap();
            let namespace = format!("cluster-{name}");
            bed.wait_until("the namespace of the tenant exists", |bed| {
                bed.plane.get_json(&["namespace", &namespace]).is_ok()
            });
            golden_images::create_user_data(&bed.plane, name).unwrap();
        }
        bed
    }

    /// Kills the controller, if it runs, and starts it again.
    pub fn restart(&mut self) {
        drop(self.controller.take());
        self.controller = Some(Controller::start(&self.plane, self.log, &[]).unwrap());
    }

    /// Writes the InfraConfig with these images.
    pub fn write_images(&self, images: &Value) {
        golden_images::write_images(&self.plane, images).unwrap();
    }

    /// Creates the MachineDeployment of a tenant.
    pub fn create_machines(&self, tenant: &str, count: usize) {
        let namespace = format!("cluster-{tenant}");
        let deployment = web_deployment(&namespace, u32::try_from(count).unwrap());
        self.plane.apply(&deployment.to_string()).unwrap();
    }

    /// Deletes the MachineDeployment of a tenant, and waits until its machines are deleted.
    pub fn delete_machines(&self, tenant: &str) {
        let namespace = format!("cluster-{tenant}");
        let delete = ["delete", "machinedeployment", "web", "-n", &namespace, "--wait=false"];
        self.plane.kubectl(&delete).unwrap();
        self.wait_until("the machines are deleted", |bed| bed.machines(tenant).is_empty());
        self.wait_until("the MachineDeployment is deleted", |bed| {
            bed.plane.get_json(&["machinedeployment", "web", "-n", &namespace]).is_err()
        });
    }

    /// Returns the machines of a tenant.
    #[must_use]
    pub fn machines(&self, tenant: &str) -> Vec<Value> {
        self.list(&["virtualmachines", "-n", &format!("cluster-{tenant}"), "-l", "md=web"])
    }

    /// Waits until this number of machines of a tenant exist, each with its user data.
    pub fn wait_until_machines_exist(&self, tenant: &str, count: usize) {
        self.wait_until(&format!("all machines of {tenant} exist"), |bed| {
            let secrets = bed.list(&["secrets", "-n", &format!("cluster-{tenant}")]);
            let is_user_data = |one: &&Value| {
                one["metadata"]["name"].as_str().is_some_and(|name| name.starts_with("userdata-"))
            };
            bed.machines(tenant).len() == count
                && secrets.iter().filter(is_user_data).count() == count
        });
    }

    /// Returns the objects of a list; the arguments are those of `kubectl get`.
    #[must_use]
    pub fn list(&self, arguments: &[&str]) -> Vec<Value> {
        let list = self.plane.get_json(arguments).unwrap_or_default();
        list["items"].as_array().cloned().unwrap_or_default()
    }

    /// Returns the DataVolumes of golden images.
    #[must_use]
    pub fn imports(&self) -> Vec<Value> {
        self.list(&["datavolumes", "-n", NAMESPACE, "-l", "berth.dev/golden-image"])
    }

    /// Merges fields into the status of a DataVolume.
    pub fn set_import_status(&self, name: &str, status: &Value) {
        let patch = json!({"status": status}).to_string();
        let arguments =
            ["patch", "datavolume", name, "-n", NAMESPACE, "--type=merge", "-p", &patch];
        self.plane.kubectl(&arguments).unwrap();
    }

    /// Waits until a state is reached.
    pub fn wait_until(&self, what: &str, is_reached: impl Fn(&Self) -> bool) {
        self.plane
            .wait_until(what, TIMEOUT, |_| is_reached(self).then_some(()))
            .unwrap_or_else(|error| panic!("{error}: {}", self.plane.log_tail(self.log)));
    }

    /// Waits until a condition of an object has these words in its status, reason and message.
    pub fn wait_until_condition(&self, object: &[&str], type_: &str, words: &[&str]) {
        let mut last = Value::Null;
        let reached = self.plane.wait_until(&words.join(" "), TIMEOUT, |plane| {
            last = plane.get_json(object).unwrap_or_default();
            let one = condition(&last, type_);
            let text = format!("{} {} {}", one["status"], one["reason"], one["message"]);
            words.iter().all(|word| text.contains(word)).then_some(())
        });
        reached.unwrap_or_else(|error| {
            panic!("{error}: {:#}\n{}", last["status"], self.plane.log_tail(self.log))
        });
    }

    /// Waits until the condition GoldenImagesReady has these words.
    pub fn wait_until_images_are(&self, words: &[&str]) {
        self.wait_until_condition(&["infraconfig", "default"], "GoldenImagesReady", words);
    }

    /// Waits until the MachineDeployment reports that its machines wait for an image, with these words.
    pub fn wait_until_machines_wait(&self, tenant: &str, words: &[&str]) {
        let namespace = format!("cluster-{tenant}");
        let deployment = ["machinedeployment", "web", "-n", namespace.as_str()];
        let words = [&["WaitingForImage"][..], words].concat();
        self.wait_until_condition(&deployment, "Progressing", &words);
    }
}
