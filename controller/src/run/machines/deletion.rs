//! Finalizes a MachineDeployment that is being deleted: deletes its machines, after a drain if their tenant has a
//! kubeconfig, then removes the finalizer. Only the metadata of the object is used, so the deletion succeeds even if
//! the object cannot be parsed, has another provider, or now belongs to machine-controller.

use std::time::Duration;

use berth_api::names::FINALIZER;
use berth_runtime::backoff::add_jitter;
use kube::api::{DeleteParams, DynamicObject, ListParams, Preconditions};
use kube::{Api, ResourceExt as _};

use super::context::MachineContext;
use super::delays::RETRY_DELAY;
use super::errors::{RequestError, none_if_not_found, with_request};
use crate::api_resource::machine_resource;
use crate::run::removal::DrainingTenant;
use berth_kubevirt_render::machines::reconcile_steps::{DeploymentOwner, ExistingVm};

/// Maximum length of a label value. A MachineDeployment with a longer name has no machines, because a label of each
/// machine contains the MachineDeployment's name.
const MAX_LABEL_LENGTH: usize = 63;

impl MachineContext {
    /// Deletes the machines of a MachineDeployment, then removes the finalizer. Returns the delay of the next
    /// reconcile while machines exist.
    pub(super) async fn finalize(
        &self,
        object: &DynamicObject,
    ) -> Result<Option<Duration>, RequestError> {
        if !object.finalizers().iter().any(|one| one == FINALIZER) {
            self.remove_state(object);
            return Ok(None);
        }
        let own = self.list_machines_of(object).await?;
        for vm in own.iter().filter(|vm| vm.metadata.deletion_timestamp.is_none()) {
            let (namespace, name) = (vm.namespace().unwrap_or_default(), vm.name_any());
            // A tenant that cannot be parsed may have a kubeconfig, so its machines are marked, not deleted.
            if !matches!(self.draining_tenant(&namespace).await?, DrainingTenant::None) {
                self.mark_for_deletion(vm).await?;
                continue;
            }
            let api: Api<DynamicObject> =
                Api::namespaced_with(self.client.clone(), &namespace, &machine_resource());
            let preconditions = Preconditions { uid: vm.uid(), resource_version: None };
            let params =
                DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
            let deleted = none_if_not_found(api.delete(&name, &params).await);
            with_request(|| format!("delete VirtualMachine {namespace}/{name}"), deleted)?;
        }
        if own.is_empty() {
            let rest = object.finalizers().iter().filter(|one| *one != FINALIZER);
            let rest: Vec<String> = rest.cloned().collect();
            self.set_finalizers(object, &rest).await?;
            self.remove_state(object);
            return Ok(None);
        }
        self.update_removal_condition(object, &own).await?;
        Ok(Some(add_jitter(RETRY_DELAY)))
    }

    /// Lists the VirtualMachines of a MachineDeployment in all namespaces from the API server. They are identified by
    /// the UID of their owner.
    pub(super) async fn list_machines_of(
        &self,
        object: &DynamicObject,
    ) -> Result<Vec<DynamicObject>, RequestError> {
        let name = object.name_any();
        if name.len() > MAX_LABEL_LENGTH {
            return Ok(Vec::new());
        }
        let owner =
            DeploymentOwner { uid: object.uid().unwrap_or_default(), shares_namespace: false };
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &machine_resource());
        let list = api.list(&ListParams::default().labels(&format!("md={name}"))).await;
        // If KubeVirt is not installed, there are no VirtualMachines, and the API server answers 404.
        let list = with_request(
            || format!("list VirtualMachines with label md={name}"),
            none_if_not_found(list),
        )?;
        let mut all = list.map(|list| list.items).unwrap_or_default();
        all.retain(|vm| {
            let vm = serde_json::to_value(vm).unwrap_or_default();
            ExistingVm::from_objects(&vm, None).is_owned_by(&owner)
        });
        Ok(all)
    }
}
