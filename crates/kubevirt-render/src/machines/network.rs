//! Networks of a machine: the pod network, through which a Service can expose the machine; the tenant's network, if the
//! tenant has a network; and the additional networks of the providerSpec.

use std::collections::BTreeMap;

use berth_api::{NetworkBinding, TenantCluster};
use serde_json::{Value, json};

use super::additional_interfaces::{interface_mac, interface_name};
use super::additional_networks::{AdditionalNetwork, NetworkSource};
use super::interface_config::InterfaceConfig;
use super::renderer::MachineRenderer;

/// Name of the interface in the tenant's network.
pub const TENANT_INTERFACE: &str = "tenant";

/// Returns the name of a TenantCluster, which is the tenant's id.
fn tenant_id(tenant: &TenantCluster) -> &str {
    tenant.metadata.name.as_deref().unwrap_or_default()
}

/// Returns `spec.template.spec.networks`.
pub(super) fn render_networks(machine: &MachineRenderer<'_>) -> Vec<Value> {
    let mut networks = Vec::new();
    if has_pod_network(machine) {
        networks.push(json!({"name": "default", "pod": {}}));
    }
    if let Some((tenant, binding)) = tenant_binding(machine) {
        let id = tenant_id(tenant);
        let name = binding.definition_name(id);
        let name = format!("{}/{name}", TenantCluster::namespace_of(id));
        networks.push(json!({"name": TENANT_INTERFACE, "multus": {"networkName": name}}));
    }
    for (index, network) in machine.provider.additional_networks.networks.iter().enumerate() {
        let name = interface_name(index);
        let definition = definition_of(machine, network);
        networks.push(json!({"name": name, "multus": {"networkName": definition}}));
    }
    networks
}

/// Returns namespace and name of the NetworkAttachmentDefinition of an additional network.
fn definition_of(machine: &MachineRenderer<'_>, network: &AdditionalNetwork) -> String {
    match (&network.source, machine.tenant) {
        (NetworkSource::Tenant, Some(tenant)) => {
            let namespace = TenantCluster::namespace_of(tenant_id(tenant));
            format!("{namespace}/{}", TenantCluster::additional_definition_name(&network.name))
        }
        (NetworkSource::Tenant, None) | (NetworkSource::Definition { .. }, _) => {
            network.name.clone()
        }
    }
}

/// Returns the binding of machines to an additional network.
fn binding_of(machine: &MachineRenderer<'_>, network: &AdditionalNetwork) -> NetworkBinding {
    match &network.source {
        NetworkSource::Definition { binding, .. } => *binding,
        NetworkSource::Tenant => {
            let tenant = machine.context.tenants.get(&network.name);
            tenant.and_then(network_binding).unwrap_or(NetworkBinding::Bridge)
        }
    }
}

/// Returns the interfaces of a machine in networks of other tenants, each with the name of the other tenant.
pub(super) fn attached_tenants(machine: &MachineRenderer<'_>) -> Vec<(String, String)> {
    let networks = machine.provider.additional_networks.networks.iter().enumerate();
    let of_tenants = networks.filter(|(_, network)| network.source == NetworkSource::Tenant);
    of_tenants.map(|(index, network)| (interface_name(index), network.name.clone())).collect()
}

/// Returns `spec.template.spec.domain.devices.interfaces`.
pub(super) fn render_interfaces(machine: &MachineRenderer<'_>) -> Vec<Value> {
    let mut interfaces = Vec::new();
    if has_pod_network(machine) {
        interfaces.push(json!({"name": "default", "bridge": {}}));
    }
    if let Some((_, binding)) = tenant_binding(machine) {
        interfaces.push(render_interface(TENANT_INTERFACE, binding));
    }
    for (index, network) in machine.provider.additional_networks.networks.iter().enumerate() {
        interfaces.push(render_interface(&interface_name(index), binding_of(machine, network)));
    }
    let guest_interfaces = guest_interfaces(machine);
    for interface in &mut interfaces {
        if let Some(config) = guest_interfaces.iter().find(|one| interface["name"] == one.name) {
            interface["macAddress"] = config.mac.to_string().into();
        }
    }
    interfaces
}

fn render_interface(name: &str, binding: NetworkBinding) -> Value {
    match binding {
        NetworkBinding::Bridge => json!({"name": name, "bridge": {}}),
        NetworkBinding::Sriov => json!({"name": name, "sriov": {}}),
        NetworkBinding::Macvtap => json!({"name": name, "binding": {"name": "macvtap"}}),
    }
}

/// Returns true if the machine has an interface in the pod network.
pub(super) fn has_pod_network(machine: &MachineRenderer<'_>) -> bool {
    machine.provider.additional_networks.has_pod_network.unwrap_or(true)
}

/// Returns the configuration of the interfaces whose Ethernet address is known. For an interface in an additional
/// network, only the Ethernet address is set, unless it is the network of a tenant with address pools: Berth allocates
/// no addresses in other additional networks.
pub(super) fn guest_interfaces(machine: &MachineRenderer<'_>) -> Vec<InterfaceConfig> {
    let given =
        |name: &str| machine.options.interfaces.iter().find(|one| one.name == name).cloned();
    let tenant = tenant_binding(machine).and_then(|_| given(TENANT_INTERFACE));
    let additional = (0..machine.provider.additional_networks.networks.len()).map(|index| {
        let name = interface_name(index);
        given(&name).unwrap_or_else(|| {
            let mac = interface_mac(machine, &name);
            InterfaceConfig::new_dhcp(name, mac)
        })
    });
    tenant.into_iter().chain(additional).collect()
}

/// Returns what the creation of machines of a tenant must wait for; `None` if they can be created. The TenantCluster
/// must have been reconciled, because until then the controller has no right to read user data. The tenant's
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

/// Returns what the creation of machines of a tenant with an interface in the network of the tenant `other` must wait
/// for; `None` if they can be created. `tenants` contains both.
#[must_use]
pub fn unmet_additional_network(
    tenant: &TenantCluster,
    other: &str,
    tenants: &BTreeMap<String, TenantCluster>,
) -> Option<String> {
    let Some(other_tenant) = tenants.get(other) else {
        return Some(format!("TenantCluster {other}, which does not exist"));
    };
    if other_tenant.metadata.deletion_timestamp.is_some() {
        return Some(format!("TenantCluster {other}, which is being deleted"));
    }
    let status = tenant.status.as_ref();
    let is_applied =
        status.is_some_and(|status| status.additional_networks.iter().any(|one| one == other));
    let missing = || {
        let id = tenant_id(tenant);
        format!(
            "the network of TenantCluster {other}, which status.additionalNetworks of TenantCluster {id} lacks"
        )
    };
    unmet_prerequisite(other_tenant).or_else(|| (!is_applied).then(missing))
}

/// Returns the tenant and the binding of machines to the tenant's network; `None` if the tenant has no network.
fn tenant_binding<'a>(
    machine: &MachineRenderer<'a>,
) -> Option<(&'a TenantCluster, NetworkBinding)> {
    let tenant = machine.tenant?;
    Some((tenant, network_binding(tenant)?))
}

/// Returns the binding of machines to the network of a tenant; `None` if the tenant has no network. If the
/// TenantCluster sets no binding, the binding follows from the name of the tenant's NetworkAttachmentDefinition, which
/// depends on the scenario of the host network. Until the NetworkAttachmentDefinition exists, the binding is a bridge.
fn network_binding(tenant: &TenantCluster) -> Option<NetworkBinding> {
    let network = tenant.spec.network.as_ref()?;
    let applied =
        tenant.status.as_ref().and_then(|status| status.network_attachment_definition.as_deref());
    let applied = applied.and_then(|applied| applied.rsplit('/').next());
    let all = [NetworkBinding::Bridge, NetworkBinding::Sriov, NetworkBinding::Macvtap];
    let in_use = all
        .into_iter()
        .find(|binding| Some(binding.definition_name(tenant_id(tenant)).as_str()) == applied);
    Some(network.binding.or(in_use).unwrap_or(NetworkBinding::Bridge))
}
