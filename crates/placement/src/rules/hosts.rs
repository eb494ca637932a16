//! Hosts by what rules ask of them: each kind of question is answered once for all hosts, and again for a host that
//! has changed.

use std::collections::HashMap;

use super::bits::Bits;
use super::counter::{NOWHERE, Topology};
use super::fit::Room;
use super::node_affinity::{NodeRule, NodeTerm, Preference};
use super::symbols::{Labels, NumberMap, Pair, Shared, Symbol, Symbols, index};
use super::taints::{Taint, Tolerations};

/// A host as the rules see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Host {
    pub(super) name: Symbol,
    pub(super) labels: Labels,
    pub(super) taints: Box<[Taint]>,
    pub(super) is_cordoned: bool,
}

/// Which hosts count when pods are spread (podtopologyspread `matchNodeInclusionPolicies`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Eligible {
    /// Keys of labels that they must have, sorted: those of all constraints of the pod.
    pub(super) keys: Box<[Symbol]>,
    /// `nodeAffinityPolicy: Honor`.
    pub(super) rule: Option<u32>,
    /// `nodeTaintsPolicy: Honor`.
    pub(super) tolerations: Option<u32>,
}

/// All hosts. A host keeps its number as long as anybody may remember it, which is for ever.
#[derive(Debug)]
pub(super) struct Hosts {
    slots: Vec<Host>,
    pub(super) rooms: Vec<Room>,
    /// By name, for schedulers that name all hosts in each of their questions.
    numbers: HashMap<Box<str>, u32, foldhash::fast::RandomState>,
    pub(super) present: Bits,
    pub(super) cordoned: Bits,
    by_pair: NumberMap<Pair, Bits>,
    pub(super) rules: Shared<NodeRule, Bits>,
    /// Raw sums of weights.
    pub(super) preferences: Shared<Preference, Vec<u32>>,
    pub(super) tolerations: Shared<Tolerations, Bits>,
    pub(super) eligible: Shared<Eligible, Bits>,
    pub(super) topologies: Vec<Topology>,
}

impl Hosts {
    pub(super) fn new() -> Self {
        Self {
            slots: Vec::new(),
            rooms: Vec::new(),
            numbers: HashMap::default(),
            present: Bits::default(),
            cordoned: Bits::default(),
            by_pair: NumberMap::default(),
            rules: Shared::new(),
            preferences: Shared::new(),
            tolerations: Shared::new(),
            eligible: Shared::new(),
            topologies: Vec::new(),
        }
    }

    /// The number of a name.
    pub(super) fn number(&mut self, name: &str) -> u32 {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        self.slots.push(Host::default());
        self.rooms.push(Room::default());
        let number = u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX);
        self.numbers.insert(name.into(), number);
        number
    }

    pub(super) fn find(&self, name: &str) -> Option<u32> {
        self.numbers.get(name).copied().filter(|number| self.present.has(*number))
    }

    /// One that is there.
    pub(super) fn get(&self, number: u32) -> Option<&Host> {
        self.slots.get(index(number)).filter(|_| self.present.has(number))
    }

    pub(super) fn room(&self, number: u32) -> Option<&Room> {
        self.rooms.get(index(number))
    }

    pub(super) fn with(&self, pair: Pair) -> Option<&Bits> {
        self.by_pair.get(&pair)
    }

    /// Puts a host there, or takes it away, and answers all questions anew for it.
    pub(super) fn set(&mut self, symbols: &Symbols, number: u32, to: Option<Host>) {
        let Some(slot) = self.slots.get_mut(index(number)) else { return };
        for pair in slot.labels.iter() {
            if let Some(hosts) = self.by_pair.get_mut(&pair) {
                hosts.set(number, false);
            }
        }
        let is_there = to.is_some();
        *slot = to.unwrap_or_default();
        let host = &*slot;
        self.present.set(number, is_there);
        self.cordoned.set(number, host.is_cordoned);
        for pair in host.labels.iter() {
            self.by_pair.entry(pair).or_default().set(number, true);
        }
        for (rule, hosts) in self.rules.iter_mut() {
            hosts.set(number, is_there && rule.matches(symbols, host.name, &host.labels));
        }
        for (preference, weights) in self.preferences.iter_mut() {
            put(weights, number, weigh(symbols, preference, host));
        }
        for (tolerations, hosts) in self.tolerations.iter_mut() {
            hosts.set(number, is_there && tolerations.repelled_by(&host.taints).is_none());
        }
        let (rules, tolerations) = (&self.rules, &self.tolerations);
        for (eligible, hosts) in self.eligible.iter_mut() {
            hosts.set(number, is_there && is_eligible(eligible, number, host, rules, tolerations));
        }
        for topology in &mut self.topologies {
            topology.put(number, host.labels.get(topology.key));
        }
    }

    fn all(&self) -> impl Iterator<Item = (u32, &Host)> {
        self.present.iter().filter_map(|number| Some((number, self.slots.get(index(number))?)))
    }

    pub(super) fn rule(&mut self, symbols: &Symbols, rule: NodeRule) -> u32 {
        let mut hosts = Bits::default();
        if !self.rules.knows(&rule) {
            // Hosts with the wanted labels are known; only they need be looked at.
            let mut possible = self.present.clone();
            let none = Bits::default();
            for pair in rule.wanted() {
                possible.keep(self.by_pair.get(&pair).unwrap_or(&none));
            }
            for number in possible.iter() {
                if let Some(host) = self.slots.get(index(number))
                    && rule.matches(symbols, host.name, &host.labels)
                {
                    hosts.set(number, true);
                }
            }
        }
        self.rules.intern(rule, |_| hosts).0
    }

    pub(super) fn preference(&mut self, symbols: &Symbols, preference: Preference) -> u32 {
        let mut weights = Vec::new();
        if !self.preferences.knows(&preference) {
            for (number, host) in self.all() {
                put(&mut weights, number, weigh(symbols, &preference, host));
            }
        }
        self.preferences.intern(preference, |_| weights).0
    }

    pub(super) fn tolerations(&mut self, tolerations: Tolerations) -> u32 {
        let mut hosts = Bits::default();
        if !self.tolerations.knows(&tolerations) {
            for (number, host) in self.all() {
                hosts.set(number, tolerations.repelled_by(&host.taints).is_none());
            }
        }
        self.tolerations.intern(tolerations, |_| hosts).0
    }

    pub(super) fn eligible(&mut self, eligible: Eligible) -> u32 {
        let mut hosts = Bits::default();
        if !self.eligible.knows(&eligible) {
            for (number, host) in self.all() {
                let is = is_eligible(&eligible, number, host, &self.rules, &self.tolerations);
                hosts.set(number, is);
            }
        }
        self.eligible.intern(eligible, |_| hosts).0
    }

    pub(super) fn is_eligible(&self, eligible: u32, host: u32) -> bool {
        self.eligible.get(eligible).is_some_and(|(_, hosts)| hosts.has(host))
    }

    pub(super) fn topology(&mut self, key: Symbol) -> u32 {
        let known = self.topologies.iter().position(|topology| topology.key == key);
        let at = known.unwrap_or_else(|| {
            let mut new = Topology::new(key);
            for (number, host) in self.all() {
                new.put(number, host.labels.get(key));
            }
            self.topologies.push(new);
            self.topologies.len() - 1
        });
        u32::try_from(at).unwrap_or(u32::MAX)
    }

    pub(super) fn domain(&self, topology: u32, host: u32) -> u32 {
        self.topologies.get(index(topology)).map_or(NOWHERE, |one| one.of(host))
    }
}

fn put(weights: &mut Vec<u32>, number: u32, weight: u32) {
    let at = index(number);
    if weights.len() <= at {
        weights.resize(at + 1, 0);
    }
    if let Some(here) = weights.get_mut(at) {
        *here = weight;
    }
}

fn weigh(symbols: &Symbols, preference: &Preference, host: &Host) -> u32 {
    let matches = |(term, _): &&(NodeTerm, u32)| term.matches(symbols, host.name, &host.labels);
    let matching = preference.iter().filter(matches);
    matching.fold(0, |sum, (_, weight)| sum.saturating_add(*weight))
}

fn is_eligible(
    eligible: &Eligible,
    number: u32,
    host: &Host,
    rules: &Shared<NodeRule, Bits>,
    tolerations: &Shared<Tolerations, Bits>,
) -> bool {
    eligible.keys.iter().all(|key| host.labels.get(*key).is_some())
        && eligible
            .rule
            .is_none_or(|rule| rules.get(rule).is_some_and(|(_, hosts)| hosts.has(number)))
        && eligible
            .tolerations
            .is_none_or(|one| tolerations.get(one).is_some_and(|(_, hosts)| hosts.has(number)))
}
