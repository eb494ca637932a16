//! What tenants need to know of a host, out of its InfraNode and its Node; and which of them carry a tenant.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::infra_node::{ChangeResult, NetworkSpec, TenantNetworkState, UplinkSelector};
use berth_api::{InfraNode, TenantCluster, TenantHost, TenantHosts};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;

use super::ids::NetworkId;

/// As `maxItems` of `status.hosts.notReady` in the CRD.
const NAMED: usize = 16;

/// A host, as far as tenants are concerned. Made once for all tenants when its InfraNode changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// Of its InfraNode: another one of that name has nothing of what this one had.
    pub uid: Option<String>,
    /// Labels of its Node; `None` if there is no such Node.
    pub labels: Option<BTreeMap<String, String>>,
    /// `spec.networks`.
    pub networks: Vec<NetworkSpec>,
    /// Bytes that each network's links take, where the report tells.
    pub mtus: BTreeMap<String, u32>,
    /// `spec.tenantNetworks`: what each is asked to have, by `cluster-<id>`.
    pub asked: BTreeMap<String, (String, NetworkId)>,
    /// Whether its status is about this spec.
    pub has_answered: bool,
    /// Of what it is asked to have, what its last answer was about: that is not in doubt because another tenant came.
    pub answered: BTreeMap<String, (String, NetworkId)>,
    /// `status.networks`: how many are not ready and not named.
    pub unnamed: BTreeMap<String, u32>,
    /// Tenants that are not ready, by network and `cluster-<id>`, and why.
    pub not_ready: BTreeMap<(String, String), String>,
    /// Removals of links and VLANs that could not be done, and why.
    pub stuck: Vec<(String, String)>,
    /// Since when its agent has not been heard of.
    pub silent_since: Option<Timestamp>,
}

impl Host {
    /// Out of the objects.
    #[must_use]
    pub fn of(infra: &InfraNode, labels: Option<&BTreeMap<String, String>>) -> Self {
        let status = infra.status.clone().unwrap_or_default();
        let mut host = Self {
            name: infra.name_any(),
            uid: infra.metadata.uid.clone(),
            labels: labels.cloned(),
            networks: infra.spec.networks.clone(),
            has_answered: status.observed_generation.is_some()
                && status.observed_generation == infra.metadata.generation,
            ..Self::default()
        };
        for spec in &infra.spec.networks {
            host.mtus.extend(mtu(spec, &status).map(|mtu| (spec.name.clone(), mtu)));
        }
        for tenant in &infra.spec.tenant_networks {
            if let Some(id) = NetworkId::join(tenant.vlan, tenant.vni) {
                host.asked.insert(tenant.name.clone(), (tenant.network.clone(), id));
            }
        }
        for network in &status.networks {
            let all = network.pending.saturating_add(network.failed);
            let named = u32::try_from(network.not_ready.len()).unwrap_or(u32::MAX);
            host.unnamed.insert(network.name.clone(), all.saturating_sub(named));
            for tenant in &network.not_ready {
                let state = match tenant.state {
                    TenantNetworkState::Ready => continue,
                    TenantNetworkState::Pending => "pending",
                    TenantNetworkState::Failed => "failed",
                };
                let message = tenant.message.as_deref().unwrap_or("the agent does not say why");
                let key = (network.name.clone(), tenant.tenant.clone());
                host.not_ready.insert(key, format!("{state}: {message}"));
            }
        }
        for change in status.changes.iter().filter(|change| change.what.starts_with("remove ")) {
            if change.result != ChangeResult::Done {
                let message = change.message.clone().unwrap_or_default();
                host.stuck.push((change.what.clone(), message));
            }
        }
        // Whoever watches the agents' Leases sets it so.
        let unknown = status.conditions.iter().find(|one| one.type_ == "Ready");
        host.silent_since =
            unknown.filter(|one| one.status == "Unknown").map(|one| one.last_transition_time.0);
        if host.has_answered {
            host.answered.clone_from(&host.asked);
        }
        host
    }

    /// With what is still known from before, if it has not answered since.
    #[must_use]
    pub fn after(mut self, before: &Self) -> Self {
        if !self.has_answered && self.uid == before.uid && self.networks == before.networks {
            let stays = |(tenant, has): &(&String, &(String, NetworkId))| {
                self.asked.get(*tenant) == Some(*has)
            };
            let stay = before.answered.iter().filter(stays);
            self.answered = stay.map(|(tenant, has)| (tenant.clone(), has.clone())).collect();
        }
        self
    }

    /// Its part of a host network, if it has it.
    #[must_use]
    pub fn network(&self, name: &str) -> Option<&NetworkSpec> {
        self.networks.iter().find(|network| network.name == name)
    }

    /// Whether it is to carry a tenant's network.
    #[must_use]
    pub fn carries(&self, tenant: &TenantCluster) -> bool {
        let network = tenant.spec.network.as_ref();
        network.is_some_and(|network| self.network(&network.name).is_some())
            && self.labels.as_ref().is_some_and(|labels| tenant.selects(labels))
    }

    /// Why a tenant's network is not ready on it; `None` if it is.
    #[must_use]
    pub fn why_not(&self, namespace: &str, network: &str, id: NetworkId) -> Option<String> {
        if self.silent_since.is_some() {
            return Some("nothing is known: its agent is silent".to_owned());
        }
        match self.asked.get(namespace) {
            Some((on, has)) if on == network && *has == id => {}
            Some((on, has)) => return Some(format!("still asked for {has} on {on}")),
            None => return Some("not asked for yet".to_owned()),
        }
        if !self.answered.contains_key(namespace) {
            return Some("its agent has not answered yet".to_owned());
        }
        let key = (network.to_owned(), namespace.to_owned());
        if let Some(why) = self.not_ready.get(&key) {
            return Some(why.clone());
        }
        match self.unnamed.get(network) {
            Some(0) => None,
            // It may be among those that its report had no room for.
            Some(more) => Some(format!("not known: {more} more are not ready than it can name")),
            None => Some("its agent says nothing of this network".to_owned()),
        }
    }

    /// What a tenant's network waits for that is to go from it; `None` if it is off, as far as its agent knows.
    #[must_use]
    pub fn why_still(&self, namespace: &str, ids: &[NetworkId]) -> Option<String> {
        if self.asked.contains_key(namespace) {
            return Some("still asked for it".to_owned());
        }
        if !self.has_answered {
            return Some("its agent has not answered yet".to_owned());
        }
        // In the words of agent/src/plan/network: `removal` and `tenants`.
        let whose = format!(" of tenant {namespace}");
        let vlans: Vec<String> = ids.iter().map(|id| format!("remove {id} from ")).collect();
        let ours = |what: &str| {
            what.ends_with(&whose) || vlans.iter().any(|vlan| what.starts_with(vlan.as_str()))
        };
        let (what, why) = self.stuck.iter().find(|(what, _)| ours(what))?;
        Some(format!("{what}: {why}"))
    }
}

/// Bytes that a VM's frames may have on a host network: what the spec says, else what the uplink takes, less what a
/// tunnel adds (as `agent/src/plan/network/wanted.rs` reckons).
fn mtu(spec: &NetworkSpec, status: &berth_api::InfraNodeStatus) -> Option<u32> {
    if spec.mtu.is_some() {
        return spec.mtu;
    }
    let uplinks = &status.capabilities.uplinks;
    if let Some(vxlan) = spec.tunnels() {
        let address = vxlan.local_address.to_string();
        let end = uplinks.iter().find(|uplink| {
            uplink.addresses.iter().any(|one| one.split('/').next() == Some(address.as_str()))
        });
        let header = if vxlan.local_address.is_ipv4() { 50 } else { 70 };
        return Some(end?.mtu?.saturating_sub(header));
    }
    let UplinkSelector { name, mac, pci_address, .. } = spec.uplink.as_ref()?;
    let mac = mac.as_ref().map(ToString::to_string);
    let is = |uplink: &&berth_api::infra_node::Uplink| {
        name.as_ref() == Some(&uplink.name)
            || (mac.is_some() && uplink.mac == mac)
            || (pci_address.is_some() && uplink.pci_address == *pci_address)
    };
    uplinks.iter().find(is)?.mtu
}

/// How far a tenant's network is on the hosts that are to carry it.
#[must_use]
pub fn readiness(
    tenant: &TenantCluster,
    id: Option<NetworkId>,
    hosts: &[Arc<Host>],
) -> TenantHosts {
    let Some(network) = &tenant.spec.network else { return TenantHosts::default() };
    let namespace = TenantCluster::namespace_of(&tenant.name_any());
    let mut all = TenantHosts::default();
    for host in hosts.iter().filter(|host| host.carries(tenant)) {
        all.selected = all.selected.saturating_add(1);
        let why = match id {
            Some(id) => host.why_not(&namespace, &network.name, id),
            None => Some("the tenant has no VLAN or VNI yet".to_owned()),
        };
        match why {
            None => all.ready = all.ready.saturating_add(1),
            Some(message) => {
                all.not_ready.push(TenantHost { name: host.name.clone(), message });
            }
        }
    }
    all.not_ready.sort_by(|one, other| one.name.cmp(&other.name));
    all.not_ready.truncate(NAMED);
    all
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn host(spec: Value, status: Value) -> Host {
        let infra: InfraNode = serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "InfraNode",
            "metadata": {"name": "rack1-a", "generation": 4}, "spec": spec, "status": status,
        }))
        .unwrap();
        Host::of(&infra, Some(&BTreeMap::new()))
    }

    fn trunk() -> Value {
        json!({
            "networks": [{"name": "trunk", "scenario": "VlanAwareBridge", "uplink": {"name": "eth1"}}],
            "tenantNetworks": [{"name": "cluster-abc", "network": "trunk", "vlan": 120}],
        })
    }

    fn tenant() -> TenantCluster {
        let network = json!({"network": {"name": "trunk"}});
        TenantCluster::new("abc", serde_json::from_value(network).unwrap())
    }

    fn said(spec: Value, status: Value) -> String {
        let id = NetworkId::Vlan(120.try_into().unwrap());
        let all = readiness(&tenant(), Some(id), &[Arc::new(host(spec, status))]);
        assert_eq!(all.selected, 1);
        assert_eq!(all.ready == 1, all.not_ready.is_empty());
        all.not_ready.into_iter().map(|one| one.message).collect()
    }

    #[test]
    fn a_network_is_ready_where_the_agent_says_so_of_this_spec() {
        let networks = |more: Value| {
            let mut one = json!({"name": "trunk", "ready": 1, "pending": 0, "failed": 0});
            one.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json!({"observedGeneration": 4, "networks": [one]})
        };
        assert_eq!(said(trunk(), networks(json!({}))), "");
        let mut old = networks(json!({}));
        old["observedGeneration"] = 3.into();
        assert_eq!(said(trunk(), old), "its agent has not answered yet");
        let not = json!({"tenant": "cluster-abc", "vlan": 120, "state": "Failed", "message": "no uplink"});
        assert_eq!(
            said(trunk(), networks(json!({"failed": 1, "notReady": [not]}))),
            "failed: no uplink"
        );
        assert_eq!(
            said(trunk(), networks(json!({"failed": 9}))),
            "not known: 9 more are not ready than it can name"
        );
        assert_eq!(
            said(trunk(), json!({"observedGeneration": 4})),
            "its agent says nothing of this network"
        );
        let mut other = trunk();
        other["tenantNetworks"][0]["vlan"] = 121.into();
        assert_eq!(said(other, networks(json!({}))), "still asked for VLAN 121 on trunk");
        let mut none = trunk();
        none.as_object_mut().unwrap().remove("tenantNetworks");
        assert_eq!(said(none, networks(json!({}))), "not asked for yet");
        let mut silent = networks(json!({}));
        silent["conditions"] = json!([{"type": "Ready", "status": "Unknown", "reason": "Silent", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        assert_eq!(said(trunk(), silent), "nothing is known: its agent is silent");
    }

    #[test]
    fn what_an_agent_answered_does_not_hold_for_another_object_of_that_name() {
        let networks = json!([{"name": "trunk", "ready": 1, "pending": 0, "failed": 0}]);
        let with = |uid: &str, observed: i64| {
            let mut host = host(
                trunk(),
                json!({"observedGeneration": observed, "networks": networks.clone()}),
            );
            host.uid = Some(uid.to_owned());
            host
        };
        let id = NetworkId::Vlan(120.try_into().unwrap());
        let answered = with("a", 4);
        let why_not = |host: Host| host.why_not("cluster-abc", "trunk", id);
        assert_eq!(why_not(with("a", 3).after(&answered)), None);
        let why = why_not(with("b", 3).after(&answered));
        assert_eq!(why.as_deref(), Some("its agent has not answered yet"));
    }

    #[test]
    fn hosts_without_the_network_or_the_labels_or_the_node_are_not_selected() {
        let mut other = trunk();
        other["networks"][0]["name"] = "other".into();
        assert!(!host(other, json!({})).carries(&tenant()));
        let mut gone = host(trunk(), json!({}));
        assert!(gone.carries(&tenant()));
        let mut picky = tenant();
        picky.spec.node_selector.insert("rack".to_owned(), "1".to_owned());
        assert!(!gone.carries(&picky));
        gone.labels = None;
        assert!(!gone.carries(&tenant()));
    }

    #[test]
    fn frames_are_as_long_as_the_uplink_takes() {
        let status = json!({"capabilities": {"uplinks": [
            {"name": "eth1", "kind": "Physical", "mtu": 9000, "addresses": ["10.0.0.1/24"]},
        ]}});
        assert_eq!(host(trunk(), status.clone()).mtus["trunk"], 9000);
        let vxlan = json!({"networks": [{"name": "x", "scenario": "Vxlan",
            "vxlan": {"port": 4790, "localAddress": "10.0.0.1"}}]});
        assert_eq!(host(vxlan, status).mtus["x"], 8950);
    }
}
