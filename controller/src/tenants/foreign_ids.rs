//! Finds VLANs and VNIs that NetworkAttachmentDefinitions of other users contain. Such numbers have no VlanClaim, but
//! VMs may use them.
//!
//! This module reads the fields of the CNI plugins `bridge` (`vlan`, `vlanTrunk`) and `sriov` (`vlan`), in a single
//! configuration or in a list of `plugins`. A configuration that cannot be parsed is ignored.

use std::collections::BTreeMap;

use berth_api::VlanId;
use serde::Deserialize;
use serde_json::Value;

use super::network::HostNetwork;
use super::network_id::NetworkId;

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct CniConfig {
    #[serde(rename = "type")]
    plugin: String,
    bridge: String,
    vlan: Option<u16>,
    vlan_trunk: Vec<TrunkRange>,
    plugins: Vec<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TrunkRange {
    #[serde(rename = "minID")]
    min_id: Option<u16>,
    #[serde(rename = "maxID")]
    max_id: Option<u16>,
    id: Option<u16>,
}

/// The fields of a NetworkAttachmentDefinition that contain VLANs.
#[derive(Clone, Copy, Debug)]
pub struct AttachmentFields<'a> {
    /// Namespace of the NetworkAttachmentDefinition.
    pub namespace: &'a str,
    /// Name of the NetworkAttachmentDefinition.
    pub name: &'a str,
    /// Value of the annotation `k8s.v1.cni.cncf.io/resourceName`.
    pub resource: Option<&'a str>,
    /// CNI configuration in the NetworkAttachmentDefinition (`spec.config`).
    pub config: &'a str,
}

/// Returns the VLANs and VNIs that NetworkAttachmentDefinitions in namespaces other than `own_namespace` use on a host
/// network. For each VLAN or VNI, the value is the name of the first such NetworkAttachmentDefinition in alphabetical
/// order.
#[must_use]
pub fn ids_in_attachments<'a>(
    attachments: impl Iterator<Item = AttachmentFields<'a>>,
    network: &HostNetwork,
    sriov_resource: Option<&str>,
    own_namespace: &str,
) -> BTreeMap<NetworkId, String> {
    let mut all: BTreeMap<NetworkId, String> = BTreeMap::new();
    for attachment in attachments.filter(|one| one.namespace != own_namespace) {
        let Ok(config) = serde_json::from_str::<CniConfig>(attachment.config) else { continue };
        let inner =
            config.plugins.iter().cloned().filter_map(|one| serde_json::from_value(one).ok());
        let inner: Vec<CniConfig> = inner.collect();
        for config in inner.iter().chain([&config]) {
            for id in ids_in_config(config, attachment.resource, network, sriov_resource) {
                let name = format!("{}/{}", attachment.namespace, attachment.name);
                all.entry(id)
                    .and_modify(|first| {
                        if name < *first {
                            first.clone_from(&name);
                        }
                    })
                    .or_insert_with(|| name.clone());
            }
        }
    }
    all
}

fn ids_in_config(
    config: &CniConfig,
    resource: Option<&str>,
    network: &HostNetwork,
    sriov_resource: Option<&str>,
) -> Vec<NetworkId> {
    let shared = network.shared_bridge.as_ref().map(berth_api::LinkName::as_str);
    let vlan = |id: u16| VlanId::try_from(id).ok().map(NetworkId::Vlan);
    match config.plugin.as_str() {
        "bridge" if Some(config.bridge.as_str()) == shared => {
            let trunks = config.vlan_trunk.iter().flat_map(|trunk| {
                let range = match (trunk.min_id, trunk.max_id) {
                    (Some(min), Some(max)) => min..max.min(4094).saturating_add(1),
                    _ => 0..0,
                };
                range.chain(trunk.id)
            });
            config.vlan.into_iter().chain(trunks).filter_map(vlan).collect()
        }
        "bridge" => {
            // The name of a single-tenant bridge consists of this prefix and the VLAN or VNI.
            let Some(prefix) = network.bridge_prefix.as_deref() else { return Vec::new() };
            let number: Option<u32> =
                config.bridge.strip_prefix(prefix).and_then(|number| number.parse().ok());
            let Some(number) = number.filter(|number| *number > 0) else { return Vec::new() };
            let id = if network.uses_vnis() {
                Some(NetworkId::Vni(number))
            } else {
                u16::try_from(number).ok().and_then(vlan)
            };
            id.into_iter().collect()
        }
        "sriov" if sriov_resource.is_some() && resource == sriov_resource => {
            config.vlan.and_then(vlan).into_iter().collect()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use berth_api::infra_node::NetworkScenario;

    use super::*;

    fn found_ids(network: &HostNetwork, config: &str) -> Vec<String> {
        let attachment = AttachmentFields {
            namespace: "legacy",
            name: "net",
            resource: Some("example.org/vfs"),
            config,
        };
        ids_in_attachments(
            [attachment].into_iter(),
            network,
            Some("example.org/vfs"),
            "cluster-abc",
        )
        .into_iter()
        .map(|(id, name)| format!("{id} of {name}"))
        .collect()
    }

    #[test]
    fn vlans_of_other_definitions_are_found() {
        let shared = HostNetwork::for_tests(NetworkScenario::VlanAwareBridge);
        assert_eq!(
            found_ids(&shared, r#"{"type":"bridge","bridge":"br-trunk","vlan":120}"#),
            ["VLAN 120 of legacy/net"]
        );
        let trunk = r#"{"plugins":[{"type":"bridge","bridge":"br-trunk","vlanTrunk":[{"minID":5,"maxID":6},{"id":9}]}]}"#;
        assert_eq!(found_ids(&shared, trunk).len(), 3);
        assert!(found_ids(&shared, r#"{"type":"bridge","bridge":"other","vlan":120}"#).is_empty());
        assert_eq!(found_ids(&shared, r#"{"type":"sriov","vlan":7}"#), ["VLAN 7 of legacy/net"]);
        let own = HostNetwork::for_tests(NetworkScenario::BridgePerTenant);
        assert_eq!(
            found_ids(&own, r#"{"type":"bridge","bridge":"tn33"}"#),
            ["VLAN 33 of legacy/net"]
        );
        let vxlan = HostNetwork::for_tests(NetworkScenario::Vxlan);
        assert_eq!(
            found_ids(&vxlan, r#"{"type":"bridge","bridge":"tn70000"}"#),
            ["VNI 70000 of legacy/net"]
        );
        for garbage in ["", "[]", "{}", r#"{"type":"bridge","bridge":"br-trunk","vlan":"x"}"#] {
            assert!(found_ids(&shared, garbage).is_empty(), "{garbage}");
        }
    }

    #[test]
    fn definitions_of_the_tenant_do_not_count() {
        let attachment = AttachmentFields {
            namespace: "cluster-abc",
            name: "net",
            resource: None,
            config: r#"{"type":"bridge","bridge":"br-trunk","vlan":120}"#,
        };
        let shared = HostNetwork::for_tests(NetworkScenario::VlanAwareBridge);
        assert!(
            ids_in_attachments([attachment].into_iter(), &shared, None, "cluster-abc").is_empty()
        );
    }
}
