//! A MachineDeployment that passed validation.

use berth_api::TenantCluster;
use berth_api::names::TENANT_PREFIX;
use kube::Api;
use kube::api::DynamicObject;

use super::context::MachineContext;
use crate::api_resource::machine_resource;
use berth_kubevirt_render::machines::reconcile_steps::{DeploymentOwner, ExistingVm};
use berth_kubevirt_render::machines::{MachineDeployment, RenderContext};

/// A MachineDeployment that passed validation, with its machines.
pub(super) struct ValidatedDeployment<'a> {
    pub(super) context: &'a MachineContext,
    pub(super) object: &'a DynamicObject,
    pub(super) deployment: MachineDeployment,
    pub(super) owner: DeploymentOwner,
    /// Namespace of the VirtualMachines.
    pub(super) namespace: String,
    pub(super) render_context: RenderContext,
    /// VirtualMachines whose label contains the name of the MachineDeployment.
    pub(super) vms: Vec<ExistingVm>,
}

impl ValidatedDeployment<'_> {
    pub(super) fn machines_api(&self) -> Api<DynamicObject> {
        Api::namespaced_with(self.context.client.clone(), &self.namespace, &machine_resource())
    }

    /// Returns the tenant to which the machines' namespace belongs; `None` if there is no such tenant.
    pub(super) fn tenant(&self) -> Option<&TenantCluster> {
        let name = self.namespace.strip_prefix(TENANT_PREFIX)?;
        self.render_context.tenants.get(name)
    }
}
