//! Retained claims of removed disks: annotations of the VirtualMachines record them until their DataVolumes are deleted.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use berth_api::names::HOTPLUG_DISK_LABEL;
use berth_kubevirt_render::machines::hotplug::retained_patch;
use kube::ResourceExt as _;
use kube::api::{ListParams, Patch};

use super::errors::{RequestError, has_changed, none_if_not_found, with_request};
use super::validated::ValidatedDeployment;
use crate::run::api_requests::patch_params;

/// Interval between lists of the DataVolumes of a MachineDeployment that has retained claims.
const CHECK_PERIOD: Duration = Duration::from_secs(600);

impl ValidatedDeployment<'_> {
    /// Removes claims from the annotations of machines whose DataVolumes a user has deleted. Returns the time until the next
    /// check; `None` if no machine has retained claims.
    pub(super) async fn forget_deleted_claims(&self) -> Result<Option<Duration>, RequestError> {
        let own = self.vms.iter().filter(|vm| vm.is_owned_by(&self.owner) && !vm.is_deleting);
        let machines: Vec<_> = own.filter(|vm| !vm.retained_claims().is_empty()).collect();
        if machines.is_empty() {
            return Ok(None);
        }
        let checked = self.context.with_state(self.object, |memory| memory.retention_checked);
        let rest = checked.and_then(|checked| CHECK_PERIOD.checked_sub(checked.elapsed()));
        if rest.is_some() {
            return Ok(rest);
        }
        let params = ListParams::default().labels(HOTPLUG_DISK_LABEL);
        let request = || format!("list DataVolumes in namespace {}", self.namespace);
        let list = none_if_not_found(self.data_volumes_api().list_metadata(&params).await);
        let list = with_request(request, list)?.map(|list| list.items).unwrap_or_default();
        let existing: BTreeSet<String> = list.iter().map(|one| one.name_any()).collect();
        for vm in machines {
            let claims = vm.retained_claims();
            let remaining: BTreeSet<String> = claims.intersection(&existing).cloned().collect();
            let stored = self.context.machines.get(&self.namespace, &vm.name);
            let Some(stored) = stored.filter(|_| remaining != claims) else { continue };
            let identity =
                serde_json::json!({"metadata": {"resourceVersion": stored.resource_version()}});
            let patch = Patch::Merge(retained_patch(&identity, &remaining));
            let patched = self.machines_api().patch(&vm.name, &patch_params(), &patch).await;
            // The next check repeats a patch of a machine that has changed.
            if has_changed(&patched) {
                continue;
            }
            let request = || format!("patch VirtualMachine {}/{}", self.namespace, vm.name);
            with_request(request, none_if_not_found(patched))?;
        }
        self.context
            .with_state(self.object, |memory| memory.retention_checked = Some(Instant::now()));
        Ok(Some(CHECK_PERIOD))
    }
}
