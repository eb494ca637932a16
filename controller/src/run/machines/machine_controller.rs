//! Detects machine-controller, which reconciles the same MachineDeployments if it is installed.

use berth_api::EventReason;
use kube::api::{DynamicObject, ListParams};
use kube::runtime::events::EventType;
use kube::{Api, Resource as _, ResourceExt as _};

use super::context::MachineContext;
use super::errors::{RequestError, none_if_not_found, with_request};
use super::resources::machine_controller_machine_resource;
use super::validated::ValidatedDeployment;
use crate::api_resource::deployment_resource;

impl MachineContext {
    /// Returns true if machine-controller is present and therefore reconciles the MachineDeployment. Berth then must
    /// not reconcile it, because the two controllers together would create twice as many machines.
    pub(super) async fn is_managed_by_machine_controller(&self, object: &DynamicObject) -> bool {
        let namespace = object.namespace();
        let has_machines = self
            .machine_controller_machines
            .all()
            .iter()
            .any(|machine| machine.namespace() == namespace);
        let has_webhook =
            self.webhooks.all().iter().any(|hook| hook.name_any().contains("machine-controller"));
        let uses_machine_controller = has_machines || has_webhook;
        let used_machine_controller = self.with_state(object, |memory| {
            std::mem::replace(&mut memory.uses_machine_controller, uses_machine_controller)
        });
        if uses_machine_controller && !used_machine_controller {
            let cause = if has_webhook {
                "its webhook is installed"
            } else {
                "the namespace contains Machines"
            };
            let note = format!(
                "Berth does not reconcile this MachineDeployment, because machine-controller \
                 does: {cause}"
            );
            tracing::info!(
                reason = cause,
                "machine-controller reconciles the MachineDeployment, so Berth does not"
            );
            // The status belongs to machine-controller, so Berth only emits an Event.
            let reference = object.object_ref(&deployment_resource());
            let reason = EventReason::ManagedByMachineController.as_str();
            self.events.emit_for(EventType::Normal, reference, reason, &note).await;
        }
        uses_machine_controller
    }
}

impl ValidatedDeployment<'_> {
    /// Returns true if there are Machines of machine-controller in the namespace of the MachineDeployment. Reads from
    /// the API server, because the kind Machine may have been installed so recently that the watch has not started.
    pub(super) async fn has_machine_controller_machines(&self) -> Result<bool, RequestError> {
        let namespace = self.object.namespace().unwrap_or_default();
        let api: Api<DynamicObject> = Api::namespaced_with(
            self.context.client.clone(),
            &namespace,
            &machine_controller_machine_resource(),
        );
        let list = api.list(&ListParams::default().limit(1)).await;
        let list = with_request(
            || format!("list Machines in namespace {namespace}"),
            none_if_not_found(list),
        )?;
        Ok(list.is_some_and(|list| !list.items.is_empty()))
    }
}
