//! Configuration of the guests of machines: renders a machine together with its user data and network data.

use berth_api::names::CLAIMED_ADDRESSES_ANNOTATION;
use berth_api::{ClaimingMachine, MacAddress, Problem, TenantCluster};
use ipnet::IpNet;
use serde_json::{Value, json};

use super::template::MachineTemplate;
use super::user_data::UserData;
use super::validated::ValidatedDeployment;
use crate::tenants::addresses::claims::NetworkClaims;
use crate::tenants::addresses::family::Family;
use crate::tenants::addresses::interface::claimed_interface;
use crate::tenants::addresses::lost::record_addresses;
use crate::tenants::addresses::pools::NetworkPools;
use crate::tenants::addresses::resolved::ResolvedPool;
use crate::tenants::fault::Fault;
use berth_kubevirt_render::machines::guest::{self, GuestData, GuestMachine};
use berth_kubevirt_render::machines::reconcile_steps::render_new_machine;
use berth_kubevirt_render::machines::{
    InterfaceConfig, RenderOptions, RenderedMachine, TENANT_INTERFACE,
};

/// Reason why the configuration of the interfaces of an existing machine cannot be computed now.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum UnknownInterfaces {
    #[error("the TenantCluster of the machine does not exist")]
    NoTenant,
    #[error(
        "the machine has addresses in the network of TenantCluster {0}, which does not exist, or is not in \
         spec.network.additional of its own TenantCluster and in InfraConfig's spec.additionalNetworks"
    )]
    NotAttachable(String),
    #[error("the address pools of the machine's tenant are invalid: {0}")]
    InvalidPools(Fault),
    #[error("the machine's tenant has no address pool any more")]
    NoPools,
    #[error("the machine has no AddressClaim")]
    NoClaim,
    #[error("the machine's AddressClaims are outside of the address pools of its tenant")]
    OutsidePools,
}

/// Returns the configuration of an interface of an existing machine, in the network of a tenant, that has an Ethernet
/// address; an empty list if another component has set the Ethernet address. `pools` are the pools of the tenant, and
/// `claims` the claims of its network.
///
/// # Errors
/// Returns the reason if the machine has addresses, but its configuration cannot be computed now.
pub(super) fn interfaces_of_machine(
    tenant_uid: &str,
    machine: &ClaimingMachine,
    interface: &str,
    claims: &NetworkClaims,
    pools: Option<&NetworkPools>,
) -> Result<Vec<InterfaceConfig>, UnknownInterfaces> {
    let Some(pools) = pools else {
        let has_claim = claims.of_interface(machine, interface).next().is_some();
        return if has_claim { Err(UnknownInterfaces::NoPools) } else { Ok(Vec::new()) };
    };
    match claimed_interface(tenant_uid, machine, interface, claims, pools) {
        None => Err(UnknownInterfaces::NoClaim),
        Some(interface) if interface.addresses.is_empty() => Err(UnknownInterfaces::OutsidePools),
        Some(interface) => Ok(vec![interface]),
    }
}

impl ValidatedDeployment<'_> {
    pub(super) fn render_options(
        &self,
        name: &str,
        data: &UserData,
        interfaces: &[InterfaceConfig],
    ) -> RenderOptions {
        RenderOptions {
            machine_name: Some(name.to_owned()),
            namespace: Some(self.namespace.clone()),
            user_data_secret: Some(format!("userdata-{name}")),
            user_data: Some(data.user_data.clone()),
            interfaces: interfaces.to_vec(),
        }
    }

    /// Returns the user data and network data of a rendered machine.
    pub(super) fn configure_guest(&self, rendered: &RenderedMachine, data: &UserData) -> GuestData {
        let tenant = self.tenant().and_then(|tenant| tenant.metadata.name.as_deref());
        let machine = GuestMachine {
            tenant: tenant.unwrap_or_default(),
            name: &rendered.name,
            namespace: &rendered.namespace,
            operating_system: &rendered.operating_system,
            interfaces: &rendered.interfaces,
            has_pod_network: rendered.has_pod_network,
        };
        guest::configure_guest(&machine, &data.user_data, data.network_data.as_deref())
    }

    /// Renders a machine with its user data, its network data, and the record of its addresses. `interfaces` are the
    /// interfaces with allocated addresses. Returns the problems if the machine cannot be rendered.
    pub(super) fn render_with_guest(
        &self,
        template: &MachineTemplate,
        name: &str,
        interfaces: &[InterfaceConfig],
    ) -> Result<(RenderedMachine, UserData), Vec<Problem>> {
        let MachineTemplate { render_context, data, .. } = template;
        let options = self.render_options(name, data, interfaces);
        let mut rendered =
            render_new_machine(&self.deployment, &self.owner, render_context, &options)?;
        let GuestData { user_data, network_data, notes: _ } = self.configure_guest(&rendered, data);
        let tenant_interface = interfaces.iter().find(|one| one.name == TENANT_INTERFACE);
        if let Some(InterfaceConfig { addresses, .. }) = tenant_interface {
            let recorded = record_addresses(addresses.iter().map(IpNet::addr));
            rendered.machine["metadata"]["annotations"][CLAIMED_ADDRESSES_ANNOTATION] =
                recorded.into();
        }
        let data = UserData { user_data, network_data };
        let is_flatcar = rendered.operating_system == "flatcar";
        add_guest_data(&mut rendered.machine, name, &data, is_flatcar);
        Ok((rendered, data))
    }
}

/// Adds the reference to the network data to a machine. For a Flatcar guest, also replaces the annotation from which
/// the guest reads its user data.
fn add_guest_data(machine: &mut Value, name: &str, data: &UserData, is_flatcar: bool) {
    let annotation = "/spec/template/metadata/annotations/kubevirt.io~1ignitiondata";
    if let (Some(annotation), true) = (machine.pointer_mut(annotation), is_flatcar) {
        *annotation = data.user_data.as_str().into();
    }
    if data.network_data.is_none() {
        return;
    }
    let volumes = machine.pointer_mut("/spec/template/spec/volumes").and_then(Value::as_array_mut);
    for volume in volumes.into_iter().flatten() {
        for source in ["cloudInitNoCloud", "cloudInitConfigDrive"] {
            if let Some(disk) = volume.get_mut(source) {
                disk["networkDataSecretRef"] = json!({"name": format!("userdata-{name}")});
            }
        }
    }
}

/// Returns an interface with an address of each family in which machines of the tenant get addresses. A machine is
/// rendered with this interface to find the parts of the network configuration that guests do not support.
pub(super) fn sample_interfaces(tenant: &TenantCluster) -> Vec<InterfaceConfig> {
    let prefixes = tenant.status.as_ref().map(|status| status.prefixes.as_slice());
    let specs = tenant.spec.network.iter().flat_map(|network| {
        [(Family::V4, network.ipv4.as_ref()), (Family::V6, network.ipv6.as_ref())]
    });
    let pools = specs.filter_map(|(family, spec)| {
        ResolvedPool::new(family, spec?, prefixes.unwrap_or_default()).ok()
    });
    let pools: Vec<ResolvedPool> = pools.collect();
    if pools.is_empty() {
        return Vec::new();
    }
    vec![InterfaceConfig {
        name: TENANT_INTERFACE.to_owned(),
        mac: MacAddress([0x02, 0, 0, 0, 0, 0]),
        mtu: None,
        addresses: pools.iter().map(|pool| pool.cidr).collect(),
        gateways: Vec::new(),
        routes: Vec::new(),
        nameservers: Vec::new(),
        search_domains: pools.iter().flat_map(|pool| pool.search_domains.clone()).collect(),
    }]
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use berth_api::{AddressClaim, AddressClaimSpec};

    use super::*;

    #[test]
    fn a_machine_with_addresses_waits_until_its_configuration_is_known() {
        let machine = |name: &str| ClaimingMachine {
            namespace: "cluster-a".to_owned(),
            name: name.to_owned(),
        };
        let mut claims = NetworkClaims::default();
        for (address, name) in [("10.0.0.7", "web"), ("192.0.2.1", "old")] {
            let spec = AddressClaimSpec {
                network: "cluster-a".to_owned(),
                address: address.parse().unwrap(),
                tenant: "a".to_owned(),
                tenant_uid: "u-1".to_owned(),
                machine: machine(name),
                interface: TENANT_INTERFACE.to_owned(),
                mac: MacAddress([2, 0, 0, 0, 0, 1]),
            };
            claims.insert(Arc::new(AddressClaim::new(address, spec)));
        }
        let network = json!({"name": "trunk", "ipv4": {"cidr": "10.0.0.0/24"}});
        let pools = NetworkPools::new(&serde_json::from_value(network).unwrap(), &[]).unwrap();
        let find = |name: &str, pools: Option<&NetworkPools>| {
            interfaces_of_machine("u-1", &machine(name), TENANT_INTERFACE, &claims, pools)
        };
        let found = find("web", pools.as_ref()).unwrap();
        assert_eq!(found[0].addresses, ["10.0.0.7/24".parse::<ipnet::IpNet>().unwrap()]);
        assert_eq!(find("new", pools.as_ref()), Err(UnknownInterfaces::NoClaim));
        assert_eq!(find("old", pools.as_ref()), Err(UnknownInterfaces::OutsidePools));
        assert_eq!(find("web", None), Err(UnknownInterfaces::NoPools));
        // Another component than Berth may set the Ethernet addresses of VMs.
        assert_eq!(find("new", None), Ok(Vec::new()));
    }

    #[test]
    fn network_data_are_referenced_in_each_kind_of_volume() {
        let machine = |source: &str| {
            json!({"spec": {"template": {
                "metadata": {"annotations": {"kubevirt.io/ignitiondata": "{}"}},
                "spec": {"volumes": [{"name": "a", "dataVolume": {}}, {"name": "b", source: {}}]},
            }}})
        };
        for source in ["cloudInitNoCloud", "cloudInitConfigDrive"] {
            for (network_data, is_flatcar) in [(Some("n".to_owned()), false), (None, true)] {
                let mut changed = machine(source);
                let data = UserData { user_data: "{1}".to_owned(), network_data };
                add_guest_data(&mut changed, "web-1", &data, is_flatcar);
                let template = &changed["spec"]["template"];
                let reference = &template["spec"]["volumes"][1][source]["networkDataSecretRef"];
                assert_eq!(reference["name"] == "userdata-web-1", data.network_data.is_some());
                let annotation = &template["metadata"]["annotations"]["kubevirt.io/ignitiondata"];
                assert_eq!(annotation, if is_flatcar { "{1}" } else { "{}" });
            }
        }
    }

    #[test]
    fn tenants_with_pools_have_a_sample_interface() {
        let tenant = |network: Value| -> TenantCluster {
            serde_json::from_value(json!({
                "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster",
                "metadata": {"name": "abc"}, "spec": {"network": network},
            }))
            .unwrap()
        };
        assert_eq!(sample_interfaces(&tenant(json!({"name": "trunk"}))), []);
        let pools = json!({"name": "trunk", "ipv4": {"cidr": "10.0.0.0/24"}, "ipv6": {"cidr": "fd00::/64"}});
        assert_eq!(sample_interfaces(&tenant(pools))[0].addresses.len(), 2);
    }
}
