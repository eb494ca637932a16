//! Interfaces of a machine in additional networks (`additionalNetworks`), and the check of which networks the machine
//! may use.

use berth_api::{MacAddress, TenantCluster};

use super::additional_networks::{
    AdditionalNetwork, AdditionalNetworks, DEFAULT_NETWORK_FIELD, NETWORKS_FIELD, NetworkSource,
};
use super::renderer::MachineRenderer;
use crate::stable_hash::stable_hash;

const SPEC_PATH: &str = "spec.template.spec.providerSpec.value.cloudProviderSpec";

/// Returns the name of the interface in the additional network with this index. The interface has the same name in the
/// guest.
pub(super) fn interface_name(index: usize) -> String {
    format!("additional-{}", index.saturating_add(1))
}

/// Returns the Ethernet address of an interface in an additional network. The address depends only on the names of the
/// machine and the interface, so the network data can refer to it, and it stays the same when the launcher pod is
/// replaced.
pub(super) fn interface_mac(machine: &MachineRenderer<'_>, interface: &str) -> MacAddress {
    let text = format!("{}/{}/{interface}", machine.namespace, machine.name);
    let [_, _, _, b, c, d, e, f] = stable_hash(text.bytes()).to_be_bytes();
    // The first octet marks a locally administered address.
    MacAddress([0x02, b, c, d, e, f])
}

/// Reports the additional networks that the machine must not use, and reports a machine without any network.
pub(super) fn check_networks(machine: &MachineRenderer<'_>) {
    let AdditionalNetworks { networks, has_pod_network } = &machine.provider.additional_networks;
    for (index, network) in networks.iter().enumerate() {
        let mut earlier = networks.iter().take(index);
        let is_repeated = network.source == NetworkSource::Tenant
            && earlier.any(|other| other.name == network.name);
        // Each interface would claim addresses of the other tenant.
        let repeated =
            is_repeated.then(|| "is already in the list: remove one of the entries".to_owned());
        if let Some(message) = repeated.or_else(|| refusal_message(machine, network)) {
            let path = format!("{SPEC_PATH}.{NETWORKS_FIELD}[{index}].name");
            machine.reporter.report_error(&path, &network.name, message);
        }
    }
    let has_tenant_network = machine.tenant.is_some_and(|tenant| tenant.spec.network.is_some());
    if *has_pod_network == Some(false) && networks.is_empty() && !has_tenant_network {
        machine.reporter.report_error(
            &format!("{SPEC_PATH}.{DEFAULT_NETWORK_FIELD}"),
            "false",
            "leaves the machine without a network: set additionalNetworks, or spec.network of its TenantCluster",
        );
    }
}

/// Returns the reason why the machine must not use an additional network; `None` if it may. A network in another
/// namespace may belong to another owner. Therefore the administrator of the infra cluster and the administrator of the
/// tenant must both list it.
fn refusal_message(machine: &MachineRenderer<'_>, network: &AdditionalNetwork) -> Option<String> {
    let AdditionalNetwork { name, source } = network;
    let NetworkSource::Definition { namespace, .. } = source else {
        return tenant_refusal_message(machine, name);
    };
    // With the definition as a network of the tenant's own namespace, the machine would need no permission, and would
    // claim no address, so the deletion of the other tenant would not wait for it.
    let definition = name.split_once('/').map(|(_, definition)| definition);
    if let Some(other) = definition.and_then(TenantCluster::tenant_of_additional_definition) {
        return Some(format!("is the network of TenantCluster {other}: replace it with {other}"));
    }
    let Some(tenant) = machine.tenant else {
        return (*namespace != machine.namespace).then(|| {
            format!(
                "is not in namespace {}, and the machine belongs to no tenant whose TenantCluster could list the \
                 network: name the tenant in annotation berth.dev/tenant",
                machine.namespace
            )
        });
    };
    let id = tenant.metadata.name.as_deref().unwrap_or_default();
    if *namespace == TenantCluster::namespace_of(id) {
        return None;
    }
    let listed = tenant.spec.network.as_ref().map(|network| network.additional.as_slice());
    if !listed.unwrap_or_default().contains(name) {
        return Some(format!(
            "is not a network of tenant {id}: add it to spec.network.additional of TenantCluster {id}"
        ));
    }
    not_permitted_message(machine, name)
}

/// Returns the reason why the machine must not use the network of the TenantCluster `name`; `None` if it may. Both
/// administrators must list the TenantCluster too.
fn tenant_refusal_message(machine: &MachineRenderer<'_>, name: &str) -> Option<String> {
    let tenant = machine.tenant;
    let id = tenant.and_then(|tenant| tenant.metadata.name.as_deref());
    if !tenant.is_some_and(|tenant| tenant.additional_tenants().any(|listed| listed == name)) {
        let lister = id.map_or_else(
            || "the TenantCluster of the machine, which belongs to no tenant,".to_owned(),
            |id| format!("TenantCluster {id}"),
        );
        return Some(format!(
            "must be NAMESPACE/NAME of a NetworkAttachmentDefinition, or the name of a TenantCluster that \
             spec.network.additional of {lister} lists"
        ));
    }
    if id == Some(name) {
        return Some(
            "is the machine's own tenant, to whose network it is attached anyway".to_owned(),
        );
    }
    if let Some(message) = not_permitted_message(machine, name) {
        return Some(message);
    }
    match machine.context.tenants.get(name) {
        Some(other) if other.spec.network.is_none() => {
            Some("is a TenantCluster without spec.network".to_owned())
        }
        None if machine.context.is_exhaustive => {
            Some("is not an existing TenantCluster".to_owned())
        }
        Some(_) | None => None,
    }
}

fn not_permitted_message(machine: &MachineRenderer<'_>, name: &str) -> Option<String> {
    let permitted = &machine.context.config.additional_networks;
    (!permitted.iter().any(|one| one == name))
        .then(|| "is not permitted: add it to InfraConfig's spec.additionalNetworks".to_owned())
}
