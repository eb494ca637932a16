//! Tenant networks of a host.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::TenantCluster;
use berth_api::infra_node::{NetworkScenario, TenantNetworkSpec};
use berth_api::names::TENANT_PREFIX;

/// Returns the tenant networks that a host must carry, sorted by name. `labels` are the labels of the host's Node, and
/// `networks` are the host networks of the host.
///
/// A tenant's network remains on a host as long as the tenant's status contains a VLAN or VNI. During the deletion of
/// a tenant, the controller removes the VLAN or VNI from the status after the last machine was deleted, because
/// machines need the network until then.
#[must_use]
pub fn tenant_networks(
    tenants: &[Arc<TenantCluster>],
    labels: &BTreeMap<String, String>,
    networks: &BTreeMap<String, NetworkScenario>,
) -> Vec<TenantNetworkSpec> {
    let mut all: Vec<_> =
        tenants.iter().filter_map(|tenant| tenant_network(tenant, labels, networks)).collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

/// Adds the networks that a host has for unknown tenants, whose TenantClusters could not be parsed since the controller
/// started: their machines use these networks. `current` are the tenant networks in the spec of the host. A network
/// whose VLAN or VNI another tenant has now is not added, because the two tenants would not be isolated.
pub(super) fn add_unknown_tenants(
    all: &mut Vec<TenantNetworkSpec>,
    unknown: &BTreeSet<String>,
    current: &[TenantNetworkSpec],
    networks: &BTreeMap<String, NetworkScenario>,
) {
    let is_unknown = |one: &&TenantNetworkSpec| {
        let tenant = one.name.strip_prefix(TENANT_PREFIX);
        tenant.is_some_and(|tenant| unknown.contains(tenant)) && networks.contains_key(&one.network)
    };
    let has_other_owner = |one: &&TenantNetworkSpec| {
        all.iter().any(|other| {
            let has_same_number = one.vlan.is_some() && one.vlan == other.vlan
                || one.vni.is_some() && one.vni == other.vni;
            other.name != one.name && other.network == one.network && has_same_number
        })
    };
    let kept = current.iter().filter(is_unknown).filter(|one| !has_other_owner(one));
    let kept: Vec<TenantNetworkSpec> = kept.cloned().collect();
    all.extend(kept);
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all.dedup_by(|a, b| a.name == b.name);
}

fn tenant_network(
    tenant: &TenantCluster,
    labels: &BTreeMap<String, String>,
    networks: &BTreeMap<String, NetworkScenario>,
) -> Option<TenantNetworkSpec> {
    let desired = tenant.spec.network.as_ref()?;
    let scenario = *networks.get(&desired.name)?;
    if !tenant.selects(labels) {
        return None;
    }
    let status = tenant.status.as_ref()?;
    let (vlan, vni) = match scenario {
        NetworkScenario::Vxlan => (None, Some(status.vni?)),
        NetworkScenario::VlanAwareBridge
        | NetworkScenario::BridgePerTenant
        | NetworkScenario::SriovVf => (Some(status.vlan?), None),
    };
    let name = format!("{TENANT_PREFIX}{}", tenant.metadata.name.as_deref()?);
    // The DHCP guard is enabled only if the agents answer the DHCP requests of the tenant's machines. Otherwise one of
    // the tenant's VMs may be its DHCP server.
    let dhcp_guard = desired.is_served_by_agents().then_some(true);
    let source_guard = desired.has_source_guard().then_some(true);
    let ready_hosts_only = desired.ready_hosts_only.filter(|only| *only);
    let network = desired.name.clone();
    Some(TenantNetworkSpec { name, network, vlan, vni, dhcp_guard, source_guard, ready_hosts_only })
}

#[cfg(test)]
mod tests {
    use berth_api::{TenantClusterSpec, TenantClusterStatus, TenantNetwork};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use k8s_openapi::jiff::Timestamp;

    use super::*;

    fn tenant(name: &str, network: &str, vlan: Option<u16>, vni: Option<u32>) -> TenantCluster {
        let network = TenantNetwork { name: network.to_owned(), ..TenantNetwork::default() };
        let spec = TenantClusterSpec { network: Some(network), ..TenantClusterSpec::default() };
        let vlan = vlan.map(|vlan| vlan.to_string().parse().unwrap());
        let status = TenantClusterStatus { vlan, vni, ..TenantClusterStatus::default() };
        TenantCluster { status: Some(status), ..TenantCluster::new(name, spec) }
    }

    fn tenant_names_on_host(tenants: Vec<TenantCluster>, labels: &[(&str, &str)]) -> Vec<String> {
        let labels = labels.iter().map(|&(k, v)| (k.to_owned(), v.to_owned())).collect();
        let networks = BTreeMap::from([
            ("trunk".to_owned(), NetworkScenario::VlanAwareBridge),
            ("overlay".to_owned(), NetworkScenario::Vxlan),
        ]);
        let tenants: Vec<_> = tenants.into_iter().map(Arc::new).collect();
        let on_host = tenant_networks(&tenants, &labels, &networks);
        let number = |one: &TenantNetworkSpec| match (one.vlan, one.vni) {
            (Some(vlan), None) => vlan.to_string(),
            (None, Some(vni)) => vni.to_string(),
            odd => panic!("{odd:?}"),
        };
        on_host.iter().map(|one| format!("{} {} {}", one.name, one.network, number(one))).collect()
    }

    #[test]
    fn a_tenant_is_on_a_host_once_it_has_a_vlan_or_vni() {
        let all = vec![
            tenant("xyz", "overlay", Some(7), Some(70_000)),
            tenant("abc", "trunk", Some(120), None),
            tenant("new", "trunk", None, None),
            tenant("odd", "overlay", Some(9), None),
            tenant("far", "elsewhere", Some(5), None),
            TenantCluster::new("pod-network-only", TenantClusterSpec::default()),
        ];
        assert_eq!(
            tenant_names_on_host(all, &[]),
            ["cluster-abc trunk 120", "cluster-xyz overlay 70000"]
        );
    }

    #[test]
    fn dhcp_guard_is_set_if_agents_answer_the_vms() {
        let guard = |pool: bool, dhcp: Option<bool>| {
            let mut one = tenant("abc", "trunk", Some(120), None);
            let network = one.spec.network.as_mut().unwrap();
            network.ipv4 = pool.then(|| {
                serde_json::from_value(serde_json::json!({"cidr": "10.0.0.0/24"})).unwrap()
            });
            network.dhcp = dhcp;
            let networks = [("trunk".to_owned(), NetworkScenario::VlanAwareBridge)].into();
            tenant_networks(&[Arc::new(one)], &BTreeMap::new(), &networks)[0].dhcp_guard
        };
        assert_eq!(guard(true, None), Some(true));
        assert_eq!(guard(true, Some(true)), Some(true));
        assert_eq!(guard(true, Some(false)), None);
        assert_eq!(guard(false, None), None);
    }

    #[test]
    fn source_guard_is_set_if_requested_and_agents_answer_the_vms() {
        let guard = |fields: serde_json::Value| {
            let mut one = tenant("abc", "trunk", Some(120), None);
            let mut network = serde_json::json!({"name": "trunk"});
            network.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            one.spec.network = Some(serde_json::from_value(network).unwrap());
            let networks = [("trunk".to_owned(), NetworkScenario::VlanAwareBridge)].into();
            tenant_networks(&[Arc::new(one)], &BTreeMap::new(), &networks)[0].source_guard
        };
        let pool = serde_json::json!({"cidr": "10.0.0.0/24"});
        assert_eq!(guard(serde_json::json!({"ipv4": pool, "sourceGuard": true})), Some(true));
        assert_eq!(guard(serde_json::json!({"ipv4": pool, "sourceGuard": false})), None);
        assert_eq!(guard(serde_json::json!({"ipv4": pool})), None);
        // The API server refuses these combinations: without leases, no rule would apply.
        assert_eq!(guard(serde_json::json!({"sourceGuard": true})), None);
        let no_dhcp = serde_json::json!({"ipv4": pool, "sourceGuard": true, "dhcp": false});
        assert_eq!(guard(no_dhcp), None);
    }

    #[test]
    fn network_of_an_unknown_tenant_is_kept_unless_its_vlan_has_another_tenant() {
        let networks = [("trunk".to_owned(), NetworkScenario::VlanAwareBridge)].into();
        let on_host = |name: &str, vlan: u16| {
            let tenants = [Arc::new(tenant(name, "trunk", Some(vlan), None))];
            tenant_networks(&tenants, &BTreeMap::new(), &networks)
        };
        let unknown = BTreeSet::from(["lost".to_owned()]);
        let current = [on_host("lost", 120), on_host("gone", 130)].concat();
        let names = |known_vlan: u16| {
            let mut all = on_host("known", known_vlan);
            add_unknown_tenants(&mut all, &unknown, &current, &networks);
            all.into_iter().map(|one| one.name).collect::<Vec<_>>()
        };
        assert_eq!(names(121), ["cluster-known", "cluster-lost"]);
        assert_eq!(names(120), ["cluster-known"]);
    }

    #[test]
    fn the_node_selector_is_applied() {
        let mut one = tenant("abc", "trunk", Some(120), None);
        one.spec.node_selector.insert("rack".to_owned(), "1".to_owned());
        assert!(tenant_names_on_host(vec![one.clone()], &[("rack", "2")]).is_empty());
        assert_eq!(tenant_names_on_host(vec![one], &[("rack", "1")]).len(), 1);
    }

    #[test]
    fn a_deleted_tenant_keeps_its_network_until_its_machines_are_deleted() {
        let mut one = tenant("abc", "trunk", Some(120), None);
        one.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        assert_eq!(tenant_names_on_host(vec![one.clone()], &[]).len(), 1);
        one.status.as_mut().unwrap().vlan = None;
        assert!(tenant_names_on_host(vec![one], &[]).is_empty());
    }
}
