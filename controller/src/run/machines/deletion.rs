//! A MachineDeployment that is being deleted: its machines go first. From its metadata alone, so that it ends whatever has
//! become of it: unreadable, of another provider, or taken over by machine-controller.

use std::time::Duration;

use berth_api::names::FINALIZER;
use berth_runtime::client::jittered;
use kube::api::{DeleteParams, DynamicObject, ListParams, Preconditions};
use kube::{Api, ResourceExt as _};

use super::errors::{Error, at, found};
use super::keep::RETRY;
use super::{Context, machines};
use berth_kubevirt_render::machines::steps::{Owner, Vm};

/// Longest label, and so the longest name of a MachineDeployment that has machines.
const LABEL: usize = 63;

impl Context {
    /// Deletes the machines of a MachineDeployment, then takes the finalizer away; says when to reconcile again.
    pub(super) async fn finalize(&self, object: &DynamicObject) -> Result<Option<Duration>, Error> {
        if !object.finalizers().iter().any(|one| one == FINALIZER) {
            self.forget(object);
            return Ok(None);
        }
        let own = self.machines_made_for(object).await?;
        for vm in own.iter().filter(|vm| vm.metadata.deletion_timestamp.is_none()) {
            let (namespace, name) = (vm.namespace().unwrap_or_default(), vm.name_any());
            let api: Api<DynamicObject> =
                Api::namespaced_with(self.client.clone(), &namespace, &machines());
            let only = Preconditions { uid: vm.uid(), resource_version: None };
            let params = DeleteParams { preconditions: Some(only), ..DeleteParams::background() };
            let deleted = found(api.delete(&name, &params).await);
            at(|| format!("delete VirtualMachine {namespace}/{name}"), deleted)?;
        }
        if own.is_empty() {
            let rest = object.finalizers().iter().filter(|one| *one != FINALIZER);
            let rest: Vec<String> = rest.cloned().collect();
            self.set_finalizers(object, &rest).await?;
            self.forget(object);
            return Ok(None);
        }
        Ok(Some(jittered(RETRY)))
    }

    /// The VirtualMachines that were made for a MachineDeployment, of all namespaces, by its uid; from the server.
    pub(super) async fn machines_made_for(
        &self,
        object: &DynamicObject,
    ) -> Result<Vec<DynamicObject>, Error> {
        let name = object.name_any();
        if name.len() > LABEL {
            return Ok(Vec::new());
        }
        let owner = Owner { uid: object.uid().unwrap_or_default(), shares_namespace: false };
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &machines());
        let list = api.list(&ListParams::default().labels(&format!("md={name}"))).await;
        // Where KubeVirt is not installed there are none.
        let list = at(|| format!("list VirtualMachines of md={name}"), found(list))?;
        let mut all = list.map(|list| list.items).unwrap_or_default();
        all.retain(|vm| {
            let vm = serde_json::to_value(vm).unwrap_or_default();
            Vm::from_objects(&vm, None).is_owned_by(&owner)
        });
        Ok(all)
    }
}
