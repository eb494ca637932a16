//! Networks of a machine: the pod network always, so that it can be exposed as a Service; its tenant's own if there is one.

use berth_api::{NetworkBinding, TenantCluster};
use serde_json::{Value, json};

use super::render::MachineRenderer;

/// The interface in the tenant's own network.
const TENANT: &str = "tenant";

/// Returns the name of a TenantCluster, which is the tenant's id.
fn id(tenant: &TenantCluster) -> &str {
    tenant.metadata.name.as_deref().unwrap_or_default()
}

/// `spec.template.spec.networks`
pub(super) fn networks(machine: &MachineRenderer<'_>) -> Vec<Value> {
    let mut networks = vec![json!({"name": "default", "pod": {}})];
    if let Some((tenant, binding)) = own(machine) {
        let id = id(tenant);
        let name = binding.definition_name(id);
        let name = format!("{}/{name}", TenantCluster::namespace_of(id));
        networks.push(json!({"name": TENANT, "multus": {"networkName": name}}));
    }
    networks
}

/// `spec.template.spec.domain.devices.interfaces`
pub(super) fn interfaces(machine: &MachineRenderer<'_>) -> Vec<Value> {
    let mut interfaces = vec![json!({"name": "default", "bridge": {}})];
    if let Some((_, binding)) = own(machine) {
        interfaces.push(match binding {
            NetworkBinding::Bridge => json!({"name": TENANT, "bridge": {}}),
            NetworkBinding::Sriov => json!({"name": TENANT, "sriov": {}}),
            NetworkBinding::Macvtap => json!({"name": TENANT, "binding": {"name": "macvtap"}}),
        });
    }
    interfaces
}

/// What machines of a tenant wait for: that it is reconciled, as the controller has no right to their user data before; and
/// the definition of its network, which says how they are attached. Without it a machine on virtual functions would be
/// rendered for a bridge, and stay so.
#[must_use]
pub fn unmet_prerequisite(tenant: &TenantCluster) -> Option<String> {
    let status = tenant.status.as_ref();
    if status.is_none_or(|status| status.namespace.is_none()) {
        return Some(format!("TenantCluster {} to be reconciled", id(tenant)));
    }
    let asked = tenant.spec.network.as_ref()?;
    let made = status.and_then(|status| status.network_attachment_definition.as_deref());
    let name = made.and_then(|made| made.rsplit('/').next());
    let id = id(tenant);
    let is_as_asked =
        |name: &str| asked.binding.is_none_or(|binding| binding.definition_name(id) == name);
    if name.is_some_and(is_as_asked) {
        return None;
    }
    let mut conditions = status.into_iter().flat_map(|status| &status.conditions);
    let why = conditions.find(|one| one.type_ == "NetworkReady" && one.status != "True");
    let why = why.map(|one| format!(": {}", one.message)).unwrap_or_default();
    Some(format!("the NetworkAttachmentDefinition of TenantCluster {id}{why}"))
}

/// Its tenant, and how it is attached to that one's network: as asked, else as the tenant's definition is for, which
/// follows from the scenario of the host network; `None` if it has no network of its own.
fn own<'a>(machine: &MachineRenderer<'a>) -> Option<(&'a TenantCluster, NetworkBinding)> {
    let tenant = machine.tenant?;
    let asked = tenant.spec.network.as_ref()?;
    let made =
        tenant.status.as_ref().and_then(|status| status.network_attachment_definition.as_deref());
    let made = made.and_then(|made| made.rsplit('/').next());
    let all = [NetworkBinding::Bridge, NetworkBinding::Sriov, NetworkBinding::Macvtap];
    let as_made =
        all.into_iter().find(|binding| Some(binding.definition_name(id(tenant)).as_str()) == made);
    Some((tenant, asked.binding.or(as_made).unwrap_or(NetworkBinding::Bridge)))
}
