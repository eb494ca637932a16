//! Simulation of virt-handler on all Nodes: the guest of each VM whose pod runs starts, a deleted VM shuts down, a live
//! migration moves the VM to its target pod, and hotplugged volumes are attached and released.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{
    ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

use super::simulation::current_time;
use super::{hotplug, migration};

/// virt-handler on all Nodes.
pub(super) struct VirtHandlers {
    client: Client,
    instances: ApiResource,
    completes_migrations: Arc<AtomicBool>,
    releases_disks: Arc<AtomicBool>,
}

impl VirtHandlers {
    /// `client` must have the permission to write the status of VirtualMachineInstances.
    pub(super) fn new(
        client: Client,
        completes_migrations: Arc<AtomicBool>,
        releases_disks: Arc<AtomicBool>,
    ) -> Self {
        let kind = GroupVersionKind::gvk("kubevirt.io", "v1", "VirtualMachineInstance");
        let instances = ApiResource::from_gvk(&kind);
        Self { client, instances, completes_migrations, releases_disks }
    }

    /// Handles each instance once. Returns the first error, after all instances.
    pub(super) async fn sync(&self) -> Result<()> {
        let all: Api<DynamicObject> = Api::all_with(self.client.clone(), &self.instances);
        let mut result = Ok(());
        for instance in all.list(&ListParams::default()).await?.items {
            result = result.and(self.sync_instance(&instance).await);
        }
        result
    }

    async fn sync_instance(&self, current: &DynamicObject) -> Result<()> {
        let mut instance = serde_json::to_value(current)?;
        if migration::is_complete(&instance) {
            self.end_source_pod(&instance).await?;
        }
        let completes = self.completes_migrations.load(Ordering::SeqCst);
        let releases = self.releases_disks.load(Ordering::SeqCst);
        if !advance(&mut instance, completes, releases) {
            return Ok(());
        }
        instance["apiVersion"] = self.instances.api_version.clone().into();
        instance["kind"] = self.instances.kind.clone().into();
        let namespace = current.namespace().unwrap_or_default();
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &namespace, &self.instances);
        // The kind VirtualMachineInstance has no status subresource. A patch of a list would remove fields with the
        // value null from the list, and virt-controller's patches, which test the whole list, would then fail forever.
        let instance = serde_json::from_value(instance)?;
        match api.replace(&current.name_any(), &PostParams::default(), &instance).await {
            // Another program has changed or deleted the instance. The next call of `sync` handles the new version.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            replaced => Ok(replaced.map(drop)?),
        }
    }

    /// Ends the pod on the source Node of a completed migration: virt-launcher exits there.
    async fn end_source_pod(&self, instance: &Value) -> Result<()> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (metadata, state) = (&instance["metadata"], &instance["status"]["migrationState"]);
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &text(&metadata["namespace"]));
        let labels = format!("kubevirt.io/created-by={}", text(&metadata["uid"]));
        let source = format!("spec.nodeName={}", text(&state["sourceNode"]));
        let params = ListParams::default().labels(&labels).fields(&source);
        for pod in pods.list(&params).await?.items {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            if phase != Some("Running") || pod.metadata.deletion_timestamp.is_some() {
                continue;
            }
            let not_ready = json!({"type": "Ready", "status": "False", "reason": "PodCompleted",
                "lastTransitionTime": current_time()});
            let status = json!({"status": {"phase": "Succeeded", "conditions": [not_ready]}});
            let patch = Patch::Strategic(status);
            pods.patch_status(&pod.name_any(), &PatchParams::default(), &patch).await?;
        }
        Ok(())
    }
}

/// Changes an instance to its next state. Returns false if nothing changes.
fn advance(instance: &mut Value, completes_migrations: bool, releases_disks: bool) -> bool {
    let is_deleted = !instance["metadata"]["deletionTimestamp"].is_null();
    let phase = instance["status"]["phase"].as_str().unwrap_or_default().to_owned();
    match phase.as_str() {
        "Scheduled" | "Running" if is_deleted => {
            enter_phase(instance, "Succeeded");
            true
        }
        "Scheduled" | "Running" if hotplug::advance(instance, releases_disks) => true,
        "Scheduled" if !hotplug::are_volumes_mounted(instance) => false,
        "Scheduled" => {
            enter_phase(instance, "Running");
            // virt-controller creates no target pod of a migration without this field.
            instance["status"]["selinuxContext"] = "none".into();
            add_migratable_condition(instance);
            true
        }
        "Running" => migration::advance(instance, completes_migrations),
        _ => false,
    }
}

/// Sets the phase and its timestamp. virt-controller starts an instance again without a delay only if the timestamps
/// show that the instance was running.
fn enter_phase(instance: &mut Value, phase: &str) {
    instance["status"]["phase"] = phase.into();
    let entered = json!({"phase": phase, "phaseTransitionTimestamp": current_time()});
    push(&mut instance["status"]["phaseTransitionTimestamps"], entered);
}

/// Adds the condition that the VM can be migrated.
fn add_migratable_condition(instance: &mut Value) {
    // KubeVirt's Go type serializes an unset `lastProbeTime` as null.
    let condition = json!({
        "type": "LiveMigratable", "status": "True", "lastProbeTime": null,
        "lastTransitionTime": current_time(),
    });
    push(&mut instance["status"]["conditions"], condition);
}

/// Adds an item to a list, which is null if it is empty.
fn push(list: &mut Value, item: Value) {
    match list {
        Value::Array(items) => items.push(item),
        list => *list = json!([item]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_start_and_shut_down() {
        let condition = json!({"type": "Ready", "status": "False", "lastProbeTime": null});
        let mut instance = json!({"metadata": {"name": "a"},
            "status": {"phase": "Scheduled", "conditions": [condition]}});
        assert!(advance(&mut instance, true, true));
        assert_eq!(instance["status"]["phase"], "Running");
        assert_eq!(instance["status"]["phaseTransitionTimestamps"][0]["phase"], "Running");
        assert_eq!(instance["status"]["conditions"][0], condition);
        assert_eq!(instance["status"]["conditions"][1]["type"], "LiveMigratable");
        assert!(!advance(&mut instance, true, true));
        instance["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        assert!(advance(&mut instance, true, true));
        assert_eq!(instance["status"]["phase"], "Succeeded");
        assert!(!advance(&mut instance, true, true));
    }
}
