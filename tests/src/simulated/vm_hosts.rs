//! Simulation of what runs on hosts: kube-scheduler places VMs on schedulable hosts, virt-api refuses the evictions of
//! a drain and records them in the instances, and virt-handler migrates VMs. Half of the VMs can be migrated, and some
//! migrations fail.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::core::v1::Node;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::random::Random;
use super::{create_client, create_runtime, current_time};

const INTERVAL: Duration = Duration::from_millis(200);
/// Each iteration evicts each pod of a drained host with the probability 1 / `EVICTION_RATE`.
const EVICTION_RATE: u64 = 3;
/// Each iteration clears the record of the eviction with the probability 1 / `CANCEL_RATE`, if the drain was cancelled.
const CANCEL_RATE: u64 = 10;
/// Each iteration continues each migration with the probability 1 / `MIGRATION_RATE`.
const MIGRATION_RATE: u64 = 5;
/// A migration fails with the probability 1 / `FAILURE_RATE`.
const FAILURE_RATE: u64 = 8;

/// Running simulation, stopped on drop.
#[derive(Debug)]
pub struct VmHosts {
    runtime: Option<Runtime>,
    /// Names of the hosts on which a drain evicts pods.
    drained: Arc<Mutex<BTreeSet<String>>>,
}

struct Simulation {
    hosts: Api<Node>,
    instances: Api<DynamicObject>,
    migrations: Api<DynamicObject>,
    random: Random,
}

impl VmHosts {
    /// Starts the simulation for the instances in a namespace.
    ///
    /// # Errors
    /// Fails if there is no thread or no kubeconfig.
    pub fn start(kubeconfig: &Path, namespace: &str, seed: u64) -> Result<Self> {
        let runtime = create_runtime()?;
        let client = runtime.block_on(create_client(kubeconfig))?;
        let drained = Arc::<Mutex<BTreeSet<String>>>::default();
        let mut simulation = Simulation::new(&client, namespace, seed);
        let current = Arc::clone(&drained);
        runtime.spawn(async move {
            loop {
                let drained = lock(&current).clone();
                // After an error, such as a conflict or a busy server, the next iteration tries again.
                drop(simulation.advance(&drained).await);
                tokio::time::sleep(INTERVAL).await;
            }
        });
        Ok(Self { runtime: Some(runtime), drained })
    }

    /// Evicts the pods of a host, like `kubectl drain`, until [`Self::stop_evictions`] is called.
    pub fn evict_pods(&self, host: &str) {
        lock(&self.drained).insert(host.to_owned());
    }

    /// Stops the evictions, as at the end of `kubectl drain`. The records of earlier evictions in the instances are then
    /// cleared some time later, as virt-api does when an evacuation is cancelled.
    pub fn stop_evictions(&self, host: &str) {
        lock(&self.drained).remove(host);
    }
}

impl Drop for VmHosts {
    fn drop(&mut self) {
        self.runtime.take().map(Runtime::shutdown_background).unwrap_or_default();
    }
}

fn lock(drained: &Mutex<BTreeSet<String>>) -> MutexGuard<'_, BTreeSet<String>> {
    drained.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Simulation {
    fn new(client: &Client, namespace: &str, seed: u64) -> Self {
        let in_namespace = |kind: &str| -> Api<DynamicObject> {
            let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("kubevirt.io", "v1", kind));
            Api::namespaced_with(client.clone(), namespace, &resource)
        };
        Self {
            hosts: Api::all(client.clone()),
            instances: in_namespace("VirtualMachineInstance"),
            migrations: in_namespace("VirtualMachineInstanceMigration"),
            random: Random::new(seed),
        }
    }

    async fn advance(&mut self, drained: &BTreeSet<String>) -> kube::Result<()> {
        let is_schedulable =
            |node: &&Node| node.spec.as_ref().is_none_or(|spec| spec.unschedulable != Some(true));
        let hosts = self.hosts.list(&ListParams::default()).await?;
        let hosts: Vec<String> =
            hosts.iter().filter(is_schedulable).map(ResourceExt::name_any).collect();
        let instances = self.instances.list(&ListParams::default()).await?.items;
        for instance in &instances {
            self.update_instance(instance, &hosts, drained).await?;
        }
        for migration in self.migrations.list(&ListParams::default()).await?.items {
            let name = migration.data["spec"]["vmiName"].as_str().unwrap_or_default();
            let instance = instances.iter().find(|instance| instance.name_any() == name);
            self.update_migration(&migration, instance, &hosts).await?;
        }
        Ok(())
    }

    /// Places an instance on a host, or evicts its pod, or clears the record of the eviction.
    async fn update_instance(
        &mut self,
        instance: &DynamicObject,
        hosts: &[String],
        drained: &BTreeSet<String>,
    ) -> kube::Result<()> {
        let status = &instance.data["status"];
        let evacuated = status["evacuationNodeName"].as_str();
        let Some(host) = status["nodeName"].as_str() else {
            let is_migratable = self.random.below(2) == 0;
            let Some(host) = self.choose_host(hosts, None) else { return Ok(()) };
            return self.patch_instance(instance, placed_instance(&host, is_migratable)).await;
        };
        let evacuated_host = match (drained.contains(host), evacuated) {
            (true, None) if self.is_due(EVICTION_RATE) => Some(host),
            (false, Some(_)) if self.is_due(CANCEL_RATE) => None,
            _ => return Ok(()),
        };
        let patch = json!({"status": {"evacuationNodeName": evacuated_host}});
        self.patch_instance(instance, patch).await
    }

    /// Prepares a migration, and in a later iteration ends it.
    async fn update_migration(
        &mut self,
        migration: &DynamicObject,
        instance: Option<&DynamicObject>,
        hosts: &[String],
    ) -> kube::Result<()> {
        let phase = migration.data["status"]["phase"].as_str().unwrap_or_default();
        if ["Failed", "Succeeded"].contains(&phase) {
            return Ok(());
        }
        let Some(instance) = instance else { return self.set_phase(migration, "Failed").await };
        if !self.is_due(MIGRATION_RATE) {
            return Ok(());
        }
        if phase != "Running" {
            return self.set_phase(migration, "Running").await;
        }
        if self.is_due(FAILURE_RATE) {
            return self.set_phase(migration, "Failed").await;
        }
        let source = instance.data["status"]["nodeName"].as_str();
        let Some(target) = self.choose_host(hosts, source) else { return Ok(()) };
        let patch = json!({"status": {"nodeName": target, "evacuationNodeName": null}});
        self.patch_instance(instance, patch).await?;
        self.set_phase(migration, "Succeeded").await
    }

    async fn patch_instance(&self, instance: &DynamicObject, patch: Value) -> kube::Result<()> {
        // The kind VirtualMachineInstance has no status subresource.
        let (name, patch) = (instance.name_any(), Patch::Merge(patch));
        self.instances.patch(&name, &PatchParams::default(), &patch).await.map(drop)
    }

    async fn set_phase(&self, migration: &DynamicObject, phase: &str) -> kube::Result<()> {
        let (name, patch) =
            (migration.name_any(), Patch::Merge(json!({"status": {"phase": phase}})));
        self.migrations.patch_status(&name, &PatchParams::default(), &patch).await.map(drop)
    }

    /// Returns true with the probability 1 / `rate`.
    fn is_due(&mut self, rate: u64) -> bool {
        self.random.below(rate) == 0
    }

    /// Returns a random host other than `except`; `None` if there is no other host.
    fn choose_host(&mut self, hosts: &[String], except: Option<&str>) -> Option<String> {
        let others = || hosts.iter().filter(|host| Some(host.as_str()) != except);
        let count = u64::try_from(others().count()).ok().filter(|count| *count > 0)?;
        let at = usize::try_from(self.random.below(count)).ok()?;
        others().nth(at).cloned()
    }
}

/// Returns the patch of an instance that starts on a host.
fn placed_instance(host: &str, is_migratable: bool) -> Value {
    let time = current_time();
    let migratable = if is_migratable { "True" } else { "False" };
    json!({
        "spec": {"evictionStrategy": "External"},
        "status": {"nodeName": host, "conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": time},
            {"type": "LiveMigratable", "status": migratable, "message": "disk is not shared",
                "lastTransitionTime": time},
        ]},
    })
}
