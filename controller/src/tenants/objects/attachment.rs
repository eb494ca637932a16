//! NetworkAttachmentDefinition with which VMs of a tenant are attached to the tenant's network.
//!
//! The fields are those of the CNI plugins `bridge`, `sriov` and `macvtap`. `preserveDefaultVlan: false` is set
//! although it is the current default, because older plugins left every port in VLAN 1. A gateway and masquerading are
//! not configured, because each of them would add an address of the host to the tenant's bridge.

use berth_api::infra_node::NetworkScenario;
use berth_api::names::{READY_NETWORK_ANNOTATION, READY_NETWORK_PREFIX, resource};
use berth_api::{ConditionReason, NetworkBinding, TenantCluster, TenantNetwork};
use serde_json::{Value, json};

use super::desired_object::DesiredObject;
use super::kind::ObjectKind;
use crate::tenants::fault::Fault;
use crate::tenants::network::HostNetwork;
use crate::tenants::network_id::NetworkId;
use berth_kubevirt_render::launcher::RESOURCE_NAME;

/// Number of tenants that use a host network. Up to a maximum number, agents report single-tenant bridges as resources
/// of the Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantCount(pub usize);

/// Returns the NetworkAttachmentDefinition of a tenant.
///
/// # Errors
/// Returns a fault if the network does not support the requested binding.
pub fn network_attachment_definition(
    tenant: &str,
    requested: &TenantNetwork,
    network: &HostNetwork,
    id: NetworkId,
    tenant_count: TenantCount,
) -> Result<DesiredObject, Fault> {
    let sriov = network.scenario == NetworkScenario::SriovVf;
    let default = if sriov { NetworkBinding::Sriov } else { NetworkBinding::Bridge };
    let binding = requested.binding.unwrap_or(default);
    if requested.has_source_guard() && binding != NetworkBinding::Bridge {
        let message = format!(
            "spec.network.sourceGuard: true, but with the binding {binding:?} of network {} the frames of machines pass \
             through no bridge of the host, which could drop them; remove the field, or use a network with bridges",
            network.name
        );
        return Err(Fault::new(ConditionReason::InvalidBinding, message));
    }
    let (name, resource, config) = match binding {
        NetworkBinding::Bridge => bridge_parts(tenant, requested, network, id, tenant_count)?,
        NetworkBinding::Sriov => sriov_parts(tenant, requested, network, id)?,
        NetworkBinding::Macvtap => macvtap_parts(tenant, network, id),
    };
    let mut wanted = DesiredObject::new(
        ObjectKind::NetworkAttachmentDefinition,
        tenant,
        &name,
        json!({"spec": {"config": config.to_string()}}),
    );
    let mut annotations = serde_json::Map::new();
    if let Some(resource) = resource {
        annotations.insert(RESOURCE_NAME.to_owned(), resource.into());
    }
    if requested.ready_hosts_only == Some(true) {
        let network = TenantCluster::namespace_of(tenant);
        let ready = format!("{}{network}", READY_NETWORK_PREFIX);
        annotations.insert(READY_NETWORK_ANNOTATION.to_owned(), ready.into());
    }
    if !annotations.is_empty() {
        wanted.body["metadata"]["annotations"] = annotations.into();
    }
    Ok(wanted)
}

/// Returns the definition with which machines of `tenant` are attached to the network of the tenant `other`, from the
/// definition of this network. Multus refuses definitions of other namespaces with `namespaceIsolation`.
#[must_use]
pub fn additional_attachment(
    tenant: &str,
    other: &str,
    definition: DesiredObject,
) -> DesiredObject {
    let name = TenantCluster::additional_definition_name(other);
    let spec = definition.body["spec"].clone();
    let mut additional = DesiredObject::new(definition.kind, tenant, &name, json!({"spec": spec}));
    let annotations = definition.body["metadata"].get("annotations");
    if let Some(annotations) = annotations {
        additional.body["metadata"]["annotations"] = annotations.clone();
    }
    additional
}

type DefinitionParts = (String, Option<String>, Value);

fn bridge_parts(
    tenant: &str,
    requested: &TenantNetwork,
    network: &HostNetwork,
    id: NetworkId,
    tenant_count: TenantCount,
) -> Result<DefinitionParts, Fault> {
    let name = NetworkBinding::Bridge.definition_name(tenant);
    let Some(bridge) = network.tenant_bridge_name(id) else {
        let message = format!(
            "spec.network.binding: Bridge, but network {} has scenario {:?} and no bridges; remove the field",
            network.name, network.scenario
        );
        return Err(Fault::new(ConditionReason::InvalidBinding, message));
    };
    if bridge.parse::<berth_api::LinkName>().is_err() {
        let message = format!(
            "network {}: the name of the bridge, `{bridge}`, has {} bytes, but names of links have at most 15; set a \
             shorter spec.networks[{0}].bridge in the HostProfile",
            network.name,
            bridge.len()
        );
        return Err(Fault::new(ConditionReason::InvalidHostNetwork, message));
    }
    let mut config = json!({
        "cniVersion": "0.3.1", "name": name, "type": "bridge", "bridge": bridge,
        "macspoofchk": requested.mac_spoof_check.unwrap_or(true),
        "disableContainerInterface": true, "ipam": {},
    });
    if let (Some(_), NetworkId::Vlan(vlan)) = (&network.shared_bridge, id) {
        config["vlan"] = u16::from(vlan).into();
        config["preserveDefaultVlan"] = false.into();
    }
    if let Some(mtu) = network.mtu {
        config["mtu"] = mtu.into();
    }
    // Above the maximum number of tenants, agents do not report single-tenant bridges as resources. If the
    // NetworkAttachmentDefinition then named the bridge in its annotation, its VMs would fit on no host.
    let is_reported =
        network.shared_bridge.is_some() || tenant_count.0 <= resource::MAX_PUBLISHED_BRIDGES;
    let resource = is_reported.then(|| format!("{}{bridge}", resource::BRIDGE_PREFIX));
    Ok((name, resource, config))
}

fn sriov_parts(
    tenant: &str,
    requested: &TenantNetwork,
    network: &HostNetwork,
    id: NetworkId,
) -> Result<DefinitionParts, Fault> {
    let NetworkId::Vlan(vlan) = id else {
        let message = format!(
            "spec.network.binding: Sriov, but network {} has scenario {:?} and no VLANs; use another binding, or a \
             network with VLANs",
            network.name, network.scenario
        );
        return Err(Fault::new(ConditionReason::InvalidBinding, message));
    };
    let Some(resource) = &requested.sriov_resource else {
        let message = "spec.network.sriovResource: is missing; set it to the resource of the \
        SR-IOV device plugin, such as \
                       openshift.io/tenantvfs";
        return Err(Fault::new(ConditionReason::InvalidBinding, message.to_owned()));
    };
    let name = NetworkBinding::Sriov.definition_name(tenant);
    let check = if requested.mac_spoof_check.unwrap_or(true) { "on" } else { "off" };
    let config = json!({
        "cniVersion": "1.0.0", "name": name, "type": "sriov", "vlan": u16::from(vlan), "vlanQoS": 0,
        "spoofchk": check, "trust": "off", "link_state": "auto", "ipam": {},
    });
    Ok((name, Some(resource.clone()), config))
}

/// Returns name, resource and CNI configuration for the binding `Macvtap`. The resource of the macvtap device plugin
/// ends with the name that a bridge of this tenant would have.
fn macvtap_parts(tenant: &str, network: &HostNetwork, id: NetworkId) -> DefinitionParts {
    let name = NetworkBinding::Macvtap.definition_name(tenant);
    let prefix = network.bridge_prefix.as_deref().unwrap_or("tn");
    let resource = format!("macvtap.network.kubevirt.io/{prefix}{}", id.number());
    let mut config = json!({"cniVersion": "0.3.1", "name": name, "type": "macvtap"});
    if let Some(mtu) = network.mtu {
        config["mtu"] = mtu.into();
    }
    (name, Some(resource), config)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render_attachment(
        scenario: NetworkScenario,
        network_fields: Value,
        tenant_count: usize,
    ) -> Result<(Value, Value), Fault> {
        let mut network = json!({"name": "trunk"});
        network.as_object_mut().unwrap().extend(network_fields.as_object().unwrap().clone());
        let requested: TenantNetwork = serde_json::from_value(network).unwrap();
        let id = match scenario {
            NetworkScenario::Vxlan => NetworkId::Vni(10_000),
            _ => NetworkId::Vlan(1234.try_into().unwrap()),
        };
        let network = HostNetwork::for_tests(scenario);
        let wanted = network_attachment_definition(
            "abc",
            &requested,
            &network,
            id,
            TenantCount(tenant_count),
        )?;
        let config = wanted.body["spec"]["config"].as_str().unwrap();
        let resource = wanted.body["metadata"]["annotations"][RESOURCE_NAME].clone();
        Ok((serde_json::from_str(config).unwrap(), resource))
    }

    #[test]
    fn vms_require_a_ready_network_only_if_requested() {
        for (only, expected) in
            [(json!(true), json!("network.berth.dev/cluster-abc")), (json!(false), Value::Null)]
        {
            let requested = json!({"name": "trunk", "readyHostsOnly": only});
            let requested: TenantNetwork = serde_json::from_value(requested).unwrap();
            let network = HostNetwork::for_tests(NetworkScenario::VlanAwareBridge);
            let id = NetworkId::Vlan(1234.try_into().unwrap());
            let wanted =
                network_attachment_definition("abc", &requested, &network, id, TenantCount(1));
            let wanted = wanted.unwrap();
            let annotations = &wanted.body["metadata"]["annotations"];
            assert_eq!(annotations[READY_NETWORK_ANNOTATION], expected);
            assert_eq!(annotations[RESOURCE_NAME], "bridge.network.kubevirt.io/br-trunk");
        }
    }

    #[test]
    fn each_scenario_has_its_definition() {
        let bridge = render_attachment(NetworkScenario::VlanAwareBridge, json!({}), 1000).unwrap();
        assert_eq!(
            bridge.0,
            json!({
                "cniVersion": "0.3.1", "name": "tenant-abc", "type": "bridge", "bridge": "br-trunk", "vlan": 1234,
                "preserveDefaultVlan": false, "mtu": 1500, "macspoofchk": true, "disableContainerInterface": true,
                "ipam": {},
            })
        );
        assert_eq!(bridge.1, "bridge.network.kubevirt.io/br-trunk");
        let own = render_attachment(
            NetworkScenario::BridgePerTenant,
            json!({"macSpoofCheck": false}),
            16,
        )
        .unwrap();
        assert_eq!(
            own.0,
            json!({
                "cniVersion": "0.3.1", "name": "tenant-abc", "type": "bridge", "bridge": "tn1234", "mtu": 1500,
                "macspoofchk": false, "disableContainerInterface": true, "ipam": {},
            })
        );
        assert_eq!(own.1, "bridge.network.kubevirt.io/tn1234");
        let vxlan = render_attachment(NetworkScenario::Vxlan, json!({}), 17).unwrap();
        assert_eq!((&vxlan.0["bridge"], &vxlan.1), (&json!("tn10000"), &Value::Null));
        let vf = json!({"sriovResource": "openshift.io/tenantvfs"});
        let sriov = render_attachment(NetworkScenario::SriovVf, vf, 1).unwrap();
        assert_eq!(
            sriov.0,
            json!({
                "cniVersion": "1.0.0", "name": "tenant-abc-sriov", "type": "sriov", "vlan": 1234, "vlanQoS": 0,
                "spoofchk": "on", "trust": "off", "link_state": "auto", "ipam": {},
            })
        );
        assert_eq!(sriov.1, "openshift.io/tenantvfs");
        let macvtap =
            render_attachment(NetworkScenario::BridgePerTenant, json!({"binding": "Macvtap"}), 1)
                .unwrap();
        assert_eq!(
            macvtap.0,
            json!({"cniVersion": "0.3.1", "name": "tenant-abc-mvt", "type": "macvtap", "mtu": 1500})
        );
        assert_eq!(macvtap.1, "macvtap.network.kubevirt.io/tn1234");
    }

    #[test]
    fn unsupported_bindings_are_refused() {
        for (scenario, asked, words) in [
            (NetworkScenario::SriovVf, json!({}), "spec.network.sriovResource"),
            (NetworkScenario::SriovVf, json!({"binding": "Bridge"}), "and no bridges"),
            (NetworkScenario::Vxlan, json!({"binding": "Sriov"}), "and no VLANs"),
            (
                NetworkScenario::SriovVf,
                json!({"ipv4": {"cidr": "10.0.0.0/24"}, "sourceGuard": true, "sriovResource": "a/b"}),
                "spec.network.sourceGuard",
            ),
        ] {
            let fault = render_attachment(scenario, asked, 1).unwrap_err();
            assert!(fault.message.contains(words), "{fault}");
        }
        let guarded = json!({"ipv4": {"cidr": "10.0.0.0/24"}, "sourceGuard": true});
        render_attachment(NetworkScenario::VlanAwareBridge, guarded, 1).unwrap();
    }
}
