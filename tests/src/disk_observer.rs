//! Observes the volumes of machines with separate watches: no volume in use is deleted, and no machine is created before its
//! image is imported.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use berth_api::names::{
    CLONED_FROM_LABEL, CLONED_FROM_LABEL_PREFIX, GOLDEN_IMAGE_LABEL, HOTPLUG_DISK_LABEL,
};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::unbounded_channel;

use crate::event_watch::{Event, api_and_start_version, send_events};
use crate::golden_images::NAMESPACE;
use crate::simulated::{
    create_client, create_runtime, data_volume_resource, instance_resource, vm_resource,
};

/// Running observation, stopped on drop.
#[derive(Debug)]
pub struct DiskObserver {
    runtime: Option<Runtime>,
    record: Arc<Mutex<Record>>,
}

#[derive(Debug, Default)]
struct Record {
    /// UIDs of all DataVolumes that have imported a golden image, by the name of the image.
    imports: BTreeMap<String, BTreeSet<String>>,
    /// UIDs of the objects whose creation or deletion has been verified.
    verified: BTreeSet<String>,
    violations: Vec<String>,
}

/// The kind that a watch observes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Machine,
    DataVolume,
    Claim,
}

impl DiskObserver {
    /// Starts the observation. No objects may exist yet.
    #[must_use]
    pub fn start(kubeconfig: &Path) -> Self {
        let runtime = create_runtime().unwrap();
        let record = Arc::new(Mutex::new(Record::default()));
        let client = runtime.block_on(create_client(kubeconfig)).unwrap();
        let claim = ApiResource::erase::<PersistentVolumeClaim>(&());
        for (kind, resource) in [
            (Kind::Machine, vm_resource()),
            (Kind::DataVolume, data_volume_resource()),
            (Kind::Claim, claim),
        ] {
            let start = api_and_start_version(&client, &resource);
            let (api, version) = runtime.block_on(start).unwrap();
            let (sender, mut events) = unbounded_channel();
            runtime.spawn(send_events(api, version, sender));
            let observed = Observed { client: client.clone(), record: Arc::clone(&record) };
            runtime.spawn(async move {
                while let Some(event) = events.recv().await {
                    observed.handle(kind, event).await;
                }
            });
        }
        Self { runtime: Some(runtime), record }
    }

    /// Returns the number of DataVolumes that have imported each golden image, by the name of the image.
    #[must_use]
    pub fn imports(&self) -> BTreeMap<String, usize> {
        let record = lock(&self.record);
        record.imports.iter().map(|(name, uids)| (name.clone(), uids.len())).collect()
    }

    /// Returns the violations of the rules.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        lock(&self.record).violations.clone()
    }
}

impl Drop for DiskObserver {
    fn drop(&mut self) {
        self.runtime.take().map(Runtime::shutdown_background).unwrap_or_default();
    }
}

fn lock(record: &Mutex<Record>) -> MutexGuard<'_, Record> {
    record.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Verifies the events of one watch. What the rules compare is read from the API server after each event.
struct Observed {
    client: Client,
    record: Arc<Mutex<Record>>,
}

impl Observed {
    async fn handle(&self, kind: Kind, event: Event) {
        let (object, is_deleted) = match event {
            Event::Written(object) => (object, false),
            Event::Deleted(object) => (object, true),
            Event::Lost(message) => {
                let violation = format!("events of {kind:?} are lost: {message}");
                return lock(&self.record).violations.push(violation);
            }
        };
        let uid = object.uid().unwrap_or_default();
        if kind == Kind::DataVolume && object.labels().contains_key(GOLDEN_IMAGE_LABEL) {
            lock(&self.record).imports.entry(object.name_any()).or_default().insert(uid.clone());
        }
        let is_deleting = is_deleted || object.metadata.deletion_timestamp.is_some();
        let is_due = match kind {
            Kind::Machine => !is_deleting,
            Kind::DataVolume | Kind::Claim => is_deleting,
        };
        if !is_due || !lock(&self.record).verified.insert(uid) {
            return;
        }
        let violation = match kind {
            Kind::Machine => self.image_violation(&object).await,
            Kind::DataVolume if object.labels().contains_key(GOLDEN_IMAGE_LABEL) => {
                self.clone_violation(&object).await
            }
            Kind::DataVolume => self.disk_violation(&object).await,
            Kind::Claim => self.claim_violation(&object).await,
        };
        // A read may fail, because the server is busy.
        match violation {
            Ok(violation) => lock(&self.record).violations.extend(violation),
            Err(error) => {
                let message = format!("{kind:?} {} is not verified: {error}", object.name_any());
                lock(&self.record).violations.push(message);
            }
        }
    }

    /// Returns the violation if a golden image of a new machine is not imported.
    async fn image_violation(&self, machine: &DynamicObject) -> kube::Result<Option<String>> {
        let volumes = self.api(&data_volume_resource(), NAMESPACE);
        for label in machine.labels().keys() {
            let Some(image) = label.strip_prefix(CLONED_FROM_LABEL_PREFIX) else { continue };
            let volume = volumes.get_opt(image).await?;
            let phase = volume.as_ref().map(|volume| volume.data["status"]["phase"].clone());
            if phase.as_ref().is_none_or(|phase| *phase != "Succeeded") {
                let name = machine.name_any();
                return Ok(Some(format!(
                    "{name} was created before {image} was imported: {phase:?}"
                )));
            }
        }
        Ok(None)
    }

    /// Returns the violation if a deleted golden image has clones.
    async fn clone_violation(&self, image: &DynamicObject) -> kube::Result<Option<String>> {
        let name = image.name_any();
        let of_machines = format!("{CLONED_FROM_LABEL_PREFIX}{name}");
        let of_volumes = format!("{CLONED_FROM_LABEL}={name}");
        let claims = ApiResource::erase::<PersistentVolumeClaim>(&());
        for (resource, labels) in [
            (vm_resource(), of_machines),
            (data_volume_resource(), of_volumes.clone()),
            (claims, of_volumes),
        ] {
            let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
            let found = api.list(&ListParams::default().labels(&labels).limit(1)).await?;
            if let Some(clone) = found.items.first() {
                let clone = clone.name_any();
                return Ok(Some(format!(
                    "{name} was deleted, but {} {clone} uses it",
                    resource.kind
                )));
            }
        }
        Ok(None)
    }

    /// Returns the violation if a deleted DataVolume belongs to a machine that exists. A hotpluggable disk may be deleted
    /// when neither the machine nor its instance uses it.
    async fn disk_violation(&self, volume: &DynamicObject) -> kube::Result<Option<String>> {
        let (namespace, name) = (volume.namespace().unwrap_or_default(), volume.name_any());
        let Some(owner) = volume.owner_references().iter().find(|one| one.kind == "VirtualMachine")
        else {
            return Ok(Some(format!("DataVolume {name} has no owner")));
        };
        let machine = self.api(&vm_resource(), &namespace).get_opt(&owner.name).await?;
        let Some(machine) = machine.filter(|machine| exists(machine, &owner.uid)) else {
            return Ok(None);
        };
        let instance = self.api(&instance_resource(), &namespace).get_opt(&owner.name).await?;
        let disk = volume.labels().get(HOTPLUG_DISK_LABEL).map(|disk| format!("disk-{disk}"));
        let uses_disk = |list: &Value| {
            let mut all = list.as_array().into_iter().flatten();
            all.any(|one| disk.as_ref().is_some_and(|disk| one["name"] == *disk))
        };
        let is_used = uses_disk(&machine.data["spec"]["template"]["spec"]["volumes"])
            || instance.is_some_and(|instance| {
                uses_disk(&instance.data["spec"]["volumes"])
                    || uses_disk(&instance.data["status"]["volumeStatus"])
            });
        let is_violation = is_used || disk.is_none();
        Ok(is_violation
            .then(|| format!("DataVolume {name} was deleted, but {} uses it", owner.name)))
    }

    /// Returns the violation if the DataVolume of a deleted claim exists.
    async fn claim_violation(&self, claim: &DynamicObject) -> kube::Result<Option<String>> {
        let (namespace, name) = (claim.namespace().unwrap_or_default(), claim.name_any());
        let Some(owner) = claim.owner_references().iter().find(|one| one.kind == "DataVolume")
        else {
            return Ok(Some(format!("claim {name} has no owner")));
        };
        let volume = self.api(&data_volume_resource(), &namespace).get_opt(&owner.name).await?;
        let is_violation = volume.is_some_and(|volume| exists(&volume, &owner.uid));
        Ok(is_violation.then(|| format!("claim {name} was deleted before its DataVolume")))
    }

    fn api(&self, resource: &ApiResource, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, resource)
    }
}

/// Returns true if an object has this UID and is not being deleted.
fn exists(object: &DynamicObject, uid: &str) -> bool {
    object.uid().as_deref() == Some(uid) && object.metadata.deletion_timestamp.is_none()
}
