//! Deletes the DataVolumes of disks that were removed from a template with `removalPolicy: Delete`.

use std::collections::BTreeSet;

use berth_kubevirt_render::machines::hotplug::{
    detached_claims, detached_patch, is_claim_in_use, is_own_volume,
};
use berth_kubevirt_render::machines::reconcile_steps::ExistingVm;
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, Patch, Preconditions};
use serde_json::Value;

use super::disk_report::DiskMessages;
use super::errors::{RequestError, has_changed, none_if_not_found, with_request};
use super::resources::{data_volume_resource, instance_resource};
use super::validated::ValidatedDeployment;
use crate::run::api_requests::patch_params;

impl ValidatedDeployment<'_> {
    pub(super) fn data_volumes_api(&self) -> Api<DynamicObject> {
        let kind = data_volume_resource();
        Api::namespaced_with(self.context.client.clone(), &self.namespace, &kind)
    }

    /// Deletes the DataVolumes of detached disks that neither the VirtualMachine nor its instance uses.
    pub(super) async fn delete_detached(
        &self,
        vm: &ExistingVm,
        object: &Value,
        detached: &BTreeSet<String>,
        messages: &mut DiskMessages,
    ) -> Result<(), RequestError> {
        let instances: Api<DynamicObject> = Api::namespaced_with(
            self.context.client.clone(),
            &self.namespace,
            &instance_resource(),
        );
        let instance = with_request(
            || format!("get VirtualMachineInstance {}/{}", self.namespace, vm.name),
            none_if_not_found(instances.get(&vm.name).await),
        )?;
        let instance = instance.and_then(|instance| serde_json::to_value(instance).ok());
        let mut remaining = detached_claims(object);
        for claim in detached {
            if is_claim_in_use(object, instance.as_ref(), claim) {
                let message = format!("machine {}: {claim} is being detached", vm.name);
                messages.pending.push(message);
            } else {
                match self.delete_data_volume(claim, object).await {
                    Ok(true) => {
                        remaining.remove(claim);
                    }
                    Ok(false) => {
                        let message = format!("machine {}: {claim} is being deleted", vm.name);
                        messages.pending.push(message);
                    }
                    Err(error) => messages.record_failure(vm, error),
                }
            }
        }
        if remaining == detached_claims(object) {
            return Ok(());
        }
        let patch = Patch::Merge(detached_patch(object, &remaining));
        let patched = self.machines_api().patch(&vm.name, &patch_params(), &patch).await;
        if has_changed(&patched) {
            messages.record_change(vm);
            return Ok(());
        }
        let request = || format!("patch VirtualMachine {}/{}", self.namespace, vm.name);
        with_request(request, none_if_not_found(patched)).map(drop)
    }

    /// Deletes the DataVolume of a detached disk of the VirtualMachine `vm`, and with it its claim. Returns true if the
    /// machine does not have the DataVolume any more.
    async fn delete_data_volume(&self, name: &str, vm: &Value) -> Result<bool, RequestError> {
        let api = self.data_volumes_api();
        let request = || format!("get DataVolume {}/{name}", self.namespace);
        let found = with_request(request, none_if_not_found(api.get(name).await))?;
        let Some(found) = found else { return Ok(true) };
        let uid = found.metadata.uid.clone();
        let is_deleting = found.metadata.deletion_timestamp.is_some();
        if !serde_json::to_value(found).is_ok_and(|found| is_own_volume(&found, vm)) {
            tracing::warn!(
                namespace = %self.namespace, name,
                "the DataVolume of a removed disk belongs to another object and is not deleted"
            );
            return Ok(true);
        }
        if is_deleting {
            return Ok(false);
        }
        let preconditions = Some(Preconditions { uid, resource_version: None });
        // In the foreground, the DataVolume exists until its claim is deleted. Otherwise a disk that is added with the same
        // name would get the claim that is being deleted.
        let params = DeleteParams { preconditions, ..DeleteParams::foreground() };
        let request = || format!("delete DataVolume {}/{name}", self.namespace);
        with_request(request, none_if_not_found(api.delete(name, &params).await))?;
        tracing::info!(namespace = %self.namespace, name, "deleting the DataVolume of a removed disk");
        Ok(false)
    }
}
