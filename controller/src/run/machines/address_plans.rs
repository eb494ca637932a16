//! Networks in which new machines claim addresses.

use std::net::IpAddr;

use berth_api::TenantCluster;
use berth_api::names::ADDITIONAL_ADDRESSES_PREFIX;
use berth_kubevirt_render::machines::{InterfaceConfig, TENANT_INTERFACE};
use ipnet::IpNet;
use k8s_openapi::jiff::SignedDuration;
use kube::ResourceExt as _;

use crate::tenants::addresses::lost::record_addresses;
use crate::tenants::addresses::pools::NetworkPools;

/// A tenant and its network, and the interface of machines in this network.
pub(super) struct NetworkOwner {
    /// Name of the TenantCluster.
    pub(super) tenant: String,
    pub(super) tenant_uid: String,
    /// Name of the tenant's network.
    pub(super) network: String,
    pub(super) interface: String,
}

/// Address pools for the machines of a MachineDeployment.
pub(super) struct AddressPlan {
    pub(super) owner: NetworkOwner,
    pub(super) pools: NetworkPools,
    /// Addresses that the template lists.
    pub(super) fixed: Vec<IpAddr>,
    pub(super) quarantine: SignedDuration,
}

impl NetworkOwner {
    /// Returns the network of the tenant to which the machines belong.
    pub(super) fn new(tenant: &TenantCluster) -> Self {
        Self::with_interface(tenant, TENANT_INTERFACE)
    }

    /// Returns the network of a tenant, in which machines have the interface `interface`.
    pub(super) fn with_interface(tenant: &TenantCluster, interface: &str) -> Self {
        let (name, uid) = (tenant.name_any(), tenant.uid().unwrap_or_default());
        let network = TenantCluster::namespace_of(&name);
        Self { network, tenant: name, tenant_uid: uid, interface: interface.to_owned() }
    }
}

/// Pools of the addresses that each new machine claims.
pub(super) struct AddressPlans {
    /// Pools of the tenant's own network; `None` if it has none.
    pub(super) own: Option<AddressPlan>,
    /// Pools of the networks of other tenants.
    pub(super) attached: Vec<AddressPlan>,
}

impl AddressPlans {
    /// Returns true if Berth configures the guest: network data must list all interfaces, and the tenant's own network
    /// is listed only if its addresses are known.
    pub(super) const fn configures_guest(&self) -> bool {
        self.own.is_some()
    }
}

/// Returns the annotation that records the addresses of an interface in the network of the tenant `tenant`.
pub(super) fn attached_annotation(config: &InterfaceConfig, tenant: &str) -> (String, String) {
    let addresses = record_addresses(config.addresses.iter().map(IpNet::addr));
    (format!("{ADDITIONAL_ADDRESSES_PREFIX}{}", config.name), format!("{tenant}:{addresses}"))
}

#[cfg(test)]
mod tests {
    use berth_kubevirt_render::machines::reconcile_steps::{AttachedInterface, ExistingVm};
    use serde_json::json;

    use super::*;

    #[test]
    fn recorded_addresses_are_read_from_the_machine() {
        let config = InterfaceConfig {
            name: "additional-1".to_owned(),
            mac: "02:00:00:00:00:02".parse().unwrap(),
            mtu: None,
            addresses: ["10.1.0.7/24", "fd00::7/64"].map(|one| one.parse().unwrap()).to_vec(),
            gateways: Vec::new(),
            routes: Vec::new(),
            nameservers: Vec::new(),
            search_domains: Vec::new(),
        };
        let (annotation, recorded) = attached_annotation(&config, "abc-storage");
        assert_eq!(annotation, "berth.dev/claimed-addresses-additional-1");
        assert_eq!(recorded, "abc-storage:10.1.0.7,fd00::7");
        let interfaces = json!([{"name": "additional-1", "macAddress": "02:00:00:00:00:02"}]);
        let machine = json!({
            "metadata": {"annotations": {annotation: recorded}},
            "spec": {"template": {"spec": {"domain": {"devices": {"interfaces": interfaces}}}}},
        });
        let expected = AttachedInterface {
            name: "additional-1".to_owned(),
            tenant: "abc-storage".to_owned(),
            recorded: "10.1.0.7,fd00::7".to_owned(),
            mac: config.mac,
        };
        assert_eq!(ExistingVm::from_objects(&machine, None).attached, [expected]);
    }
}
