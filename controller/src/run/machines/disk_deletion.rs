//! Deletes the DataVolumes of disks that were removed from a template with `removalPolicy: Delete`.

use std::collections::BTreeSet;

use berth_kubevirt_render::machines::hotplug::{
    detached_claims, detached_patch, is_claim_in_use, is_own_volume,
};
use berth_kubevirt_render::machines::reconcile_steps::ExistingVm;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, Patch, Preconditions};
use serde_json::Value;

use super::disk_report::DiskMessages;
use super::errors::{RequestError, has_changed, none_if_not_found, with_request};
use super::resources::{data_volume_resource, instance_resource};
use super::validated::ValidatedDeployment;
use crate::run::api_requests::patch_params;

/// Progress of the deletion of a disk's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeletionProgress {
    /// The machine has no data of the disk any more.
    Complete,
    /// The DataVolume or its claim is being deleted.
    Deleting,
    /// The claim exists without its DataVolume. The controller deletes no claims.
    ClaimWithoutVolume,
}

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
                    Ok(DeletionProgress::Complete) => {
                        remaining.remove(claim);
                    }
                    Ok(DeletionProgress::Deleting) => {
                        let message = format!("machine {}: {claim} is being deleted", vm.name);
                        messages.pending.push(message);
                    }
                    Ok(DeletionProgress::ClaimWithoutVolume) => {
                        let message = format!(
                            "machine {}: the data of a removed disk is not deleted, because its claim has no DataVolume: \
                             delete PersistentVolumeClaim {claim}",
                            vm.name
                        );
                        messages.refused.push(message);
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

    /// Deletes the DataVolume of a detached disk of the VirtualMachine `vm`, and with it its claim.
    async fn delete_data_volume(
        &self,
        name: &str,
        vm: &Value,
    ) -> Result<DeletionProgress, RequestError> {
        let api = self.data_volumes_api();
        let request = || format!("get DataVolume {}/{name}", self.namespace);
        let found = with_request(request, none_if_not_found(api.get(name).await))?;
        let Some(found) = found else { return self.find_remaining_claim(name).await };
        let uid = found.metadata.uid.clone();
        let is_deleting = found.metadata.deletion_timestamp.is_some();
        if !serde_json::to_value(found).is_ok_and(|found| is_own_volume(&found, vm)) {
            tracing::warn!(
                namespace = %self.namespace, name,
                "the DataVolume of a removed disk belongs to another object and is not deleted"
            );
            return Ok(DeletionProgress::Complete);
        }
        if is_deleting {
            return Ok(DeletionProgress::Deleting);
        }
        let preconditions = Some(Preconditions { uid, resource_version: None });
        // In the foreground, the DataVolume exists until its claim is deleted. Otherwise a disk that is added with the same
        // name would get the claim that is being deleted.
        let params = DeleteParams { preconditions, ..DeleteParams::foreground() };
        let request = || format!("delete DataVolume {}/{name}", self.namespace);
        with_request(request, none_if_not_found(api.delete(name, &params).await))?;
        tracing::info!(namespace = %self.namespace, name, "deleting the DataVolume of a removed disk");
        Ok(DeletionProgress::Deleting)
    }

    /// Reads the claim of a DataVolume that does not exist. CDI can delete a DataVolume without its claim
    /// (`dataVolumeTTLSeconds` of old releases), and so can users (`kubectl delete --cascade=orphan`).
    async fn find_remaining_claim(&self, name: &str) -> Result<DeletionProgress, RequestError> {
        let api: Api<PersistentVolumeClaim> =
            Api::namespaced(self.context.client.clone(), &self.namespace);
        let request = || format!("get PersistentVolumeClaim {}/{name}", self.namespace);
        let found = with_request(request, none_if_not_found(api.get_metadata(name).await))?;
        Ok(progress_without_volume(found.as_ref().map(|claim| &claim.metadata)))
    }
}

/// Returns the progress for a disk without a DataVolume, from the metadata of its claim.
fn progress_without_volume(claim: Option<&ObjectMeta>) -> DeletionProgress {
    let Some(claim) = claim else { return DeletionProgress::Complete };
    // Kubernetes deletes the claims of deleted DataVolumes.
    let mut owners = claim.owner_references.iter().flatten();
    if claim.deletion_timestamp.is_some() || owners.any(|owner| owner.kind == "DataVolume") {
        DeletionProgress::Deleting
    } else {
        DeletionProgress::ClaimWithoutVolume
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_claim_without_a_data_volume_is_not_deleted_data() {
        let progress = |metadata: Value| {
            let metadata: ObjectMeta = serde_json::from_value(metadata).unwrap();
            progress_without_volume(Some(&metadata))
        };
        let owner =
            |kind: &str| json!([{"apiVersion": "x/v1", "kind": kind, "name": "a", "uid": "u"}]);
        assert_eq!(progress_without_volume(None), DeletionProgress::Complete);
        assert_eq!(progress(json!({"name": "a"})), DeletionProgress::ClaimWithoutVolume);
        let of_machine = progress(json!({"ownerReferences": owner("VirtualMachine")}));
        assert_eq!(of_machine, DeletionProgress::ClaimWithoutVolume);
        let of_volume = progress(json!({"ownerReferences": owner("DataVolume")}));
        assert_eq!(of_volume, DeletionProgress::Deleting);
        let deleted = progress(json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}));
        assert_eq!(deleted, DeletionProgress::Deleting);
    }
}
