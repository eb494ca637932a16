//! State of a host on which its tenants depend, derived from its InfraNode and its Node. Also selects the hosts that
//! carry a tenant's network.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::infra_node::{
    AddressConflictStatus, ChangeResult, NetworkSpec, Removal, TenantNetworkState, UplinkSelector,
};
use berth_api::mtu::vxlan_mtu;
use berth_api::{InfraNode, TenantCluster, TenantHost, TenantHosts, VlanRanges};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;

use super::network_id::NetworkId;

/// Maximum number of hosts that the status of a tenant names. It equals `maxItems` of `status.hosts.notReady` in the
/// CRD.
const MAX_NOT_READY_HOSTS: usize = 16;

/// The part of a host's state on which its tenants depend. When the InfraNode or the Node changes, it is derived once
/// for all tenants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantHostState {
    pub name: String,
    /// UID of the InfraNode. If an InfraNode of the same name has another UID, reports that were copied from the
    /// earlier InfraNode are not used.
    pub uid: Option<String>,
    /// Labels of the Node; `None` if there is no Node of this name.
    pub labels: Option<BTreeMap<String, String>>,
    /// Host networks in `spec.networks` of the InfraNode.
    pub networks: Vec<NetworkSpec>,
    /// MTU of each host network: the MTU in the spec or, if the spec has none, the MTU that the uplink permits.
    pub mtus: BTreeMap<String, u32>,
    /// Actual MTU of each host network, as the agent reports it. It is smaller than that in [`Self::mtus`] if the
    /// uplink or a link of Berth has a smaller MTU.
    pub reported_mtus: BTreeMap<String, u32>,
    /// Desired tenant networks (`spec.tenantNetworks`): host network and VLAN or VNI, by the namespace of the tenant,
    /// `cluster-<id>`.
    pub desired_networks: BTreeMap<String, (String, NetworkId)>,
    /// True if the agent has reported about the current spec: `status.observedGeneration` equals the generation of the
    /// spec.
    pub has_reported: bool,
    /// Desired tenant networks that the last report of the agent covers. An entry stays valid if another tenant is
    /// added to the spec.
    pub reported_networks: BTreeMap<String, (String, NetworkId)>,
    /// For each host network, the number of tenants whose network is not ready and that `status.networks` only counts,
    /// without naming them.
    pub unnamed_counts: BTreeMap<String, u32>,
    /// Reason why a tenant's network is not ready, by host network and by the namespace of the tenant, `cluster-<id>`.
    pub not_ready_reasons: BTreeMap<(String, String), String>,
    /// Addresses of VMs on this host that are also in use by other machines.
    pub address_conflicts: Vec<AddressConflictStatus>,
    /// Removals of tenant networks that failed or are blocked.
    pub failed_removals: Vec<FailedRemoval>,
    /// Time since which the agent is unresponsive; `None` if the agent is responsive.
    pub unresponsive_since: Option<Timestamp>,
}

/// A change by which the agent should remove a tenant's network from the host, but which has failed or is blocked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedRemoval {
    /// Network that the change should remove.
    pub removal: Removal,
    /// The agent's description of the change.
    pub description: String,
    /// Reason why the change failed or is blocked.
    pub message: String,
}

impl TenantHostState {
    /// Derives the state of a host from its InfraNode and the labels of its Node.
    #[must_use]
    pub fn new(infra: &InfraNode, labels: Option<&BTreeMap<String, String>>) -> Self {
        let status = infra.status.clone().unwrap_or_default();
        let mut host = Self {
            name: infra.name_any(),
            uid: infra.metadata.uid.clone(),
            labels: labels.cloned(),
            networks: infra.spec.networks.clone(),
            address_conflicts: status.address_conflicts.clone(),
            has_reported: status.observed_generation.is_some()
                && status.observed_generation == infra.metadata.generation,
            ..Self::default()
        };
        for spec in &infra.spec.networks {
            host.mtus.extend(network_mtu(spec, &status).map(|mtu| (spec.name.clone(), mtu)));
        }
        for tenant in &infra.spec.tenant_networks {
            if let Some(id) = NetworkId::from_fields(tenant.vlan, tenant.vni) {
                host.desired_networks.insert(tenant.name.clone(), (tenant.network.clone(), id));
            }
        }
        for network in &status.networks {
            host.reported_mtus.extend(network.mtu.map(|mtu| (network.name.clone(), mtu)));
            let all = network.pending.saturating_add(network.failed);
            let named = u32::try_from(network.not_ready.len()).unwrap_or(u32::MAX);
            host.unnamed_counts.insert(network.name.clone(), all.saturating_sub(named));
            for tenant in &network.not_ready {
                let state = match tenant.state {
                    TenantNetworkState::Ready => continue,
                    TenantNetworkState::Pending => "pending",
                    TenantNetworkState::Failed => "failed",
                };
                let message = tenant.message.as_deref().unwrap_or("the agent reported no reason");
                let key = (network.name.clone(), tenant.tenant.clone());
                host.not_ready_reasons.insert(key, format!("{state}: {message}"));
            }
        }
        for change in status.changes.iter().filter(|one| one.result != ChangeResult::Done) {
            if let Some(removes) = change.removes.clone() {
                let message = change.message.clone().unwrap_or_default();
                let what = change.what.clone();
                host.failed_removals.push(FailedRemoval {
                    removal: removes,
                    description: what,
                    message,
                });
            }
        }
        // This status of the condition is written by the controller, after the agent's Lease has expired.
        let unknown = status.conditions.iter().find(|one| one.type_ == "Ready");
        host.unresponsive_since =
            unknown.filter(|one| one.status == "Unknown").map(|one| one.last_transition_time.0);
        if host.has_reported {
            host.reported_networks.clone_from(&host.desired_networks);
        }
        host
    }

    /// Copies the reported networks from the previous state, if they are still valid and the agent has sent no new
    /// report since then.
    #[must_use]
    pub fn with_previous(mut self, before: &Self) -> Self {
        if !self.has_reported && self.uid == before.uid && self.networks == before.networks {
            let is_unchanged = |(tenant, has): &(&String, &(String, NetworkId))| {
                self.desired_networks.get(*tenant) == Some(*has)
            };
            let stay = before.reported_networks.iter().filter(is_unchanged);
            self.reported_networks =
                stay.map(|(tenant, has)| (tenant.clone(), has.clone())).collect();
        }
        self
    }

    /// Returns the spec of a host network; `None` if the host does not have the network.
    #[must_use]
    pub fn network(&self, name: &str) -> Option<&NetworkSpec> {
        self.networks.iter().find(|network| network.name == name)
    }

    /// Returns the MTU that a host network carries on this host; `None` if it is unknown.
    #[must_use]
    pub fn carried_mtu(&self, network: &str) -> Option<u32> {
        [&self.mtus, &self.reported_mtus]
            .into_iter()
            .filter_map(|all| all.get(network))
            .copied()
            .min()
    }

    /// Returns true if the host should carry a tenant's network: the host has the tenant's host network, and the
    /// tenant's node selector matches the labels of the Node.
    #[must_use]
    pub fn carries(&self, tenant: &TenantCluster) -> bool {
        let network = tenant.spec.network.as_ref();
        network.is_some_and(|network| self.network(&network.name).is_some())
            && self.labels.as_ref().is_some_and(|labels| tenant.selects(labels))
    }

    /// Returns the reason why a tenant's network is not ready on the host; `None` if it is ready.
    #[must_use]
    pub fn not_ready_reason(
        &self,
        namespace: &str,
        network: &str,
        id: NetworkId,
    ) -> Option<String> {
        if self.unresponsive_since.is_some() {
            return Some("unknown: its agent is unresponsive".to_owned());
        }
        match self.desired_networks.get(namespace) {
            Some((desired_network, desired_id))
                if desired_network == network && *desired_id == id => {}
            Some((desired_network, desired_id)) => {
                return Some(format!(
                    "the InfraNode's spec still contains {desired_id} on {desired_network}"
                ));
            }
            None => {
                return Some("the InfraNode's spec does not contain the network yet".to_owned());
            }
        }
        if !self.reported_networks.contains_key(namespace) {
            return Some("its agent has not reported yet".to_owned());
        }
        let key = (network.to_owned(), namespace.to_owned());
        if let Some(reason) = self.not_ready_reasons.get(&key) {
            return Some(reason.clone());
        }
        match self.unnamed_counts.get(network) {
            Some(0) => None,
            // The tenant may be one of those that the report counts without naming them.
            Some(count) => Some(format!(
                "unknown: the report counts {count} tenants that are not ready without naming them"
            )),
            None => Some("its agent does not report this network".to_owned()),
        }
    }

    /// Returns the reason why a host network is not ready for VMs with this MTU; `None` unless the agent reports a
    /// smaller MTU.
    fn small_mtu_reason(&self, network: &str, mtu: u32) -> Option<String> {
        let reported = self.reported_mtus.get(network).filter(|reported| **reported < mtu)?;
        Some(format!(
            "it carries packets of {reported} bytes, and the MTU of the network is {mtu}: increase the MTU of its \
             uplink, or set spec.networks[{network}].mtu to {reported}"
        ))
    }

    /// Returns the reason why a tenant's network may still exist on the host; `None` if the agent has reported its
    /// removal.
    #[must_use]
    pub fn removal_pending_reason(&self, namespace: &str, ids: &[NetworkId]) -> Option<String> {
        if self.desired_networks.contains_key(namespace) {
            return Some("the InfraNode's spec still contains the network".to_owned());
        }
        if !self.has_reported {
            return Some("its agent has not reported yet".to_owned());
        }
        let contains_id = |vlans: &VlanRanges| {
            ids.iter().any(|id| matches!(id, NetworkId::Vlan(id) if vlans.ids().contains(*id)))
        };
        let is_for_tenant = |removes: &Removal| {
            removes.tenant.as_deref() == Some(namespace)
                || removes.vlans.as_ref().is_some_and(contains_id)
        };
        let FailedRemoval { description: what, message, .. } =
            self.failed_removals.iter().find(|one| is_for_tenant(&one.removal))?;
        Some(format!("{what}: {message}"))
    }
}

/// Returns the MTU of a host network for VMs: the MTU in the spec or, if the spec has none, the MTU that the uplink
/// permits. If the status does not contain the uplink, returns the MTU that the agent reports for the network.
fn network_mtu(spec: &NetworkSpec, status: &berth_api::InfraNodeStatus) -> Option<u32> {
    let reported = || status.networks.iter().find(|network| network.name == spec.name)?.mtu;
    spec.mtu.or_else(|| uplink_mtu(spec, status)).or_else(reported)
}

/// Returns the MTU that the uplink of a host network permits.
fn uplink_mtu(spec: &NetworkSpec, status: &berth_api::InfraNodeStatus) -> Option<u32> {
    let uplinks = &status.capabilities.uplinks;
    if let Some(vxlan) = spec.vxlan_settings() {
        let address = vxlan.local_address.to_string();
        let end = uplinks.iter().find(|uplink| {
            uplink.addresses.iter().any(|one| one.split('/').next() == Some(address.as_str()))
        });
        return Some(vxlan_mtu(end?.mtu?, vxlan.local_address));
    }
    let UplinkSelector { name, mac, pci_address, .. } = spec.uplink.as_ref()?;
    let mac = mac.as_ref().map(ToString::to_string);
    let is_selected = |uplink: &&berth_api::infra_node::Uplink| {
        name.as_ref() == Some(&uplink.name)
            || (mac.is_some() && uplink.mac == mac)
            || (pci_address.is_some() && uplink.pci_address == *pci_address)
    };
    uplinks.iter().find(is_selected)?.mtu
}

/// Returns the readiness of a tenant's network on the hosts that should carry it: the numbers of hosts, and the hosts
/// that are not ready.
#[must_use]
pub fn readiness(
    tenant: &TenantCluster,
    id: Option<NetworkId>,
    hosts: &[Arc<TenantHostState>],
) -> TenantHosts {
    let Some(network) = &tenant.spec.network else { return TenantHosts::default() };
    let namespace = TenantCluster::namespace_of(&tenant.name_any());
    let mut all = TenantHosts::default();
    let carriers = || hosts.iter().filter(|host| host.carries(tenant));
    let mtu = carriers().filter_map(|host| host.mtus.get(&network.name)).min();
    for host in carriers() {
        all.selected = all.selected.saturating_add(1);
        let reason = match id {
            Some(id) => host
                .not_ready_reason(&namespace, &network.name, id)
                .or_else(|| host.small_mtu_reason(&network.name, *mtu?)),
            None => Some("the tenant has no VLAN or VNI yet".to_owned()),
        };
        match reason {
            None => all.ready = all.ready.saturating_add(1),
            Some(message) => {
                all.not_ready.push(TenantHost { name: host.name.clone(), message });
            }
        }
    }
    all.not_ready.sort_by(|one, other| one.name.cmp(&other.name));
    all.not_ready.truncate(MAX_NOT_READY_HOSTS);
    all
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn host(spec: Value, status: Value) -> TenantHostState {
        let infra: InfraNode = serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "InfraNode",
            "metadata": {"name": "rack1-a", "generation": 4}, "spec": spec, "status": status,
        }))
        .unwrap();
        TenantHostState::new(&infra, Some(&BTreeMap::new()))
    }

    fn trunk_spec() -> Value {
        json!({
            "networks": [{"name": "trunk", "scenario": "VlanAwareBridge", "uplink": {"name": "eth1"}}],
            "tenantNetworks": [{"name": "cluster-abc", "network": "trunk", "vlan": 120}],
        })
    }

    fn tenant() -> TenantCluster {
        let network = json!({"network": {"name": "trunk"}});
        TenantCluster::new("abc", serde_json::from_value(network).unwrap())
    }

    fn not_ready_message(spec: Value, status: Value) -> String {
        let id = NetworkId::Vlan(120.try_into().unwrap());
        let all = readiness(&tenant(), Some(id), &[Arc::new(host(spec, status))]);
        assert_eq!(all.selected, 1);
        assert_eq!(all.ready == 1, all.not_ready.is_empty());
        all.not_ready.into_iter().map(|one| one.message).collect()
    }

    #[test]
    fn a_network_is_ready_where_the_agent_reports_it_for_this_spec() {
        let networks = |more: Value| {
            let mut one = json!({"name": "trunk", "ready": 1, "pending": 0, "failed": 0});
            one.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json!({"observedGeneration": 4, "networks": [one]})
        };
        assert_eq!(not_ready_message(trunk_spec(), networks(json!({}))), "");
        let mut old = networks(json!({}));
        old["observedGeneration"] = 3.into();
        assert_eq!(not_ready_message(trunk_spec(), old), "its agent has not reported yet");
        let failed_tenant = json!({"tenant": "cluster-abc", "vlan": 120, "state": "Failed", "message": "no uplink"});
        assert_eq!(
            not_ready_message(
                trunk_spec(),
                networks(json!({"failed": 1, "notReady": [failed_tenant]}))
            ),
            "failed: no uplink"
        );
        assert_eq!(
            not_ready_message(trunk_spec(), networks(json!({"failed": 9}))),
            "unknown: the report counts 9 tenants that are not ready without naming them"
        );
        assert_eq!(
            not_ready_message(trunk_spec(), json!({"observedGeneration": 4})),
            "its agent does not report this network"
        );
        let mut other = trunk_spec();
        other["tenantNetworks"][0]["vlan"] = 121.into();
        assert_eq!(
            not_ready_message(other, networks(json!({}))),
            "the InfraNode's spec still contains VLAN 121 on trunk"
        );
        let mut none = trunk_spec();
        none.as_object_mut().unwrap().remove("tenantNetworks");
        assert_eq!(
            not_ready_message(none, networks(json!({}))),
            "the InfraNode's spec does not contain the network yet"
        );
        let mut unresponsive = networks(json!({}));
        unresponsive["conditions"] = json!([{"type": "Ready", "status": "Unknown", "reason": "AgentUnresponsive", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        assert_eq!(
            not_ready_message(trunk_spec(), unresponsive),
            "unknown: its agent is unresponsive"
        );
    }

    #[test]
    fn reports_do_not_count_for_another_object_of_the_same_name() {
        let networks = json!([{"name": "trunk", "ready": 1, "pending": 0, "failed": 0}]);
        let with = |uid: &str, observed: i64| {
            let mut host = host(
                trunk_spec(),
                json!({"observedGeneration": observed, "networks": networks.clone()}),
            );
            host.uid = Some(uid.to_owned());
            host
        };
        let id = NetworkId::Vlan(120.try_into().unwrap());
        let answered = with("a", 4);
        let not_ready_reason =
            |host: TenantHostState| host.not_ready_reason("cluster-abc", "trunk", id);
        assert_eq!(not_ready_reason(with("a", 3).with_previous(&answered)), None);
        let reason = not_ready_reason(with("b", 3).with_previous(&answered));
        assert_eq!(reason.as_deref(), Some("its agent has not reported yet"));
    }

    #[test]
    fn a_tenant_waits_only_for_its_own_links_and_vlans() {
        let change = |result: &str, removes: Value| {
            let changes =
                json!([{"what": "a", "result": result, "message": "b", "removes": removes}]);
            host(json!({}), json!({"observedGeneration": 4, "changes": changes}))
        };
        let ids = [NetworkId::Vlan(120.try_into().unwrap()), NetworkId::Vni(121)];
        let reason = |host: TenantHostState| host.removal_pending_reason("cluster-abc", &ids);
        let waits = Some("a: b".to_owned());
        assert_eq!(reason(change("Blocked", json!({"tenant": "cluster-abc"}))), waits);
        assert_eq!(reason(change("Failed", json!({"vlans": "110-119,120"}))), waits);
        assert_eq!(reason(change("Done", json!({"tenant": "cluster-abc"}))), None);
        assert_eq!(reason(change("Failed", json!({"tenant": "cluster-abcd"}))), None);
        assert_eq!(reason(change("Failed", json!({"vlans": "121"}))), None);
        assert_eq!(reason(change("Failed", Value::Null)), None);
    }

    #[test]
    fn hosts_without_the_network_or_the_labels_or_the_node_are_not_selected() {
        let mut other = trunk_spec();
        other["networks"][0]["name"] = "other".into();
        assert!(!host(other, json!({})).carries(&tenant()));
        let mut gone = host(trunk_spec(), json!({}));
        assert!(gone.carries(&tenant()));
        let mut with_selector = tenant();
        with_selector.spec.node_selector.insert("rack".to_owned(), "1".to_owned());
        assert!(!gone.carries(&with_selector));
        gone.labels = None;
        assert!(!gone.carries(&tenant()));
    }

    #[test]
    fn the_mtu_of_the_uplink_is_used() {
        let status = json!({"capabilities": {"uplinks": [
            {"name": "eth1", "kind": "Physical", "mtu": 9000, "addresses": ["10.0.0.1/24"]},
        ]}});
        assert_eq!(host(trunk_spec(), status.clone()).mtus["trunk"], 9000);
        let vxlan = json!({"networks": [{"name": "x", "scenario": "Vxlan",
            "vxlan": {"port": 4790, "localAddress": "10.0.0.1"}}]});
        assert_eq!(host(vxlan.clone(), status).mtus["x"], 8950);
        // The address of the tunnels is on a link that the status does not contain.
        let status = json!({"networks": [{"name": "x", "ready": 0, "pending": 0, "failed": 0, "mtu": 1450}]});
        let host = host(vxlan, status);
        assert_eq!((host.mtus["x"], host.carried_mtu("x")), (1450, Some(1450)));
    }

    #[test]
    fn a_host_with_a_smaller_mtu_than_the_network_is_not_ready() {
        let status = |mtu: u32| {
            let network =
                json!({"name": "trunk", "ready": 1, "pending": 0, "failed": 0, "mtu": mtu});
            json!({"observedGeneration": 4, "networks": [network]})
        };
        let mut spec = trunk_spec();
        spec["networks"][0]["mtu"] = 9000.into();
        assert_eq!(not_ready_message(spec.clone(), status(9000)), "");
        let message = not_ready_message(spec, status(1500));
        assert!(message.starts_with("it carries packets of 1500 bytes"), "{message}");
    }
}
