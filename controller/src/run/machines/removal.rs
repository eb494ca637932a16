//! Marks machines for their removal, and reports the removals. The reconciler of removals drains and deletes the marked
//! machines.

use berth_api::names::{
    CONTROLLER_STATUS_FIELD_MANAGER, REMOVAL_ANNOTATION, REPLACEMENT_ANNOTATION,
};
use berth_kubevirt_render::machines::reconcile_steps::ExistingVm;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use super::context::MachineContext;
use super::errors::{RequestError, none_if_not_found, with_request};
use super::update_status::{MACHINES_REMOVED, StatusReport, report_conditions};
use super::validated::ValidatedDeployment;
use crate::api_resource::{deployment_resource, machine_resource};
use crate::removal::mark::{RemovalMark, RemovalReason};
use crate::removal::report::removal_fault;
use crate::run::api_requests::patch_params;
use crate::run::removal::DrainingTenant;
use crate::tenants::fault::Fault;

impl ValidatedDeployment<'_> {
    /// Marks a machine for its removal.
    pub(super) async fn mark_machine(&self, vm: &ExistingVm) -> Result<(), RequestError> {
        let reason = if vm.has_failed || !vm.is_current(&self.deployment) {
            RemovalReason::Rollout
        } else if vm.annotations.contains_key(REPLACEMENT_ANNOTATION) {
            // The replacement of the machine is available. If the drain of the host is cancelled, the mark is removed
            // again.
            RemovalReason::HostDrain
        } else {
            RemovalReason::ScaleDown
        };
        match self.context.machines.get(&self.namespace, &vm.name) {
            Some(object) => self.context.mark_machine(&object, reason).await,
            None => Ok(()),
        }
    }

    /// Returns the fault that describes the machines that are being removed; `None` if there are none.
    pub(super) fn removal_fault(&self) -> Option<Fault> {
        let own = self.vms.iter().filter(|vm| vm.is_owned_by(&self.owner));
        self.context.removal_fault_of(own.map(|vm| (self.namespace.as_str(), vm.name.as_str())))
    }
}

impl MachineContext {
    /// Marks a machine for its removal. An existing mark is not changed.
    async fn mark_machine(
        &self,
        vm: &DynamicObject,
        reason: RemovalReason,
    ) -> Result<(), RequestError> {
        if vm.annotations().contains_key(REMOVAL_ANNOTATION) {
            return Ok(());
        }
        let (namespace, name) = (vm.namespace().unwrap_or_default(), vm.name_any());
        // The patch contains the resource version. The API server therefore refuses it if another reconciler has marked
        // the machine meanwhile: for a machine on a lost host, the mark must stay as it is, because the Node of the
        // machine must stay.
        let patch = RemovalMark::new(reason, Timestamp::now()).patch_of(vm);
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &namespace, &machine_resource());
        let marked = api.patch(&name, &patch_params(), &Patch::Merge(patch)).await;
        let marked = none_if_not_found(marked);
        with_request(|| format!("mark VirtualMachine {namespace}/{name} for removal"), marked)?;
        tracing::info!(namespace, machine = name, %reason, "marked VirtualMachine for removal");
        Ok(())
    }

    /// Returns the tenant in whose cluster the Nodes of the machines of a namespace are drained.
    pub(super) async fn draining_tenant(
        &self,
        namespace: &str,
    ) -> Result<DrainingTenant, RequestError> {
        let found = DrainingTenant::find(&self.client, namespace, |name| self.tenants.get(name));
        with_request(|| format!("get TenantCluster of namespace {namespace}"), found.await)
    }

    /// Marks a machine whose MachineDeployment is being deleted.
    pub(super) async fn mark_for_deletion(&self, vm: &DynamicObject) -> Result<(), RequestError> {
        self.mark_machine(vm, RemovalReason::Deleted).await
    }

    fn removal_fault_of<'n>(
        &self,
        machines: impl Iterator<Item = (&'n str, &'n str)>,
    ) -> Option<Fault> {
        let report = |(namespace, name): (&str, &str)| {
            Some((name.to_owned(), self.removals.get(namespace, name)?))
        };
        removal_fault(&machines.filter_map(report).collect::<Vec<_>>())
    }

    /// Writes the condition about the machines of a MachineDeployment that is being deleted, if the condition has
    /// changed. The other conditions stay.
    pub(super) async fn update_removal_condition(
        &self,
        object: &DynamicObject,
        machines: &[DynamicObject],
    ) -> Result<(), RequestError> {
        let keys: Vec<(String, String)> =
            machines.iter().map(|vm| (vm.namespace().unwrap_or_default(), vm.name_any())).collect();
        let keys = keys.iter().map(|(namespace, name)| (namespace.as_str(), name.as_str()));
        let report = StatusReport::default();
        let report = report.with_removals(self.removal_fault_of(keys));
        let before = object.data.get("status").cloned().unwrap_or_else(|| json!({}));
        let conditions = report_conditions(&before, &report);
        let own = conditions.as_array().cloned().unwrap_or_default();
        let known = before["conditions"].as_array().cloned().unwrap_or_default();
        if own.iter().all(|one| known.contains(one)) {
            return Ok(());
        }
        let is_other = |one: &Value| one["type"] != MACHINES_REMOVED;
        let all: Vec<Value> = known.into_iter().filter(is_other).chain(own).collect();
        let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &namespace, &deployment_resource());
        let params = PatchParams {
            field_manager: Some(CONTROLLER_STATUS_FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let patch = Patch::Merge(json!({"status": {"conditions": all}}));
        let patched = none_if_not_found(api.patch_status(&name, &params, &patch).await);
        with_request(|| format!("patch status of MachineDeployment {namespace}/{name}"), patched)
            .map(drop)
    }
}
