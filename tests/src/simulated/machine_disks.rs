//! Simulation of KubeVirt and CDI for the disks of machines: images are imported, disks are cloned, and a VM starts when its
//! disks exist. A disk that is removed from a running VM stays in use for a random time. The garbage collector of the
//! control plane deletes the objects of deleted VMs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
    PostParams,
};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::{Random, create_client, create_runtime, current_time};

/// Time between two iterations.
const INTERVAL: Duration = Duration::from_millis(200);
/// Phases of an import of an image; each lasts a random number of iterations.
const IMPORT_PHASES: [&str; 4] = ["", "ImportScheduled", "ImportInProgress", "Succeeded"];
/// Phases of a DataVolume that is a clone or empty.
const OTHER_PHASES: [&str; 2] = ["", "Succeeded"];
/// Mean number of iterations of a phase of an import.
const IMPORT_ITERATIONS: u64 = 5;
/// Mean number of iterations for which a guest uses a disk that was removed from its VM.
const RELEASE_ITERATIONS: u64 = 4;

/// Running simulation, stopped on drop.
#[derive(Debug)]
pub struct MachineDisks(Option<Runtime>);

/// Namespace and name of an object.
type Key = (String, String);

struct Simulation {
    client: Client,
    random: Random,
}

impl MachineDisks {
    /// Starts the simulation. `seed` determines the durations of imports and of releases of disks.
    ///
    /// # Errors
    /// Fails if there is no thread or no kubeconfig.
    pub fn start(kubeconfig: &Path, seed: u64) -> Result<Self> {
        let runtime = create_runtime()?;
        let client = runtime.block_on(create_client(kubeconfig))?;
        let mut simulation = Simulation { client, random: Random::new(seed) };
        runtime.spawn(async move {
            loop {
                // After an error, such as a conflict or a busy server, the next iteration tries again.
                drop(simulation.sync().await);
                tokio::time::sleep(INTERVAL).await;
            }
        });
        Ok(Self(Some(runtime)))
    }
}

impl Drop for MachineDisks {
    fn drop(&mut self) {
        self.0.take().map(Runtime::shutdown_background).unwrap_or_default();
    }
}

/// Returns the resource of VirtualMachines.
#[must_use]
pub fn vm_resource() -> ApiResource {
    resource("kubevirt.io", "v1", "VirtualMachine")
}

/// Returns the resource of VirtualMachineInstances.
#[must_use]
pub fn instance_resource() -> ApiResource {
    resource("kubevirt.io", "v1", "VirtualMachineInstance")
}

/// Returns the resource of DataVolumes.
#[must_use]
pub fn data_volume_resource() -> ApiResource {
    resource("cdi.kubevirt.io", "v1beta1", "DataVolume")
}

fn resource(group: &str, version: &str, kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
}

impl Simulation {
    async fn sync(&mut self) -> Result<()> {
        let vms = self.list(&vm_resource()).await?;
        let instances = self.list(&instance_resource()).await?;
        let volumes = self.list(&data_volume_resource()).await?;
        let claims: Api<PersistentVolumeClaim> = Api::all(self.client.clone());
        let claims = claims.list(&ListParams::default().match_any()).await?.items;
        let claims: BTreeSet<Key> = claims.iter().map(key).collect();
        for (key, volume) in &volumes {
            self.sync_data_volume(key, volume, &volumes, claims.contains(key)).await?;
        }
        for (key, vm) in vms.iter().filter(|(_, vm)| vm.metadata.deletion_timestamp.is_none()) {
            self.sync_vm(key, vm, &volumes, instances.get(key)).await?;
        }
        for key in instances.keys().filter(|key| !vms.contains_key(*key)) {
            let api = self.api(&instance_resource(), key);
            ignore(api.delete(&key.1, &DeleteParams::default()).await, &[404])?;
        }
        Ok(())
    }

    /// Returns all objects of a kind. The server answers from its cache, without etcd.
    async fn list(&self, resource: &ApiResource) -> kube::Result<BTreeMap<Key, DynamicObject>> {
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), resource);
        let list = api.list(&ListParams::default().match_any()).await?;
        Ok(list.items.into_iter().map(|object| (key(&object), object)).collect())
    }

    fn api(&self, resource: &ApiResource, key: &Key) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &key.0, resource)
    }

    /// CDI: creates the claim of a DataVolume with its labels, and advances its phase. A clone waits for its source.
    async fn sync_data_volume(
        &mut self,
        key: &Key,
        volume: &DynamicObject,
        all: &BTreeMap<Key, DynamicObject>,
        has_claim: bool,
    ) -> Result<()> {
        let current = phase(volume);
        if volume.metadata.deletion_timestamp.is_some() || (current == "Succeeded" && has_claim) {
            return Ok(());
        }
        let source = &volume.data["spec"]["sourceRef"];
        let field = |name: &str| source[name].as_str().unwrap_or_default().to_owned();
        // A DataSource has the name of its volume (`desired_objects`).
        let source_key = (field("namespace"), field("name"));
        if source.is_object() && all.get(&source_key).map(phase) != Some("Succeeded") {
            return Ok(());
        }
        if !has_claim {
            let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), &key.0);
            let created = claims.create(&PostParams::default(), &new_claim(volume)?).await;
            return ignore(created, &[404, 409]);
        }
        let is_import = volume.data["spec"]["source"]["http"].is_object();
        let phases = if is_import { IMPORT_PHASES.as_slice() } else { OTHER_PHASES.as_slice() };
        if is_import && self.random.below(IMPORT_ITERATIONS) > 0 {
            return Ok(());
        }
        let at = phases.iter().position(|one| *one == current).unwrap_or_default();
        let next = phases.get(at + 1).copied().unwrap_or("Succeeded");
        let status = Patch::Merge(json!({"status": {"phase": next, "claimName": key.1}}));
        let api = self.api(&data_volume_resource(), key);
        ignore(api.patch(&key.1, &PatchParams::default(), &status).await, &[404])
    }

    /// KubeVirt: creates the DataVolumes of a VM and, when its disks exist, the instance. Changes the volumes of the instance
    /// as those of the VM change.
    async fn sync_vm(
        &mut self,
        key: &Key,
        vm: &DynamicObject,
        all: &BTreeMap<Key, DynamicObject>,
        instance: Option<&DynamicObject>,
    ) -> Result<()> {
        let templates = vm.data["spec"]["dataVolumeTemplates"].as_array();
        let mut has_disks = true;
        for template in templates.into_iter().flatten() {
            let name = template["metadata"]["name"].as_str().unwrap_or_default();
            match all.get(&(key.0.clone(), name.to_owned())) {
                Some(volume) => has_disks &= phase(volume) == "Succeeded",
                None => {
                    has_disks = false;
                    let volume = serde_json::from_value(new_data_volume(vm, template))?;
                    let api = self.api(&data_volume_resource(), key);
                    ignore(api.create(&PostParams::default(), &volume).await, &[409])?;
                }
            }
        }
        let api = self.api(&instance_resource(), key);
        match instance {
            None if has_disks => {
                let new = serde_json::from_value(new_instance(vm))?;
                ignore(api.create(&PostParams::default(), &new).await, &[409])
            }
            Some(instance) => {
                let Some(next) = self.next_instance(vm, instance) else { return Ok(()) };
                ignore(api.replace(&key.1, &PostParams::default(), &next).await, &[404, 409])
            }
            None => Ok(()),
        }
    }

    /// Returns the instance with the volumes of its VM; `None` if it has them already. The status of a removed volume
    /// remains until the guest has released the disk.
    fn next_instance(
        &mut self,
        vm: &DynamicObject,
        instance: &DynamicObject,
    ) -> Option<DynamicObject> {
        let (devices, volumes) = disks(vm);
        let names: BTreeSet<&str> = volumes
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|one| one["name"].as_str())
            .collect();
        let current = instance.data["status"]["volumeStatus"].as_array();
        let removed = current
            .into_iter()
            .flatten()
            .filter(|status| !status["name"].as_str().is_some_and(|name| names.contains(name)));
        let mut status: Vec<Value> = names.iter().map(|name| volume_status(name)).collect();
        // Each release is decided separately, so the guests of a rollout release their disks at different times.
        for one in removed {
            if self.random.below(RELEASE_ITERATIONS) > 0 {
                status.push(one.clone());
            }
        }
        let mut next = instance.clone();
        next.data["spec"]["volumes"] = volumes.clone();
        next.data["spec"]["domain"]["devices"]["disks"] = devices.clone();
        next.data["status"]["volumeStatus"] = status.into();
        let has_changed = next.data["spec"]["volumes"] != instance.data["spec"]["volumes"]
            || next.data["status"]["volumeStatus"] != instance.data["status"]["volumeStatus"];
        has_changed.then_some(next)
    }
}

fn key<K: kube::Resource>(object: &K) -> Key {
    (object.namespace().unwrap_or_default(), object.name_any())
}

/// Returns the result without errors that have one of these status codes, because another program has written or deleted the
/// object.
fn ignore<T>(result: kube::Result<T>, codes: &[u16]) -> Result<()> {
    match result {
        Err(kube::Error::Api(status)) if codes.contains(&status.code) => Ok(()),
        result => Ok(result.map(drop)?),
    }
}

fn phase(volume: &DynamicObject) -> &str {
    volume.data["status"]["phase"].as_str().unwrap_or_default()
}

/// Returns the disks and volumes of a VM.
fn disks(vm: &DynamicObject) -> (&Value, &Value) {
    let spec = &vm.data["spec"]["template"]["spec"];
    (&spec["domain"]["devices"]["disks"], &spec["volumes"])
}

fn volume_status(name: &str) -> Value {
    json!({"name": name, "phase": "Ready", "target": ""})
}

fn owner(object: &DynamicObject, api_version: &str, kind: &str) -> Value {
    json!([{
        "apiVersion": api_version, "kind": kind, "name": object.name_any(), "uid": object.uid(),
        "controller": true, "blockOwnerDeletion": true,
    }])
}

fn new_data_volume(vm: &DynamicObject, template: &Value) -> Value {
    let mut volume = template.clone();
    volume["apiVersion"] = "cdi.kubevirt.io/v1beta1".into();
    volume["kind"] = "DataVolume".into();
    volume["metadata"]["namespace"] = vm.namespace().into();
    volume["metadata"]["ownerReferences"] = owner(vm, "kubevirt.io/v1", "VirtualMachine");
    volume
}

/// Returns the claim of a DataVolume. It names a volume that does not exist, so that the controller of volumes does not look
/// for a provisioner.
fn new_claim(volume: &DynamicObject) -> Result<PersistentVolumeClaim> {
    let spec = &volume.data["spec"];
    let requested = if spec["pvc"].is_object() { &spec["pvc"] } else { &spec["storage"] };
    let claim = json!({
        "metadata": {
            "name": volume.name_any(), "labels": volume.labels(),
            "ownerReferences": owner(volume, "cdi.kubevirt.io/v1beta1", "DataVolume"),
        },
        "spec": {
            "accessModes": ["ReadWriteMany"], "storageClassName": requested["storageClassName"],
            "resources": requested["resources"], "volumeName": format!("pv-{}", volume.uid().unwrap_or_default()),
        },
    });
    Ok(serde_json::from_value(claim)?)
}

fn new_instance(vm: &DynamicObject) -> Value {
    let (devices, volumes) = disks(vm);
    let names = volumes.as_array().into_iter().flatten().filter_map(|one| one["name"].as_str());
    let status: Vec<Value> =
        names.collect::<BTreeSet<_>>().into_iter().map(volume_status).collect();
    // The kind VirtualMachineInstance has no status subresource.
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": vm.name_any(), "namespace": vm.namespace(), "labels": vm.labels()},
        "spec": {"domain": {"devices": {"disks": devices}}, "volumes": volumes},
        "status": {
            "phase": "Running", "volumeStatus": status,
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": current_time()}],
        },
    })
}
