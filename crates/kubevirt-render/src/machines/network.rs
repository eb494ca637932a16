//! Networks of a machine: the pod network, through which the machine can be exposed as a Service, and the tenant's
//! network, if the tenant has a network.

use berth_api::{NetworkBinding, TenantCluster};
use serde_json::{Value, json};

use super::renderer::MachineRenderer;

/// Name of the interface in the tenant's network.
pub const TENANT_INTERFACE: &str = "tenant";

/// Returns the name of a TenantCluster, which is the tenant's id.
fn tenant_id(tenant: &TenantCluster) -> &str {
    tenant.metadata.name.as_deref().unwrap_or_default()
}

/// Returns `spec.template.spec.networks`.
pub(super) fn render_networks(machine: &MachineRenderer<'_>) -> Vec<Value> {
    let mut networks = vec![json!({"name": "default", "pod": {}})];
    if let Some((tenant, binding)) = tenant_binding(machine) {
        let id = tenant_id(tenant);
        let name = binding.definition_name(id);
        let name = format!("{}/{name}", TenantCluster::namespace_of(id));
        networks.push(json!({"name": TENANT_INTERFACE, "multus": {"networkName": name}}));
    }
    networks
}

/// Returns `spec.template.spec.domain.devices.interfaces`.
pub(super) fn render_interfaces(machine: &MachineRenderer<'_>) -> Vec<Value> {
    let mut interfaces = vec![json!({"name": "default", "bridge": {}})];
    if let Some((_, binding)) = tenant_binding(machine) {
        interfaces.push(match binding {
            NetworkBinding::Bridge => json!({"name": TENANT_INTERFACE, "bridge": {}}),
            NetworkBinding::Sriov => json!({"name": TENANT_INTERFACE, "sriov": {}}),
            NetworkBinding::Macvtap => {
                json!({"name": TENANT_INTERFACE, "binding": {"name": "macvtap"}})
            }
        });
    }
    interfaces
}

/// Returns the missing prerequisite if machines of a tenant cannot be created yet. The TenantCluster must have been
/// reconciled, because until then the controller has no right to read user data. The tenant's
/// NetworkAttachmentDefinition must exist, because it determines the binding: without it, a machine that needs a
/// virtual function would be rendered with a bridge binding, and the binding would never change.
#[must_use]
pub fn unmet_prerequisite(tenant: &TenantCluster) -> Option<String> {
    let status = tenant.status.as_ref();
    if status.is_none_or(|status| status.namespace.is_none()) {
        return Some(format!("TenantCluster {} to be reconciled", tenant_id(tenant)));
    }
    let network = tenant.spec.network.as_ref()?;
    let applied = status.and_then(|status| status.network_attachment_definition.as_deref());
    let name = applied.and_then(|applied| applied.rsplit('/').next());
    let id = tenant_id(tenant);
    let is_desired =
        |name: &str| network.binding.is_none_or(|binding| binding.definition_name(id) == name);
    if name.is_some_and(is_desired) {
        return None;
    }
    let mut conditions = status.into_iter().flat_map(|status| &status.conditions);
    let reason = conditions.find(|one| one.type_ == "NetworkReady" && one.status != "True");
    let reason = reason.map(|one| format!(": {}", one.message)).unwrap_or_default();
    Some(format!("the NetworkAttachmentDefinition of TenantCluster {id}{reason}"))
}

/// Returns the tenant and the binding to its network; `None` if the tenant has no network. If the tenant's spec sets no
/// binding, the binding is that of the tenant's NetworkAttachmentDefinition, which depends on the scenario of the host
/// network. If this does not exist either, the binding is a bridge.
fn tenant_binding<'a>(
    machine: &MachineRenderer<'a>,
) -> Option<(&'a TenantCluster, NetworkBinding)> {
    let tenant = machine.tenant?;
    let network = tenant.spec.network.as_ref()?;
    let applied =
        tenant.status.as_ref().and_then(|status| status.network_attachment_definition.as_deref());
    let applied = applied.and_then(|applied| applied.rsplit('/').next());
    let all = [NetworkBinding::Bridge, NetworkBinding::Sriov, NetworkBinding::Macvtap];
    let in_use = all
        .into_iter()
        .find(|binding| Some(binding.definition_name(tenant_id(tenant)).as_str()) == applied);
    Some((tenant, network.binding.or(in_use).unwrap_or(NetworkBinding::Bridge)))
}
