//! Simulation of the kubelets of all Nodes and of the programs in CDI's pods: the importer, the two programs that copy a
//! volume, the program that asks a registry for a new image, and the pod that only uses a claim. Launcher pods run.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

use super::storage::{Origin, Storage, volume_name};
use crate::kubevirt::current_time;

/// Label of CDI's pods: the program.
const COMPONENT_LABEL: &str = "cdi.kubevirt.io";
/// Annotation of the pod that reads the source of a copy: NAMESPACE/NAME of the claim to which it is copied.
const TARGET_ANNOTATION: &str = "cdi.kubevirt.io/storage.ownerRef";
/// Annotation of a DataImportCron: digest of the most recent image.
const DIGEST_ANNOTATION: &str = "cdi.kubevirt.io/storage.import.sourceDesiredDigest";
/// Container of the pod that asks a registry for a new image.
const POLLER: &str = "cdi-source-update-poller";
/// Container that the kubelet creates from an image with a schedule, because its digest is needed.
const PULLED_IMAGE: &str = "image-container";
/// Beginning of the address from which an importer reads an image that the kubelet has pulled.
const PULLED_IMAGE_ADDRESS: &str = "http://localhost:";
/// Volume of the pods with the claim that they read or write. Importers may have another claim for temporary files.
const DATA_VOLUME: &str = "cdi-data-vol";

/// Program in a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    Importer,
    UploadServer,
    CloneSource,
    Poller,
    PulledImage,
    Preparation,
    /// A VM, or a program that the simulation does not know.
    Other,
}

/// Kubelets of all Nodes.
pub(super) struct Kubelets {
    client: Client,
    crons: ApiResource,
    storage: Arc<Storage>,
    /// Images that pods have downloaded, by the UID of the pod.
    imports: Arc<Mutex<BTreeMap<String, String>>>,
}

impl Kubelets {
    pub(super) fn new(
        client: Client,
        storage: Arc<Storage>,
        imports: Arc<Mutex<BTreeMap<String, String>>>,
    ) -> Self {
        let kind = GroupVersionKind::gvk("cdi.kubevirt.io", "v1beta1", "DataImportCron");
        Self { client, crons: ApiResource::from_gvk(&kind), storage, imports }
    }

    /// Handles each pod once. Returns the first error, after all pods.
    pub(super) async fn sync(&self) -> Result<()> {
        let all: Api<Pod> = Api::all(self.client.clone());
        let pods = all.list(&ListParams::default().match_any()).await?.items;
        let mut result = Ok(());
        for pod in &pods {
            result = result.and(self.sync_pod(pod, &pods).await);
        }
        result
    }

    async fn sync_pod(&self, pod: &Pod, pods: &[Pod]) -> Result<()> {
        let api: Api<Pod> =
            Api::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
        if pod.metadata.deletion_timestamp.is_some() {
            let at_once = DeleteParams::default().grace_period(0);
            return match api.delete(&pod.name_any(), &at_once).await {
                Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
                deleted => Ok(deleted.map(drop)?),
            };
        }
        if pod.spec.as_ref().is_none_or(|spec| spec.node_name.is_none()) {
            return Ok(());
        }
        let status = match phase(pod) {
            "Pending" => running_status(pod),
            "Running" => {
                if !self.run(pod, pods).await? {
                    return Ok(());
                }
                ended_status(pod)
            }
            _ => return Ok(()),
        };
        api.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(status)).await?;
        Ok(())
    }

    /// Runs the program of a pod. Returns true if the program has ended.
    async fn run(&self, pod: &Pod, pods: &[Pod]) -> Result<bool> {
        match program(pod) {
            Program::Importer => {
                let image = imported_image(pod).context("the importer has no image")?;
                self.storage.write(&self.data_volume(pod).await?, &image, Origin::Import);
                let mut imports = self.imports.lock().unwrap_or_else(PoisonError::into_inner);
                imports.insert(pod.uid().unwrap_or_default(), image);
            }
            Program::UploadServer => {
                let target = format!(
                    "{}/{}",
                    pod.namespace().unwrap_or_default(),
                    data_claim(pod).unwrap_or_default()
                );
                let is_source = |one: &&Pod| {
                    one.annotations().get(TARGET_ANNOTATION) == Some(&target)
                        && phase(one) == "Succeeded"
                };
                let Some(source) = pods.iter().find(is_source) else { return Ok(false) };
                let from = self.storage.volume(&self.data_volume(source).await?);
                let content = from.context("the source of a copy has no volume")?.content;
                self.storage.write(&self.data_volume(pod).await?, &content, Origin::Copy);
            }
            Program::Poller => self.publish_digest(pod).await?,
            Program::CloneSource | Program::Preparation | Program::PulledImage => {}
            Program::Other => return Ok(false),
        }
        Ok(true)
    }

    /// Returns the name of the volume of the claim that a pod reads or writes.
    async fn data_volume(&self, pod: &Pod) -> Result<String> {
        let namespace = pod.namespace().unwrap_or_default();
        let claim = data_claim(pod).with_context(|| {
            format!("Pod {namespace}/{}: volume {DATA_VOLUME}: is missing", pod.name_any())
        })?;
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), &namespace);
        let claim = claims.get(claim).await?;
        let name = volume_name(&claim).context("a claim that a pod uses has no volume")?;
        Ok(name.to_owned())
    }

    /// Writes the digest of the image to the DataImportCron that the arguments of a poller name.
    async fn publish_digest(&self, pod: &Pod) -> Result<()> {
        let command = container(pod)["command"].as_array().cloned().unwrap_or_default();
        let argument = |flag: &str| {
            let at = command.iter().position(|one| one == flag)?;
            command.get(at.saturating_add(1))?.as_str()
        };
        let namespace = argument("-ns").context("the poller has no -ns")?;
        let cron = argument("-cron").context("the poller has no -cron")?;
        let crons: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), namespace, &self.crons);
        let patch = json!({"metadata": {"annotations": {DIGEST_ANNOTATION: digest()}}});
        crons.patch(cron, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }
}

fn program(pod: &Pod) -> Program {
    match container(pod)["name"].as_str() {
        Some(POLLER) => return Program::Poller,
        Some(PULLED_IMAGE) => return Program::PulledImage,
        _ => {}
    }
    match pod.labels().get(COMPONENT_LABEL).map(String::as_str) {
        Some("importer") => Program::Importer,
        Some("cdi-upload-server") => Program::UploadServer,
        Some("cdi-clone-source") => Program::CloneSource,
        Some("cdi-populator-prep") => Program::Preparation,
        _ => Program::Other,
    }
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// Returns the image that an importer downloads, or that the kubelet has pulled for the second container of its pod.
fn imported_image(pod: &Pod) -> Option<String> {
    let endpoint = environment_variable(pod, "IMPORTER_ENDPOINT")?;
    if !endpoint.starts_with(PULLED_IMAGE_ADDRESS) {
        return Some(endpoint);
    }
    let image = pod.spec.as_ref()?.containers.get(1)?.image.as_ref()?;
    Some(format!("docker://{image}"))
}

/// Returns the digest of all images in the registry.
fn digest() -> String {
    format!("sha256:{}", "0123456789abcdef".repeat(4))
}

/// Returns the first container of a pod.
fn container(pod: &Pod) -> Value {
    let container = pod.spec.as_ref().and_then(|spec| spec.containers.first());
    container.and_then(|one| serde_json::to_value(one).ok()).unwrap_or_default()
}

fn environment_variable(pod: &Pod, name: &str) -> Option<String> {
    let container = container(pod);
    let variable = container["env"].as_array()?.iter().find(|one| one["name"] == name)?;
    variable["value"].as_str().map(str::to_owned)
}

/// Returns the name of the claim that a pod of CDI reads or writes.
fn data_claim(pod: &Pod) -> Option<&str> {
    let volumes = pod.spec.as_ref()?.volumes.as_ref()?;
    let data = volumes.iter().find(|volume| volume.name == DATA_VOLUME)?;
    Some(data.persistent_volume_claim.as_ref()?.claim_name.as_str())
}

fn running_status(pod: &Pod) -> Value {
    status(pod, "Running", true, &json!({"running": {"startedAt": current_time()}}))
}

/// Returns the status of a pod whose program has ended, with a message as CDI's programs write it.
fn ended_status(pod: &Pod) -> Value {
    let terminated = json!({"terminated": {
        "exitCode": 0, "reason": "Completed", "message": r#"{"message": "Import Complete"}"#,
        "startedAt": current_time(), "finishedAt": current_time(),
    }});
    status(pod, "Succeeded", false, &terminated)
}

fn status(pod: &Pod, phase: &str, is_ready: bool, state: &Value) -> Value {
    let container = container(pod);
    let image_id = format!("{}@{}", container["image"].as_str().unwrap_or_default(), digest());
    let ready = if is_ready { "True" } else { "False" };
    json!({"status": {
        "phase": phase,
        "conditions": [
            {"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": ready},
        ],
        "containerStatuses": [{
            "name": container["name"], "image": container["image"], "imageID": image_id, "ready": is_ready,
            "started": is_ready, "restartCount": 0, "state": state,
        }],
    }})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_those_of_cdi() {
        let pod = |labels: Value, container: &str| -> Pod {
            let volumes = json!([
                {"name": "cdi-scratch-vol", "persistentVolumeClaim": {"claimName": "a-scratch"}},
                {"name": DATA_VOLUME, "persistentVolumeClaim": {"claimName": "a"}},
            ]);
            let containers = json!([
                {"name": container, "image": "x", "env": [{"name": "IMPORTER_ENDPOINT", "value": "http://a"}]},
            ]);
            serde_json::from_value(json!({
                "metadata": {"labels": labels}, "spec": {"containers": containers, "volumes": volumes},
            }))
            .unwrap()
        };
        let importer = pod(json!({COMPONENT_LABEL: "importer"}), "importer");
        assert_eq!(program(&importer), Program::Importer);
        assert_eq!(data_claim(&importer), Some("a"));
        let image = environment_variable(&importer, "IMPORTER_ENDPOINT");
        assert_eq!(image.as_deref(), Some("http://a"));
        assert_eq!(program(&pod(json!({}), POLLER)), Program::Poller);
        assert_eq!(program(&pod(json!({}), PULLED_IMAGE)), Program::PulledImage);
        assert_eq!(
            program(&pod(json!({"kubevirt.io": "virt-launcher"}), "compute")),
            Program::Other
        );
    }
}
