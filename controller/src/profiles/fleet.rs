//! All hosts and profiles at once: what each profile selects, and who speaks to whom over tunnels.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use berth_api::infra_node::NetworkScenario;
use berth_api::{HostProfile, InfraNode};
use k8s_openapi::api::core::v1::Node;

use super::choice::{Choice, choose};
use super::tunnels;

/// A Node, and the InfraNode of its name where its agent has made one.
#[derive(Debug, Clone, Copy)]
pub struct Host<'a> {
    /// The Node.
    pub node: &'a Node,
    /// What its agent says.
    pub infra_node: Option<&'a InfraNode>,
}

/// What profiles make of all hosts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Fleet {
    choices: BTreeMap<String, Choice>,
    /// Addresses by network and host.
    tunnels: BTreeMap<String, BTreeMap<String, IpAddr>>,
    outcomes: BTreeMap<String, Outcome>,
    /// Networks of all profiles.
    networks: BTreeSet<String>,
}

/// What became of one profile.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Hosts that it holds for.
    pub hosts: u32,
    /// Other profiles of the same priority, with the Nodes that both select.
    pub ties: BTreeMap<String, BTreeSet<String>>,
}

impl Fleet {
    /// Looks at all of them.
    #[must_use]
    pub fn of<'a>(
        profiles: &[Arc<HostProfile>],
        hosts: impl IntoIterator<Item = Host<'a>>,
    ) -> Self {
        let mut fleet = Self::default();
        let names = profiles.iter().flat_map(|profile| &profile.spec.networks);
        fleet.networks = names.map(|network| network.name.clone()).collect();
        for host in hosts {
            let Some(name) = host.node.metadata.name.clone() else { continue };
            let none = BTreeMap::new();
            let labels = host.node.metadata.labels.as_ref().unwrap_or(&none);
            let choice = choose(profiles, labels);
            fleet.count(&name, &choice, host.infra_node.is_some());
            if let Some(infra_node) = host.infra_node {
                fleet.connect(&name, &choice, host.node, infra_node);
            }
            fleet.choices.insert(name, choice);
        }
        fleet
    }

    fn count(&mut self, host: &str, choice: &Choice, has_agent: bool) {
        match choice {
            Choice::None => {}
            Choice::One(profile) => {
                let outcome = self.outcomes.entry(name_of(profile)).or_default();
                outcome.hosts = outcome.hosts.saturating_add(has_agent.into());
            }
            Choice::Tie(profiles) => {
                for profile in profiles {
                    let outcome = self.outcomes.entry(name_of(profile)).or_default();
                    for other in profiles.iter().filter(|other| !Arc::ptr_eq(other, profile)) {
                        outcome.ties.entry(name_of(other)).or_default().insert(host.to_owned());
                    }
                }
            }
        }
    }

    fn connect(&mut self, host: &str, choice: &Choice, node: &Node, infra_node: &InfraNode) {
        // Of hosts that stay as they are the networks that they have count.
        let networks = match choice {
            Choice::One(profile) => &profile.spec.networks,
            Choice::None | Choice::Tie(_) => &infra_node.spec.networks,
        };
        for network in networks.iter().filter(|one| one.scenario == NetworkScenario::Vxlan) {
            if let Some(address) = tunnels::address(network, node, infra_node) {
                let ends = self.tunnels.entry(network.name.clone()).or_default();
                ends.insert(host.to_owned(), address);
            }
        }
    }

    /// What profiles say of a host; nothing of one that has no Node.
    #[must_use]
    pub fn choice(&self, host: &str) -> &Choice {
        self.choices.get(host).unwrap_or(&Choice::None)
    }

    /// What became of a profile.
    #[must_use]
    pub fn outcome(&self, profile: &str) -> Outcome {
        self.outcomes.get(profile).cloned().unwrap_or_default()
    }

    /// Names of the host networks of all profiles.
    #[must_use]
    pub const fn networks(&self) -> &BTreeSet<String> {
        &self.networks
    }

    /// Whether anybody speaks to anybody else over tunnels than in another look.
    #[must_use]
    pub fn has_other_tunnels_than(&self, other: &Self) -> bool {
        self.tunnels != other.tunnels
    }

    /// The address of a host's own end on a network, and those of all others, in order.
    #[must_use]
    pub fn ends(&self, network: &str, host: &str) -> (Option<IpAddr>, Vec<IpAddr>) {
        let Some(ends) = self.tunnels.get(network) else { return (None, Vec::new()) };
        let own = ends.get(host).copied();
        let others: BTreeSet<IpAddr> =
            ends.values().copied().filter(|one| Some(*one) != own).collect();
        (own, others.into_iter().collect())
    }
}

pub(super) fn name_of(profile: &HostProfile) -> String {
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
    fn hosts_are_counted_and_ties_name_the_other() {
        let nodes =
            [node("a", "1", "10.0.0.1"), node("b", "1", "10.0.0.2"), node("c", "2", "10.0.0.3")];
        let agents =
            ["a", "c"].map(|name| InfraNode::new(name, berth_api::InfraNodeSpec::default()));
        let hosts = || {
            nodes.iter().map(|node| Host {
                node,
                infra_node: agents.iter().find(|one| one.metadata.name == node.metadata.name),
            })
        };
        let fleet = Fleet::of(&[profile("p", 1, "1"), profile("q", 1, "2")], hosts());
        assert_eq!((fleet.outcome("p").hosts, fleet.outcome("q").hosts), (1, 1));
        assert_eq!(
            fleet.ends("overlay", "a"),
            (Some([10, 0, 0, 1].into()), vec![[10, 0, 0, 3].into()])
        );
        let fleet = Fleet::of(&[profile("p", 1, "1"), profile("q", 1, "1")], hosts());
        let ties =
            BTreeMap::from([("q".to_owned(), BTreeSet::from(["a".to_owned(), "b".to_owned()]))]);
        assert_eq!(fleet.outcome("p"), Outcome { hosts: 0, ties });
        assert!(fleet.outcome("q").ties.contains_key("p"));
        assert_eq!(fleet.outcome("nobody"), Outcome::default());
        assert_eq!(fleet.ends("overlay", "a"), (None, Vec::new()), "no host has it yet");
    }
}
