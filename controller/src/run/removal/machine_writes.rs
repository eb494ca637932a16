//! Writes of a removal to the machine's VirtualMachine in the infra cluster.

use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, DynamicObject, Patch, Preconditions};
use kube::{Api, ResourceExt as _};
use serde_json::Value;

use super::context::Remover;
use super::drain::MarkedMachine;
use super::facts::VmState;
use crate::api_resource::machine_resource;
use crate::removal::host_return;
use crate::removal::mark::{RemovalMark, RemovalReason};
use crate::removal::plan::RemovalOutcome;
use crate::removal::progress;
use crate::run::api_requests::{RequestError, none_if_not_found, patch_params, with_request};

impl Remover {
    fn machines(&self, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.context.client.clone(), namespace, &machine_resource())
    }

    /// Writes a removal mark. Fails with a conflict if the VirtualMachine has changed meanwhile, because this change
    /// may have removed the mark.
    pub(super) async fn write_mark(
        &self,
        machine: &DynamicObject,
        removal: RemovalMark,
    ) -> Result<(), RequestError> {
        self.patch_machine(machine, removal.patch_of(machine)).await
    }

    /// Records that the host of a machine is lost or is back. Returns false if this was already recorded.
    pub(super) async fn record_host_return(
        &self,
        machine: &MarkedMachine,
        vm: VmState,
    ) -> Result<bool, RequestError> {
        let host = (vm.is_host_lost, vm.is_host_ready);
        let patch =
            host_return::record_patch(&machine.object, &machine.removal, host, Timestamp::now());
        let Some(patch) = patch else { return Ok(false) };
        tracing::info!(namespace = %machine.namespace, machine = %machine.name, is_host_lost = vm.is_host_lost, "the host of a machine in removal is lost or is back");
        self.patch_machine(&machine.object, patch).await?;
        Ok(true)
    }

    async fn patch_machine(
        &self,
        machine: &DynamicObject,
        patch: Value,
    ) -> Result<(), RequestError> {
        let (namespace, name) = (machine.namespace().unwrap_or_default(), machine.name_any());
        let patch = Patch::Merge(patch);
        let patched = self.machines(&namespace).patch(&name, &patch_params(), &patch).await;
        let request = || format!("patch VirtualMachine {namespace}/{name}");
        with_request(request, none_if_not_found(patched)).map(drop)
    }

    /// Records the name of the Node. If `deletion` is a reason, also records that the deletion of the Node begins,
    /// which cannot be undone. Fails with a conflict if the VirtualMachine has changed, because this change may have
    /// removed the mark. Returns false if the VirtualMachine does not exist any more.
    pub(super) async fn record_progress(
        &self,
        machine: &mut MarkedMachine,
        node: &str,
        deletion: Option<RemovalReason>,
    ) -> Result<bool, RequestError> {
        let Some(patch) = progress::record_patch(&machine.object, node, deletion) else {
            return Ok(true);
        };
        let (machines, patch) = (self.machines(&machine.namespace), Patch::Merge(patch));
        let patched = machines.patch_metadata(&machine.name, &patch_params(), &patch).await;
        let request = || format!("patch VirtualMachine {}/{}", machine.namespace, machine.name);
        let Some(patched) = with_request(request, none_if_not_found(patched))? else {
            return Ok(false);
        };
        machine.object.metadata = patched.metadata;
        Ok(true)
    }

    /// Deletes a machine, and reports the deletion.
    pub(super) async fn delete_machine(
        &self,
        machine: &MarkedMachine,
        outcome: RemovalOutcome,
    ) -> Result<(), RequestError> {
        let MarkedMachine { object, namespace, name, .. } = machine;
        // The precondition on the resource version prevents the deletion if the mark was removed a moment ago. Once the
        // Node has been deleted, the machine is deleted without this precondition, because its kubelet does not create
        // the Node again.
        let is_final = progress::reason_of_begun_deletion(object).is_some();
        let resource_version = object.resource_version().filter(|_| !is_final);
        let preconditions = Some(Preconditions { uid: object.uid(), resource_version });
        let params = DeleteParams { preconditions, ..DeleteParams::background() };
        let deleted = none_if_not_found(self.machines(namespace).delete(name, &params).await);
        with_request(|| format!("delete VirtualMachine {namespace}/{name}"), deleted)?;
        self.report_deletion(machine, outcome).await;
        Ok(())
    }
}
