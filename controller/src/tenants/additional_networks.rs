//! NetworkAttachmentDefinitions with which machines of a tenant are attached to the networks of other tenants
//! (`spec.network.additional` of the TenantCluster, and InfraConfig's `additionalNetworks`).
//!
//! The other TenantCluster has the VLAN or VNI, the address pools and the hosts of its network. The definition differs
//! from that of the other tenant only in namespace and name.

use std::sync::Arc;

use berth_api::{ConditionReason, InfraConfigSpec, TenantCluster};
use kube::ResourceExt as _;

use super::binding_plugins::BindingPlugins;
use super::fault::Fault;
use super::hosts::TenantHostState;
use super::mtu::with_last_known_mtu;
use super::network::resolve_host_network;
use super::network_id::NetworkId;
use super::objects::DesiredObject;
use super::objects::attachment::{
    TenantCount, additional_attachment, network_attachment_definition,
};

/// Facts from which the definitions are built.
#[derive(Clone, Copy, Debug)]
pub struct AdditionalInput<'a> {
    /// The tenant of the machines.
    pub tenant: &'a TenantCluster,
    /// All tenants.
    pub tenants: &'a [Arc<TenantCluster>],
    pub config: &'a InfraConfigSpec,
    pub hosts: &'a [Arc<TenantHostState>],
    pub binding_plugins: &'a BindingPlugins,
}

/// Desired NetworkAttachmentDefinitions for the networks of other tenants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdditionalDefinitions {
    /// The definitions, each with the name of the other tenant.
    pub objects: Vec<(String, DesiredObject)>,
    /// Names of definitions that are not deleted, but cannot be built at present. Machines may use them.
    pub retained: Vec<String>,
    pub faults: Vec<Fault>,
}

/// Reason why a definition cannot be built.
enum Unavailable {
    /// Machines must not use the network, so an existing definition is deleted.
    Refused(String),
    /// The state of the other tenant, or of its hosts, may change, so an existing definition stays.
    NotReady(String),
}

impl AdditionalDefinitions {
    /// Builds the definitions for all networks that the tenant lists. `count_tenants` returns the number of tenants that
    /// use a host network.
    #[must_use]
    pub fn new(input: AdditionalInput<'_>, count_tenants: impl Fn(&str) -> TenantCount) -> Self {
        let mut definitions = Self::default();
        for other in input.tenant.additional_tenants() {
            let reason = match build(input, other, &count_tenants) {
                Ok(object) => {
                    definitions.objects.push((other.to_owned(), object));
                    continue;
                }
                Err(Unavailable::Refused(reason)) => reason,
                Err(Unavailable::NotReady(reason)) => {
                    let name = TenantCluster::additional_definition_name(other);
                    definitions.retained.push(name);
                    reason
                }
            };
            let message = format!("spec.network.additional: TenantCluster {other} {reason}");
            let fault = Fault::new(ConditionReason::AdditionalNetworkNotReady, message);
            definitions.faults.push(fault);
        }
        definitions
    }

    /// Returns true if a NetworkAttachmentDefinition with this name must not be deleted.
    #[must_use]
    pub fn keeps(&self, name: &str) -> bool {
        self.retained.iter().any(|one| one == name)
            || self.objects.iter().any(|(_, object)| object.name() == name)
    }
}

fn build(
    input: AdditionalInput<'_>,
    other: &str,
    count_tenants: impl Fn(&str) -> TenantCount,
) -> Result<DesiredObject, Unavailable> {
    let refused = |reason: &str| Unavailable::Refused(reason.to_owned());
    let not_ready = |fault: Fault| Unavailable::NotReady(format!("is not ready: {fault}"));
    let tenant = input.tenant.name_any();
    if tenant == other {
        return Err(refused("is the tenant itself: remove it from the list"));
    }
    if !input.config.additional_networks.iter().any(|one| one == other) {
        return Err(refused("is not permitted: add it to InfraConfig's spec.additionalNetworks"));
    }
    let Some(owner) = input.tenants.iter().find(|one| one.name_any() == other) else {
        return Err(refused("does not exist"));
    };
    let Some(requested) = &owner.spec.network else {
        return Err(refused("has no spec.network"));
    };
    // Machines of other tenants are known by their AddressClaims only. Without them, the tenant could be deleted and its
    // VLAN allocated to another tenant while machines still use it.
    if requested.ipv4.is_none() && requested.ipv6.is_none() {
        return Err(refused("has no address pools: set spec.network.ipv4 or spec.network.ipv6"));
    }
    let network = resolve_host_network(owner, input.hosts).map_err(not_ready)?;
    let network = network.map(|network| with_last_known_mtu(network, owner));
    let id = owner.status.as_ref().and_then(NetworkId::from_status);
    let (Some(network), Some(id)) = (network, id) else {
        return Err(Unavailable::NotReady("has no VLAN or VNI yet".to_owned()));
    };
    input.binding_plugins.check(requested.binding).map_err(not_ready)?;
    let count = count_tenants(&network.name);
    let definition = network_attachment_definition(other, requested, &network, id, count);
    Ok(additional_attachment(&tenant, other, definition.map_err(not_ready)?))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use berth_api::names::{READY_NETWORK_ANNOTATION, TENANT_LABEL};
    use serde_json::{Value, json};

    use super::*;

    fn tenant(name: &str, network: Value, status: Value) -> Arc<TenantCluster> {
        let object = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster",
            "metadata": {"name": name}, "spec": {"network": network}, "status": status});
        Arc::new(serde_json::from_value(object).unwrap())
    }

    fn host() -> Arc<TenantHostState> {
        let network =
            json!({"name": "trunk", "scenario": "VlanAwareBridge", "uplink": {"name": "eth1"}});
        Arc::new(TenantHostState {
            name: "rack1-a".to_owned(),
            labels: Some(BTreeMap::new()),
            networks: vec![serde_json::from_value(network).unwrap()],
            ..TenantHostState::default()
        })
    }

    fn definitions(
        additional: Value,
        others: &[Arc<TenantCluster>],
        hosts: &[Arc<TenantHostState>],
    ) -> AdditionalDefinitions {
        let own = json!({"name": "trunk", "additional": additional});
        let tenant = tenant("abc", own, json!({"vlan": 100}));
        let config =
            json!({"additionalNetworks": ["abc-storage", "abc", "absent", "plain", "unnumbered"]});
        let config: InfraConfigSpec = serde_json::from_value(config).unwrap();
        let input = AdditionalInput {
            tenant: &tenant,
            tenants: others,
            config: &config,
            hosts,
            binding_plugins: &BindingPlugins::default(),
        };
        AdditionalDefinitions::new(input, |_| TenantCount(1))
    }

    #[test]
    fn the_definition_is_in_the_namespace_of_the_machines() {
        let ipv4 = json!({"cidr": "10.1.0.0/24"});
        let network = json!({"name": "trunk", "readyHostsOnly": true, "ipv4": ipv4});
        let storage = tenant("abc-storage", network, json!({"vlan": 150}));
        let found = definitions(json!(["storage/ceph", "abc-storage"]), &[storage], &[host()]);
        assert!(found.faults.is_empty() && found.retained.is_empty(), "{found:?}");
        let [(other, object)] = found.objects.as_slice() else { panic!("{found:?}") };
        assert_eq!(other, "abc-storage");
        let metadata = &object.body["metadata"];
        assert_eq!(metadata["name"], "berth-network-abc-storage");
        assert_eq!(metadata["namespace"], "cluster-abc");
        assert_eq!(metadata["labels"][TENANT_LABEL], "abc");
        let ready = "network.berth.dev/cluster-abc-storage";
        assert_eq!(metadata["annotations"][READY_NETWORK_ANNOTATION], ready);
        let config: Value =
            serde_json::from_str(object.body["spec"]["config"].as_str().unwrap()).unwrap();
        assert_eq!(config["vlan"], 150);
        assert!(found.keeps("berth-network-abc-storage") && !found.keeps("berth-network-other"));
    }

    #[test]
    fn unavailable_networks_are_reported() {
        let network = json!({"name": "trunk", "ipv6": {"cidr": "fd00:1::/64"}});
        let storage = |status: Value| tenant("abc-storage", network.clone(), status);
        let others = [
            storage(json!({})),
            tenant("plain", Value::Null, json!({})),
            tenant("unnumbered", json!({"name": "trunk"}), json!({"vlan": 151})),
        ];
        for (name, words, is_retained) in [
            ("abc-storage", "TenantCluster abc-storage has no VLAN or VNI yet", true),
            ("abc", "is the tenant itself", false),
            ("absent", "TenantCluster absent does not exist", false),
            ("plain", "has no spec.network", false),
            ("unnumbered", "has no address pools", false),
            ("foreign", "add it to InfraConfig's spec.additionalNetworks", false),
        ] {
            let found = definitions(json!([name]), &others, &[host()]);
            assert!(found.objects.is_empty());
            assert_eq!(found.faults[0].reason, ConditionReason::AdditionalNetworkNotReady);
            assert!(found.faults[0].message.contains(words), "{found:?}");
            let definition = TenantCluster::additional_definition_name(name);
            assert_eq!(found.keeps(&definition), is_retained, "{name}");
        }
        // The hosts may return, so machines keep the definition.
        let without_hosts =
            definitions(json!(["abc-storage"]), &[storage(json!({"vlan": 1}))], &[]);
        assert!(
            without_hosts.keeps("berth-network-abc-storage") && without_hosts.objects.is_empty()
        );
    }
}
