//! Hosts, and the criteria of rules that depend only on a host. Each criterion is evaluated once for all hosts, and
//! evaluated again for each host that changes.

use std::collections::HashMap;

use super::counter::{NO_DOMAIN, Topology};
use super::host_set::HostSet;
use super::node_affinity::{NodeRule, NodeTerm, PreferredTerms};
use super::resource_fit::NodeResources;
use super::symbols::{Interner, Labels, NumberMap, Pair, Symbol, Symbols, index};
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
    /// Label keys that an eligible host must have, sorted: the topology keys of all constraints of the pod with the
    /// same `whenUnsatisfiable`.
    pub(super) required_keys: Box<[Symbol]>,
    /// Number of the node affinity rule that an eligible host must satisfy; `None` unless the constraint has
    /// `nodeAffinityPolicy: Honor`.
    pub(super) node_rule: Option<u32>,
    /// Number of the tolerations that must tolerate the taints of an eligible host; `None` unless the constraint has
    /// `nodeTaintsPolicy: Honor`.
    pub(super) tolerations: Option<u32>,
}

/// All hosts. A host's number is never reused for another host name, because callers may store the number.
#[derive(Debug)]
pub(super) struct Hosts {
    slots: Vec<NodeInfo>,
    pub(super) resources: Vec<NodeResources>,
    /// Host numbers by name; used for schedulers that list all hosts by name in each request.
    numbers_by_name: HashMap<Box<str>, u32, foldhash::fast::RandomState>,
    pub(super) present: HostSet,
    pub(super) cordoned: HostSet,
    hosts_by_label: NumberMap<Pair, HostSet>,
    pub(super) rules: Interner<NodeRule, HostSet>,
    /// Preferred node affinity terms, with the sum of the weights of the matching terms for each host, by host
    /// number.
    pub(super) preferences: Interner<PreferredTerms, Vec<u32>>,
    pub(super) tolerations: Interner<Tolerations, HostSet>,
    pub(super) eligibility_rules: Interner<EligibilityRule, HostSet>,
    pub(super) topologies: Vec<Topology>,
}

impl Hosts {
    pub(super) fn new() -> Self {
        Self {
            slots: Vec::new(),
            resources: Vec::new(),
            numbers_by_name: HashMap::default(),
            present: HostSet::default(),
            cordoned: HostSet::default(),
            hosts_by_label: NumberMap::default(),
            rules: Interner::new(),
            preferences: Interner::new(),
            tolerations: Interner::new(),
            eligibility_rules: Interner::new(),
            topologies: Vec::new(),
        }
    }

    /// Returns the number of a host name. A new name gets the next number.
    pub(super) fn intern_name(&mut self, name: &str) -> u32 {
        if let Some(number) = self.numbers_by_name.get(name) {
            return *number;
        }
        self.slots.push(NodeInfo::default());
        self.resources.push(NodeResources::default());
        let number = u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX);
        self.numbers_by_name.insert(name.into(), number);
        number
    }

    pub(super) fn find(&self, name: &str) -> Option<u32> {
        self.numbers_by_name.get(name).copied().filter(|number| self.present.contains(*number))
    }

    /// Returns the host with this number, if it exists.
    pub(super) fn get(&self, number: u32) -> Option<&NodeInfo> {
        self.slots.get(index(number)).filter(|_| self.present.contains(number))
    }

    pub(super) fn resources(&self, number: u32) -> Option<&NodeResources> {
        self.resources.get(index(number))
    }

    pub(super) fn hosts_with_label(&self, pair: Pair) -> Option<&HostSet> {
        self.hosts_by_label.get(&pair)
    }

    /// Sets or removes the host with this number, and evaluates all criteria for this host again.
    pub(super) fn set(&mut self, symbols: &Symbols, number: u32, node: Option<NodeInfo>) {
        let Some(slot) = self.slots.get_mut(index(number)) else { return };
        for pair in slot.labels.iter() {
            if let Some(hosts) = self.hosts_by_label.get_mut(&pair) {
                hosts.set(number, false);
            }
        }
        let exists = node.is_some();
        *slot = node.unwrap_or_default();
        let host = &*slot;
        self.present.set(number, exists);
        self.cordoned.set(number, host.is_cordoned);
        for pair in host.labels.iter() {
            self.hosts_by_label.entry(pair).or_default().set(number, true);
        }
        for (rule, hosts) in self.rules.iter_mut() {
            hosts.set(number, exists && rule.matches(symbols, host.name, &host.labels));
        }
        for (preference, weights) in self.preferences.iter_mut() {
            set_weight(weights, number, preference_weight(symbols, preference, host));
        }
        for (tolerations, hosts) in self.tolerations.iter_mut() {
            hosts.set(number, exists && tolerations.first_untolerated(&host.taints).is_none());
        }
        let (rules, tolerations) = (&self.rules, &self.tolerations);
        for (eligible, hosts) in self.eligibility_rules.iter_mut() {
            hosts.set(number, exists && is_eligible(eligible, number, host, rules, tolerations));
        }
        for topology in &mut self.topologies {
            topology.set_value(number, host.labels.get(topology.key));
        }
    }

    fn all(&self) -> impl Iterator<Item = (u32, &NodeInfo)> {
        self.present.iter().filter_map(|number| Some((number, self.slots.get(index(number))?)))
    }

    pub(super) fn intern_rule(&mut self, symbols: &Symbols, rule: NodeRule) -> u32 {
        let mut hosts = HostSet::default();
        if !self.rules.contains(&rule) {
            // The index `hosts_by_label` finds the hosts with all required labels; only these hosts must be tested.
            let mut candidates = self.present.clone();
            let none = HostSet::default();
            for pair in rule.required_labels() {
                candidates.intersect_with(self.hosts_by_label.get(&pair).unwrap_or(&none));
            }
            for number in candidates.iter() {
                if let Some(host) = self.slots.get(index(number))
                    && rule.matches(symbols, host.name, &host.labels)
                {
                    hosts.set(number, true);
                }
            }
        }
        self.rules.intern(rule, |_| hosts).0
    }

    pub(super) fn intern_preference(
        &mut self,
        symbols: &Symbols,
        preference: PreferredTerms,
    ) -> u32 {
        let mut weights = Vec::new();
        if !self.preferences.contains(&preference) {
            for (number, host) in self.all() {
                set_weight(&mut weights, number, preference_weight(symbols, &preference, host));
            }
        }
        self.preferences.intern(preference, |_| weights).0
    }

    pub(super) fn intern_tolerations(&mut self, tolerations: Tolerations) -> u32 {
        let mut hosts = HostSet::default();
        if !self.tolerations.contains(&tolerations) {
            for (number, host) in self.all() {
                hosts.set(number, tolerations.first_untolerated(&host.taints).is_none());
            }
        }
        self.tolerations.intern(tolerations, |_| hosts).0
    }

    pub(super) fn intern_eligibility_rule(&mut self, eligible: EligibilityRule) -> u32 {
        let mut hosts = HostSet::default();
        if !self.eligibility_rules.contains(&eligible) {
            for (number, host) in self.all() {
                let is_member =
                    is_eligible(&eligible, number, host, &self.rules, &self.tolerations);
                hosts.set(number, is_member);
            }
        }
        self.eligibility_rules.intern(eligible, |_| hosts).0
    }

    pub(super) fn is_eligible(&self, eligible: u32, host: u32) -> bool {
        self.eligibility_rules.get(eligible).is_some_and(|(_, hosts)| hosts.contains(host))
    }

    pub(super) fn intern_topology(&mut self, key: Symbol) -> u32 {
        let known = self.topologies.iter().position(|topology| topology.key == key);
        let at = known.unwrap_or_else(|| {
            let mut new = Topology::new(key);
            for (number, host) in self.all() {
                new.set_value(number, host.labels.get(key));
            }
            self.topologies.push(new);
            self.topologies.len() - 1
        });
        u32::try_from(at).unwrap_or(u32::MAX)
    }

    pub(super) fn domain(&self, topology: u32, host: u32) -> u32 {
        self.topologies.get(index(topology)).map_or(NO_DOMAIN, |one| one.domain_of(host))
    }
}

fn set_weight(weights: &mut Vec<u32>, number: u32, weight: u32) {
    let at = index(number);
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
    eligible: &EligibilityRule,
    number: u32,
    host: &NodeInfo,
    rules: &Interner<NodeRule, HostSet>,
    tolerations: &Interner<Tolerations, HostSet>,
) -> bool {
    eligible.required_keys.iter().all(|key| host.labels.get(*key).is_some())
        && eligible
            .node_rule
            .is_none_or(|rule| rules.get(rule).is_some_and(|(_, hosts)| hosts.contains(number)))
        && eligible
            .tolerations
            .is_none_or(|one| tolerations.get(one).is_some_and(|(_, hosts)| hosts.contains(number)))
}
