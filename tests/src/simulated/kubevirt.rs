//! Simulation of KubeVirt: created machines start to run, and deleted machines are removed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use tokio::runtime::Runtime;

use super::{create_client, create_runtime, current_time};

/// Running simulation of KubeVirt, stopped on drop.
#[derive(Debug)]
pub struct KubeVirt {
    runtime: Option<Runtime>,
    /// True while the simulation starts VMs.
    pub starts_vms: Arc<AtomicBool>,
}

impl KubeVirt {
    /// Starts the simulation.
    ///
    /// # Errors
    /// Fails if there is no thread or no kubeconfig.
    pub fn start(kubeconfig: &std::path::Path) -> Result<Self> {
        let runtime = create_runtime()?;
        let client = runtime.block_on(create_client(kubeconfig))?;
        let starts_vms = Arc::new(AtomicBool::new(true));
        let starting = Arc::clone(&starts_vms);
        runtime.spawn(async move {
            loop {
                // After an error, such as a conflict or a busy server, the next iteration tries again.
                drop(sync_instances(&client, starting.load(Ordering::SeqCst)).await);
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        Ok(Self { runtime: Some(runtime), starts_vms })
    }
}

impl Drop for KubeVirt {
    fn drop(&mut self) {
        self.runtime.take().map(Runtime::shutdown_background).unwrap_or_default();
    }
}

async fn sync_instances(client: &Client, starts_vms: bool) -> kube::Result<()> {
    let resource =
        |kind: &str| ApiResource::from_gvk(&GroupVersionKind::gvk("kubevirt.io", "v1", kind));
    let (machines, instances) = (resource("VirtualMachine"), resource("VirtualMachineInstance"));
    let all: Api<DynamicObject> = Api::all_with(client.clone(), &machines);
    let running: Api<DynamicObject> = Api::all_with(client.clone(), &instances);
    // The server answers from its cache, without etcd. An object that the cache lacks is handled in a later iteration.
    let from_cache = ListParams::default().match_any();
    let existing = running.list(&from_cache).await?.items;
    let vms = all.list(&from_cache).await?.items;
    for vm in &vms {
        let (namespace, name) = (vm.namespace().unwrap_or_default(), vm.name_any());
        if existing.iter().any(|one| one.name_any() == name && one.namespace() == vm.namespace()) {
            continue;
        }
        // A launcher pod does not start before the Secret that it mounts exists.
        let secrets: Api<Secret> = Api::namespaced(client.clone(), &namespace);
        let has_data = secrets.get_opt(&format!("userdata-{name}")).await?.is_some();
        if !starts_vms || !has_data {
            continue;
        }
        // The kind VirtualMachineInstance has no status subresource.
        let instance = json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": name, "namespace": namespace, "labels": vm.labels()},
            "spec": {"domain": {"devices": {}}},
            "status": {"phase": "Running", "conditions":
                [{"type": "Ready", "status": "True", "lastTransitionTime": current_time()}]},
        });
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace, &instances);
        let body = serde_json::from_value(instance).map_err(kube::Error::SerdeError)?;
        api.create(&PostParams::default(), &body).await?;
    }
    for instance in &existing {
        let (namespace, name) = (instance.namespace().unwrap_or_default(), instance.name_any());
        if !vms.iter().any(|vm| vm.name_any() == name && vm.namespace() == instance.namespace()) {
            let api: Api<DynamicObject> =
                Api::namespaced_with(client.clone(), &namespace, &instances);
            api.delete(&name, &kube::api::DeleteParams::default()).await?;
        }
    }
    Ok(())
}
