//! Resolves the profiles of all hosts: the profile that applies to each host, the outcome of each profile, and the
//! tunnel endpoints of the hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use berth_api::infra_node::NetworkScenario;
use berth_api::{HostProfile, InfraNode};
use k8s_openapi::api::core::v1::Node;

use super::selection::{Selection, select_profile};
use super::tunnels;

/// A Node and the InfraNode of the same name.
#[derive(Debug, Clone, Copy)]
pub struct HostObjects<'a> {
    pub node: &'a Node,
    /// The InfraNode; `None` if the host's agent has not created it yet.
    pub infra_node: Option<&'a InfraNode>,
}

/// Result of resolving the profiles of all hosts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ResolvedProfiles {
    selections: BTreeMap<String, Selection>,
    /// Address of each host's tunnel endpoint, by network and host.
    tunnels: BTreeMap<String, BTreeMap<String, IpAddr>>,
    outcomes: BTreeMap<String, ProfileOutcome>,
    /// Names of the host networks in all profiles.
    networks: BTreeSet<String>,
}

/// Outcome of a profile on all hosts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProfileOutcome {
    /// Number of hosts that have an InfraNode and to which the profile is applied.
    pub hosts: u32,
    /// Other profiles with the same priority, each with the Nodes that both profiles select.
    pub ties: BTreeMap<String, BTreeSet<String>>,
}

impl ResolvedProfiles {
    /// Resolves the given profiles for the given hosts.
    #[must_use]
    pub fn new<'a>(
        profiles: &[Arc<HostProfile>],
        hosts: impl IntoIterator<Item = HostObjects<'a>>,
    ) -> Self {
        let mut resolved = Self::default();
        let names = profiles.iter().flat_map(|profile| &profile.spec.networks);
        resolved.networks = names.map(|network| network.name.clone()).collect();
        for host in hosts {
            let Some(name) = host.node.metadata.name.clone() else { continue };
            let none = BTreeMap::new();
            let labels = host.node.metadata.labels.as_ref().unwrap_or(&none);
            let selection = select_profile(profiles, labels);
            resolved.record_outcome(&name, &selection, host.infra_node.is_some());
            if let Some(infra_node) = host.infra_node {
                resolved.add_tunnel_endpoints(&name, &selection, host.node, infra_node);
            }
            resolved.selections.insert(name, selection);
        }
        resolved
    }

    fn record_outcome(&mut self, host: &str, selection: &Selection, has_agent: bool) {
        match selection {
            Selection::None => {}
            Selection::One(profile) => {
                let outcome = self.outcomes.entry(profile_name(profile)).or_default();
                outcome.hosts = outcome.hosts.saturating_add(has_agent.into());
            }
            Selection::Tie(profiles) => {
                for profile in profiles {
                    let outcome = self.outcomes.entry(profile_name(profile)).or_default();
                    for other in profiles.iter().filter(|other| !Arc::ptr_eq(other, profile)) {
                        outcome
                            .ties
                            .entry(profile_name(other))
                            .or_default()
                            .insert(host.to_owned());
                    }
                }
            }
        }
    }

    fn add_tunnel_endpoints(
        &mut self,
        host: &str,
        selection: &Selection,
        node: &Node,
        infra_node: &InfraNode,
    ) {
        // A host to which no profile applies keeps its current networks.
        let networks = match selection {
            Selection::One(profile) => &profile.spec.networks,
            Selection::None | Selection::Tie(_) => &infra_node.spec.networks,
        };
        for network in networks.iter().filter(|one| one.scenario == NetworkScenario::Vxlan) {
            if let Some(address) = tunnels::local_address(network, node, infra_node) {
                let ends = self.tunnels.entry(network.name.clone()).or_default();
                ends.insert(host.to_owned(), address);
            }
        }
    }

    /// Returns the selection for a host; `Selection::None` if the host has no Node.
    #[must_use]
    pub fn selection(&self, host: &str) -> &Selection {
        self.selections.get(host).unwrap_or(&Selection::None)
    }

    /// Returns the outcome of a profile.
    #[must_use]
    pub fn outcome(&self, profile: &str) -> ProfileOutcome {
        self.outcomes.get(profile).cloned().unwrap_or_default()
    }

    /// Returns the names of the host networks of all profiles.
    #[must_use]
    pub const fn networks(&self) -> &BTreeSet<String> {
        &self.networks
    }

    /// Returns true if any tunnel endpoint differs from `other`.
    #[must_use]
    pub fn tunnels_differ(&self, other: &Self) -> bool {
        self.tunnels != other.tunnels
    }

    /// Returns the tunnel endpoint of a host on a network, and the sorted endpoints of the other hosts on the
    /// network.
    #[must_use]
    pub fn tunnel_endpoints(&self, network: &str, host: &str) -> (Option<IpAddr>, Vec<IpAddr>) {
        let Some(ends) = self.tunnels.get(network) else { return (None, Vec::new()) };
        let own = ends.get(host).copied();
        let others: BTreeSet<IpAddr> =
            ends.values().copied().filter(|one| Some(*one) != own).collect();
        (own, others.into_iter().collect())
    }
}

pub(super) fn profile_name(profile: &HostProfile) -> String {
    profile.metadata.name.clone().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(name: &str, rack: &str, address: &str) -> Node {
        serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {"rack": rack}},
            "status": {"addresses": [{"type": "InternalIP", "address": address}]},
        }))
        .unwrap()
    }

    fn profile(name: &str, priority: i32, rack: &str) -> Arc<HostProfile> {
        Arc::new(serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "HostProfile", "metadata": {"name": name},
            "spec": {"priority": priority, "nodeSelector": {"rack": rack}, "networks": [
                {"name": "overlay", "scenario": "Vxlan", "vxlan": {"localAddress": "0.0.0.0"}}]},
        })).unwrap())
    }

    #[test]
    fn hosts_are_counted_and_ties_contain_the_other_profile() {
        let nodes =
            [node("a", "1", "10.0.0.1"), node("b", "1", "10.0.0.2"), node("c", "2", "10.0.0.3")];
        let agents =
            ["a", "c"].map(|name| InfraNode::new(name, berth_api::InfraNodeSpec::default()));
        let hosts = || {
            nodes.iter().map(|node| HostObjects {
                node,
                infra_node: agents.iter().find(|one| one.metadata.name == node.metadata.name),
            })
        };
        let resolved =
            ResolvedProfiles::new(&[profile("p", 1, "1"), profile("q", 1, "2")], hosts());
        assert_eq!((resolved.outcome("p").hosts, resolved.outcome("q").hosts), (1, 1));
        assert_eq!(
            resolved.tunnel_endpoints("overlay", "a"),
            (Some([10, 0, 0, 1].into()), vec![[10, 0, 0, 3].into()])
        );
        let resolved =
            ResolvedProfiles::new(&[profile("p", 1, "1"), profile("q", 1, "1")], hosts());
        let ties =
            BTreeMap::from([("q".to_owned(), BTreeSet::from(["a".to_owned(), "b".to_owned()]))]);
        assert_eq!(resolved.outcome("p"), ProfileOutcome { hosts: 0, ties });
        assert!(resolved.outcome("q").ties.contains_key("p"));
        assert_eq!(resolved.outcome("absent"), ProfileOutcome::default());
        assert_eq!(
            resolved.tunnel_endpoints("overlay", "a"),
            (None, Vec::new()),
            "no host has the network yet"
        );
    }
}
