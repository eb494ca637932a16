//! Simulation of the kubelets of a tenant's Nodes: scheduled pods run, and pods that are being deleted end.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use tokio::runtime::Runtime;

use super::{create_client, create_runtime};

/// Namespace of the pods.
const NAMESPACE: &str = "default";

/// Running simulation of kubelets, stopped on drop.
#[derive(Debug)]
pub struct Kubelets {
    runtime: Option<Runtime>,
    fewest_healthy: Arc<AtomicUsize>,
}

impl Kubelets {
    /// Starts the simulation for pods in the namespace `default`.
    ///
    /// # Errors
    /// Fails if there is no thread or no kubeconfig.
    pub fn start(kubeconfig: &Path) -> Result<Self> {
        let runtime = create_runtime()?;
        let client = runtime.block_on(create_client(kubeconfig))?;
        let fewest_healthy = Arc::new(AtomicUsize::new(usize::MAX));
        let observed = Arc::clone(&fewest_healthy);
        runtime.spawn(async move {
            loop {
                // After an error, such as a conflict or a busy server, the next iteration tries again.
                if let Ok(count) = sync_pods(&client).await {
                    observed.fetch_min(count, Ordering::SeqCst);
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        Ok(Self { runtime: Some(runtime), fewest_healthy })
    }

    /// Returns the smallest number of healthy pods since the start, or since the last call of
    /// [`Self::reset_fewest_healthy_pods`].
    #[must_use]
    pub fn fewest_healthy_pods(&self) -> usize {
        self.fewest_healthy.load(Ordering::SeqCst)
    }

    /// Resets the result of [`Self::fewest_healthy_pods`], which then covers only the time after this call.
    pub fn reset_fewest_healthy_pods(&self) {
        self.fewest_healthy.store(usize::MAX, Ordering::SeqCst);
    }
}

impl Drop for Kubelets {
    fn drop(&mut self) {
        self.runtime.take().map(Runtime::shutdown_background).unwrap_or_default();
    }
}

/// Updates the pods. Returns the number of pods that were healthy for a PodDisruptionBudget.
async fn sync_pods(client: &Client) -> kube::Result<usize> {
    let api: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let pods = api.list(&ListParams::default()).await?.items;
    let is_ready = |pod: &Pod| {
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
        let mut conditions = conditions.into_iter().flatten();
        conditions.any(|one| one.type_ == "Ready" && one.status == "True")
    };
    let is_deleting = |pod: &Pod| pod.metadata.deletion_timestamp.is_some();
    let healthy = pods.iter().filter(|pod| is_ready(pod) && !is_deleting(pod)).count();
    for pod in &pods {
        let is_scheduled = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
        if is_deleting(pod) {
            let at_once = DeleteParams::default().grace_period(0);
            api.delete(&pod.name_any(), &at_once).await?;
        } else if is_scheduled && !is_ready(pod) {
            let condition = |type_: &str| json!({"type": type_, "status": "True"});
            let conditions = [condition("PodScheduled"), condition("Ready")];
            let status = json!({"status": {"phase": "Running", "conditions": conditions}});
            let patch = Patch::Merge(status);
            api.patch_status(&pod.name_any(), &PatchParams::default(), &patch).await?;
        }
    }
    Ok(healthy)
}
