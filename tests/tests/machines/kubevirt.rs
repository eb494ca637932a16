//! A stand-in for KubeVirt: what is created comes to run, and what is deleted goes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};
use serde_json::json;
use tokio::runtime::Runtime;

/// A client as the administrator.
async fn client(kubeconfig: &std::path::Path) -> Client {
    let read = Kubeconfig::read_from(kubeconfig).unwrap();
    let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await.unwrap();
    Client::try_from(config).unwrap()
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// A controller that is ended, wherever it is, when this is dropped.
pub(crate) struct Controller(Option<Runtime>);

impl Controller {
    pub(crate) fn start(kubeconfig: &std::path::Path) -> Self {
        let (runtime, path) = (runtime(), kubeconfig.to_owned());
        runtime.spawn(async move {
            berth_controller::run::machines::run(client(&path).await).await;
        });
        Self(Some(runtime))
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// The stand-in.
pub(crate) struct KubeVirt {
    _runtime: Runtime,
    /// Whether machines come to run.
    pub(crate) works: Arc<AtomicBool>,
}

impl KubeVirt {
    pub(crate) fn start(kubeconfig: &std::path::Path) -> Self {
        let (runtime, path) = (runtime(), kubeconfig.to_owned());
        let works = Arc::new(AtomicBool::new(true));
        let may = Arc::clone(&works);
        runtime.spawn(async move {
            let client = client(&path).await;
            loop {
                // A conflict or a server that is busy: the next round.
                drop(round(&client, may.load(Ordering::SeqCst)).await);
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        Self { _runtime: runtime, works }
    }
}

async fn round(client: &Client, works: bool) -> kube::Result<()> {
    let resource =
        |kind: &str| ApiResource::from_gvk(&GroupVersionKind::gvk("kubevirt.io", "v1", kind));
    let (machines, instances) = (resource("VirtualMachine"), resource("VirtualMachineInstance"));
    let all: Api<DynamicObject> = Api::all_with(client.clone(), &machines);
    let running: Api<DynamicObject> = Api::all_with(client.clone(), &instances);
    let there = running.list(&ListParams::default()).await?.items;
    let vms = all.list(&ListParams::default()).await?.items;
    for vm in &vms {
        let (namespace, name) = (vm.namespace().unwrap_or_default(), vm.name_any());
        if there.iter().any(|one| one.name_any() == name && one.namespace() == vm.namespace()) {
            continue;
        }
        // A launcher waits for the Secret that is to be mounted.
        let secrets: Api<Secret> = Api::namespaced(client.clone(), &namespace);
        let has_data = secrets.get_opt(&format!("userdata-{name}")).await?.is_some();
        if !works || !has_data {
            continue;
        }
        // This kind's status is no subresource.
        let instance = json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": name, "namespace": namespace, "labels": vm.labels()},
            "spec": {"domain": {"devices": {}}},
            "status": {"phase": "Running", "conditions":
                [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
        });
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace, &instances);
        let body = serde_json::from_value(instance).map_err(kube::Error::SerdeError)?;
        api.create(&PostParams::default(), &body).await?;
    }
    for instance in &there {
        let (namespace, name) = (instance.namespace().unwrap_or_default(), instance.name_any());
        if !vms.iter().any(|vm| vm.name_any() == name && vm.namespace() == instance.namespace()) {
            let api: Api<DynamicObject> =
                Api::namespaced_with(client.clone(), &namespace, &instances);
            api.delete(&name, &kube::api::DeleteParams::default()).await?;
        }
    }
    Ok(())
}
