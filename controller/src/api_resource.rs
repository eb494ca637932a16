//! `ApiResource` values for kinds for which Berth has no Rust type.

use berth_kubevirt_render::machines::{MACHINE_DEPLOYMENT_GROUP, MACHINE_DEPLOYMENT_KIND};
use kube::api::{ApiResource, GroupVersionKind};

pub(crate) fn api_resource(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}

/// Returns the `ApiResource` of VirtualMachines, the objects of machines.
pub(crate) fn machine_resource() -> ApiResource {
    api_resource("kubevirt.io", "v1", "VirtualMachine", "virtualmachines")
}

/// Returns the `ApiResource` of MachineDeployments.
pub(crate) fn deployment_resource() -> ApiResource {
    api_resource(
        MACHINE_DEPLOYMENT_GROUP,
        "v1alpha1",
        MACHINE_DEPLOYMENT_KIND,
        "machinedeployments",
    )
}
