//! Hosts, and the criteria of rules that depend only on a host, such as node affinity. Each criterion is evaluated once
//! for all hosts, and again for each host that changes.

use std::collections::HashMap;

use super::counter::{NO_DOMAIN, Topology};
use super::host_set::HostSet;
use super::node_affinity::{NodeRule, NodeTerm, PreferredTerms};
use super::resource_fit::NodeResources;
use super::symbols::{Interner, LabelPair, Labels, NumberMap, Symbol, Symbols, to_index};
use super::taints::{Taint, Tolerations};

/// The properties of a host that the rules read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeInfo {
    pub(super) name: Symbol,
    pub(super) labels: Labels,
    pub(super) taints: Box<[Taint]>,
    pub(super) is_cordoned: bool,
}

/// Eligibility rule: determines the hosts that count for a spread constraint (podtopologyspread
/// `matchNodeInclusionPolicies`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct EligibilityRule {
    /// Label keys that an eligible host must have, sorted. They are the topology keys of all constraints of the pod
    /// with the same `whenUnsatisfiable`.
    pub(super) required_keys: Box<[Symbol]>,
    /// Number of the node affinity rule that an eligible host must satisfy; `None` unless the constraint has
    /// `nodeAffinityPolicy: Honor`.
    pub(super) node_rule: Option<u32>,
    /// Number of the list of tolerations that must cover the taints of an eligible host; `None` unless the constraint
    /// has `nodeTaintsPolicy: Honor`.
    pub(super) tolerations: Option<u32>,
}

/// All hosts. A host's number is never reused for another host name, because callers may store the number.
#[derive(Debug)]
pub(super) struct Hosts {
    nodes: Vec<NodeInfo>,
    pub(super) resources: Vec<NodeResources>,
    /// Host numbers by name, for schedulers that list all hosts by name in each request.
    numbers_by_name: HashMap<Box<str>, u32, foldhash::fast::RandomState>,
    pub(super) existing_hosts: HostSet,
    pub(super) cordoned_hosts: HostSet,
    hosts_by_label: NumberMap<LabelPair, HostSet>,
    pub(super) node_rules: Interner<NodeRule, HostSet>,
    /// Preferred node affinity terms, with the sum of the weights of the terms that match a host, indexed by the host's
    /// number.
    pub(super) preferences: Interner<PreferredTerms, Vec<u32>>,
    pub(super) tolerations: Interner<Tolerations, HostSet>,
    pub(super) eligibility_rules: Interner<EligibilityRule, HostSet>,
    pub(super) topologies: Vec<Topology>,
}

impl Hosts {
    pub(super) fn new() -> Self {
        Self {
            nodes: Vec::new(),
            resources: Vec::new(),
            numbers_by_name: HashMap::default(),
            existing_hosts: HostSet::default(),
            cordoned_hosts: HostSet::default(),
            hosts_by_label: NumberMap::default(),
            node_rules: Interner::new(),
            preferences: Interner::new(),
            tolerations: Interner::new(),
            eligibility_rules: Interner::new(),
            topologies: Vec::new(),
        }
    }

    /// Returns the number for a host name. A new name gets the next free number.
    pub(super) fn intern_name(&mut self, name: &str) -> u32 {
        if let Some(number) = self.numbers_by_name.get(name) {
            return *number;
        }
        self.nodes.push(NodeInfo::default());
        self.resources.push(NodeResources::default());
        let number = u32::try_from(self.nodes.len() - 1).unwrap_or(u32::MAX);
        self.numbers_by_name.insert(name.into(), number);
        number
    }

    pub(super) fn find(&self, name: &str) -> Option<u32> {
        self.numbers_by_name
            .get(name)
            .copied()
            .filter(|number| self.existing_hosts.contains(*number))
    }

    /// Returns the host with this number, if it exists.
    pub(super) fn get(&self, number: u32) -> Option<&NodeInfo> {
        self.nodes.get(to_index(number)).filter(|_| self.existing_hosts.contains(number))
    }

    pub(super) fn resources(&self, number: u32) -> Option<&NodeResources> {
        self.resources.get(to_index(number))
    }

    pub(super) fn hosts_with_label(&self, pair: LabelPair) -> Option<&HostSet> {
        self.hosts_by_label.get(&pair)
    }

    /// Sets the host with this number, or removes it if `node` is `None`, and evaluates all criteria for this number
    /// again.
    pub(super) fn replace_node(&mut self, symbols: &Symbols, number: u32, node: Option<NodeInfo>) {
        let Some(slot) = self.nodes.get_mut(to_index(number)) else { return };
        for pair in slot.labels.iter() {
            if let Some(hosts) = self.hosts_by_label.get_mut(&pair) {
                hosts.set_member(number, false);
            }
        }
        let exists = node.is_some();
        *slot = node.unwrap_or_default();
        let host = &*slot;
        self.existing_hosts.set_member(number, exists);
        self.cordoned_hosts.set_member(number, host.is_cordoned);
        for pair in host.labels.iter() {
            self.hosts_by_label.entry(pair).or_default().set_member(number, true);
        }
        for (rule, hosts) in self.node_rules.iter_mut() {
            hosts.set_member(number, exists && rule.matches(symbols, host.name, &host.labels));
        }
        for (preference, weights) in self.preferences.iter_mut() {
            set_weight(weights, number, preference_weight(symbols, preference, host));
        }
        for (tolerations, hosts) in self.tolerations.iter_mut() {
            hosts.set_member(
                number,
                exists && tolerations.first_untolerated(&host.taints).is_none(),
            );
        }
        let (rules, tolerations) = (&self.node_rules, &self.tolerations);
        for (eligibility_rule, hosts) in self.eligibility_rules.iter_mut() {
            hosts.set_member(
                number,
                exists && is_eligible(eligibility_rule, number, host, rules, tolerations),
            );
        }
        for topology in &mut self.topologies {
            topology.set_value(number, host.labels.get(topology.key));
        }
    }

    fn existing_nodes(&self) -> impl Iterator<Item = (u32, &NodeInfo)> {
        self.existing_hosts
            .iter()
            .filter_map(|number| Some((number, self.nodes.get(to_index(number))?)))
    }

    pub(super) fn intern_node_rule(&mut self, symbols: &Symbols, rule: NodeRule) -> u32 {
        let mut hosts = HostSet::default();
        if !self.node_rules.contains(&rule) {
            // `hosts_by_label` contains the hosts with each required label, so only hosts in all these sets must be
            // tested.
            let mut candidates = self.existing_hosts.clone();
            let none = HostSet::default();
            for pair in rule.required_labels() {
                candidates.intersect_with(self.hosts_by_label.get(&pair).unwrap_or(&none));
            }
            for number in candidates.iter() {
                if let Some(host) = self.nodes.get(to_index(number))
                    && rule.matches(symbols, host.name, &host.labels)
                {
                    hosts.set_member(number, true);
                }
            }
        }
        self.node_rules.intern(rule, |_| hosts).0
    }

    pub(super) fn intern_preference(
        &mut self,
        symbols: &Symbols,
        preference: PreferredTerms,
    ) -> u32 {
        let mut weights = Vec::new();
        if !self.preferences.contains(&preference) {
            for (number, host) in self.existing_nodes() {
                set_weight(&mut weights, number, preference_weight(symbols, &preference, host));
            }
        }
        self.preferences.intern(preference, |_| weights).0
    }

    pub(super) fn intern_tolerations(&mut self, tolerations: Tolerations) -> u32 {
        let mut hosts = HostSet::default();
        if !self.tolerations.contains(&tolerations) {
            for (number, host) in self.existing_nodes() {
                hosts.set_member(number, tolerations.first_untolerated(&host.taints).is_none());
            }
        }
        self.tolerations.intern(tolerations, |_| hosts).0
    }

    pub(super) fn intern_eligibility_rule(&mut self, eligibility_rule: EligibilityRule) -> u32 {
        let mut hosts = HostSet::default();
        if !self.eligibility_rules.contains(&eligibility_rule) {
            for (number, host) in self.existing_nodes() {
                let is_member = is_eligible(
                    &eligibility_rule,
                    number,
                    host,
                    &self.node_rules,
                    &self.tolerations,
                );
                hosts.set_member(number, is_member);
            }
        }
        self.eligibility_rules.intern(eligibility_rule, |_| hosts).0
    }

    pub(super) fn is_eligible(&self, eligibility_rule: u32, host: u32) -> bool {
        self.eligibility_rules.get(eligibility_rule).is_some_and(|(_, hosts)| hosts.contains(host))
    }

    pub(super) fn intern_topology(&mut self, key: Symbol) -> u32 {
        let known = self.topologies.iter().position(|topology| topology.key == key);
        let at = known.unwrap_or_else(|| {
            let mut new = Topology::new(key);
            for (number, host) in self.existing_nodes() {
                new.set_value(number, host.labels.get(key));
            }
            self.topologies.push(new);
            self.topologies.len() - 1
        });
        u32::try_from(at).unwrap_or(u32::MAX)
    }

    pub(super) fn domain(&self, topology: u32, host: u32) -> u32 {
        self.topologies.get(to_index(topology)).map_or(NO_DOMAIN, |one| one.domain_of(host))
    }
}

fn set_weight(weights: &mut Vec<u32>, number: u32, weight: u32) {
    let at = to_index(number);
    if weights.len() <= at {
        weights.resize(at + 1, 0);
    }
    if let Some(slot) = weights.get_mut(at) {
        *slot = weight;
    }
}

fn preference_weight(symbols: &Symbols, preference: &PreferredTerms, host: &NodeInfo) -> u32 {
    let matches = |(term, _): &&(NodeTerm, u32)| term.matches(symbols, host.name, &host.labels);
    let matching = preference.iter().filter(matches);
    matching.fold(0, |sum, (_, weight)| sum.saturating_add(*weight))
}

fn is_eligible(
    eligibility_rule: &EligibilityRule,
    number: u32,
    host: &NodeInfo,
    node_rules: &Interner<NodeRule, HostSet>,
    tolerations: &Interner<Tolerations, HostSet>,
) -> bool {
    eligibility_rule.required_keys.iter().all(|key| host.labels.get(*key).is_some())
        && eligibility_rule.node_rule.is_none_or(|rule| {
            node_rules.get(rule).is_some_and(|(_, hosts)| hosts.contains(number))
        })
        && eligibility_rule
            .tolerations
            .is_none_or(|one| tolerations.get(one).is_some_and(|(_, hosts)| hosts.contains(number)))
}
