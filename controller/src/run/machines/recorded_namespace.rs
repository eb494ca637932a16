//! Determines the namespace of the machines of a MachineDeployment. If it is not the namespace of the MachineDeployment,
//! records it in the status of the MachineDeployment before the first machine is created. Refuses a later edit of the
//! MachineDeployment that would leave machines in another namespace, or create a second set of machines.

use berth_api::names::CONTROLLER_STATUS_FIELD_MANAGER;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use super::errors::{RequestError, none_if_not_found, with_request};
use super::validated::ValidatedDeployment;
use crate::api_resource::deployment_resource;
use berth_api::Problem;

/// Field of a MachineDeployment's status that contains the namespace of its machines. Without the field, no machine was
/// created in another namespace than that of the MachineDeployment.
const STATUS_FIELD: &str = "machineNamespace";

impl ValidatedDeployment<'_> {
    /// Records the namespace of the machines in the status of the MachineDeployment, unless it is the namespace of the
    /// MachineDeployment and no other one is recorded. Returns a problem if machines already exist in another namespace.
    pub(super) async fn record_namespace(
        &self,
        has_tenant: bool,
    ) -> Result<Option<Problem>, RequestError> {
        let Self { context, object, namespace: machine_namespace, .. } = self;
        let status = object.data.get("status");
        let recorded = status.and_then(|status| status.get(STATUS_FIELD)).and_then(Value::as_str);
        if recorded == Some(machine_namespace.as_str()) {
            return Ok(None);
        }
        let namespace = object.namespace().unwrap_or_default();
        let needs_no_record = recorded.is_none() && *machine_namespace == namespace;
        let machine_namespaces = if needs_no_record {
            context.triggers.namespaces_of(object)
        } else {
            // The machines are listed from the API server, because the store of the watch may lack a machine that was
            // created a moment ago.
            let machines = context.list_machines_of(object).await?;
            machines.iter().filter_map(kube::ResourceExt::namespace).collect()
        };
        let other_namespace =
            machine_namespaces.into_iter().find(|namespace| namespace != machine_namespace);
        let invalid = |from: &str, reason: &str| {
            let field = format!("status.{STATUS_FIELD}");
            let message = format!(
                "{reason}, but the MachineDeployment now selects namespace {machine_namespace}: undo the change of \
                 its annotation, its clusterName or its TenantCluster; to move the machines, first scale the \
                 MachineDeployment to 0"
            );
            let problem = Problem::new(self.deployment.qualified_name(), field, from, message);
            Ok(Some(problem.into_fatal("no machine is created or deleted")))
        };
        match (other_namespace, recorded) {
            (Some(from), _) => return invalid(&from, "its machines are in this namespace"),
            // The tenant was deleted, or the MachineDeployment no longer names the tenant. An automatic change of the
            // namespace is refused, because the user probably did not intend to move the machines out of the tenant.
            (None, Some(from)) if !has_tenant => {
                return invalid(from, "its machines were created for a tenant, in this namespace");
            }
            _ if needs_no_record => return Ok(None),
            _ => {}
        }
        let api: Api<DynamicObject> =
            Api::namespaced_with(context.client.clone(), &namespace, &deployment_resource());
        let patch = Patch::Merge(json!({"status": {STATUS_FIELD: machine_namespace}}));
        let params = PatchParams {
            field_manager: Some(CONTROLLER_STATUS_FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let patched =
            none_if_not_found(api.patch_status(&object.name_any(), &params, &patch).await);
        with_request(|| format!("patch status of {}", self.deployment.qualified_name()), patched)
            .map(|_| None)
    }
}
