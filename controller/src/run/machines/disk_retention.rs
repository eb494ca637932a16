//! Retained claims of removed disks: annotations of the VirtualMachines record them until their data is deleted.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use berth_kubevirt_render::machines::hotplug::{retained_claims, retained_patch};
use berth_kubevirt_render::machines::reconcile_steps::ExistingVm;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt as _;
use kube::api::{Api, ListParams, Patch};
use serde_json::Value;

use super::disk_pass::{DiskPass, sort_after};
use super::disk_report::DiskMessages;
use super::errors::{RequestError, has_changed, none_if_not_found, with_request};
use super::validated::ValidatedDeployment;
use crate::run::api_requests::patch_params;
use crate::run::packed_content::unpack_content;

/// Interval between lists of the DataVolumes and claims of a MachineDeployment that has retained claims.
const CHECK_PERIOD: Duration = Duration::from_secs(600);

impl ValidatedDeployment<'_> {
    /// Removes claims from the annotations of machines whose DataVolumes and PersistentVolumeClaims a user has deleted. A
    /// failed request for one machine does not prevent the update of the others.
    pub(super) async fn forget_deleted_claims(&self, messages: &mut DiskMessages) {
        let own = self.vms.iter().filter(|vm| vm.is_owned_by(&self.owner) && !vm.is_deleting);
        let mut machines: Vec<&ExistingVm> =
            own.filter(|vm| !vm.retained_claims().is_empty()).collect();
        if machines.is_empty() {
            return;
        }
        let checked = self.context.with_state(self.object, |memory| memory.retention_checked);
        let rest = checked.and_then(|checked| CHECK_PERIOD.checked_sub(checked.elapsed()));
        messages.next_check = Some(rest.unwrap_or(CHECK_PERIOD));
        if rest.is_some() {
            return;
        }
        let existing = self.list_existing_claims().await;
        // A failed list is repeated after the same time, because it would fail at each reconcile again without a permission.
        self.context
            .with_state(self.object, |memory| memory.retention_checked = Some(Instant::now()));
        let existing = match existing {
            Ok(Some(existing)) => existing,
            Ok(None) => {
                tracing::warn!(
                    namespace = %self.namespace, name = %self.object.name_any(),
                    "retained claims are not compared: the API server does not serve DataVolumes"
                );
                return;
            }
            Err(error) => {
                tracing::warn!(
                    namespace = %self.namespace, name = %self.object.name_any(), %error,
                    "retained claims are not compared: a list failed"
                );
                return;
            }
        };
        let last = self.context.with_state(self.object, |memory| memory.last_checked.clone());
        sort_after(&mut machines, last.as_deref());
        let (mut pass, begin) = (DiskPass::default(), Instant::now());
        for vm in machines {
            if messages.is_interrupted || pass.has_ended(begin.elapsed()) {
                break;
            }
            let result = self.forget_claims_of(vm, &existing).await;
            pass.record(&vm.name, result.is_err());
            if let Err(error) = result {
                messages.record_failure(vm, error);
            }
        }
        let last = pass.into_last();
        self.context.with_state(self.object, |memory| memory.last_checked = last);
    }

    /// Returns the names of all DataVolumes and PersistentVolumeClaims in the namespace of the machines; `None` if the API
    /// server does not serve DataVolumes. A claim can exist without its DataVolume, for example after a restore, and a user
    /// can remove the label of a DataVolume.
    async fn list_existing_claims(&self) -> Result<Option<BTreeSet<String>>, RequestError> {
        let params = ListParams::default();
        let request = || format!("list DataVolumes in namespace {}", self.namespace);
        let list = none_if_not_found(self.data_volumes_api().list_metadata(&params).await);
        let Some(volumes) = with_request(request, list)? else { return Ok(None) };
        let api: Api<PersistentVolumeClaim> =
            Api::namespaced(self.context.client.clone(), &self.namespace);
        let request = || format!("list PersistentVolumeClaims in namespace {}", self.namespace);
        let claims = with_request(request, api.list_metadata(&params).await)?;
        let volumes = volumes.items.iter().map(|volume| volume.name_any());
        Ok(Some(volumes.chain(claims.items.iter().map(|claim| claim.name_any())).collect()))
    }

    /// Removes the claims that do not exist from the annotation of a machine.
    async fn forget_claims_of(
        &self,
        vm: &ExistingVm,
        existing: &BTreeSet<String>,
    ) -> Result<(), RequestError> {
        let deleted: BTreeSet<String> =
            vm.retained_claims().difference(existing).cloned().collect();
        if deleted.is_empty() {
            return Ok(());
        }
        let Some(stored) = self.context.machines.get(&self.namespace, &vm.name) else {
            return Ok(());
        };
        let stored = serde_json::to_value(unpack_content(&stored)).unwrap_or_default();
        let Some(patch) = forget_patch(&stored, &vm.uid, &deleted) else { return Ok(()) };
        let patch = Patch::Merge(patch);
        let patched = self.machines_api().patch(&vm.name, &patch_params(), &patch).await;
        // The next check repeats a patch of a machine that has changed.
        if has_changed(&patched) {
            return Ok(());
        }
        let request = || format!("patch VirtualMachine {}/{}", self.namespace, vm.name);
        with_request(request, none_if_not_found(patched)).map(drop)
    }
}

/// Returns the merge patch that removes deleted claims from the retained ones of a VirtualMachine; `None` if it is another
/// VirtualMachine than that with the UID, or has none of them. The remaining claims are from the same version of the object
/// as the precondition of the patch: others may have been retained since the reconcile began.
fn forget_patch(stored: &Value, uid: &str, deleted: &BTreeSet<String>) -> Option<Value> {
    let claims = retained_claims(stored);
    let is_changed = !claims.is_disjoint(deleted);
    let remaining: BTreeSet<String> = claims.difference(deleted).cloned().collect();
    (stored["metadata"]["uid"] == *uid && is_changed).then(|| retained_patch(stored, &remaining))
}

#[cfg(test)]
mod tests {
    use berth_api::names::RETAINED_DISKS_ANNOTATION;
    use serde_json::json;

    use super::*;

    #[test]
    fn claims_that_were_retained_meanwhile_stay_recorded() {
        let stored = |claims: &str| {
            json!({"metadata": {
                "name": "web-1", "uid": "u-1", "resourceVersion": "8",
                "annotations": {RETAINED_DISKS_ANNOTATION: claims},
            }})
        };
        let deleted = BTreeSet::from(["web-1-disk-a".to_owned()]);
        let patch = forget_patch(&stored("web-1-disk-a,web-1-disk-b"), "u-1", &deleted).unwrap();
        let expected = json!({"metadata": {
            "resourceVersion": "8", "annotations": {RETAINED_DISKS_ANNOTATION: "web-1-disk-b"},
        }});
        assert_eq!(patch, expected);
        let last = forget_patch(&stored("web-1-disk-a"), "u-1", &deleted).unwrap();
        assert!(last["metadata"]["annotations"][RETAINED_DISKS_ANNOTATION].is_null());
        assert_eq!(forget_patch(&stored("web-1-disk-b"), "u-1", &deleted), None);
        assert_eq!(forget_patch(&stored("web-1-disk-a"), "u-2", &deleted), None);
    }
}
