//! Counters by topology domain, which are updated when a pod is added or removed.

use std::collections::{BTreeMap, HashMap};

use super::symbols::{NumberMap, Symbol, to_index};

/// Value for a host that is in no domain, because it lacks the label that is the topology key.
pub(super) const NO_DOMAIN: u32 = u32::MAX;

/// The domains of hosts for one topology key. Hosts with the same value of the label with this key are in the same
/// domain.
#[derive(Debug)]
pub(super) struct Topology {
    pub(super) key: Symbol,
    domain_numbers: HashMap<Symbol, u32>,
    domain_values: Vec<Symbol>,
    /// Number of each host's domain, indexed by the host's number.
    host_domains: Vec<u32>,
}

impl Topology {
    pub(super) fn new(key: Symbol) -> Self {
        Self {
            key,
            domain_numbers: HashMap::new(),
            domain_values: Vec::new(),
            host_domains: Vec::new(),
        }
    }

    pub(super) fn set_value(&mut self, host: u32, value: Option<Symbol>) {
        let at = to_index(host);
        if self.host_domains.len() <= at {
            self.host_domains.resize(at + 1, NO_DOMAIN);
        }
        let domain = value.map_or(NO_DOMAIN, |value| {
            *self.domain_numbers.entry(value).or_insert_with(|| {
                self.domain_values.push(value);
                u32::try_from(self.domain_values.len() - 1).unwrap_or(NO_DOMAIN)
            })
        });
        if let Some(domain_slot) = self.host_domains.get_mut(at) {
            *domain_slot = domain;
        }
    }

    /// Returns the domain of a host; [`NO_DOMAIN`] if the host does not have the label.
    pub(super) fn domain_of(&self, host: u32) -> u32 {
        self.host_domains.get(to_index(host)).copied().unwrap_or(NO_DOMAIN)
    }

    pub(super) fn value(&self, domain: u32) -> Option<Symbol> {
        self.domain_values.get(to_index(domain)).copied()
    }
}

/// Identifies a counter by what it counts and by the topology whose domains it distinguishes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct CounterKey {
    pub(super) group: u32,
    pub(super) topology: u32,
    pub(super) kind: CounterKind,
}

/// Kind of objects that a counter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum CounterKind {
    GroupPods,
    /// Pods in the group that are on hosts which the eligibility rule with this number includes. The counter also
    /// provides the minimum over all domains with such hosts.
    Spread(u32),
    /// Pods with a required anti-affinity to the group.
    ExistingAntiAffinity,
    /// Weights of the pods' terms that select the group: the sum over preferred affinity (positive), preferred
    /// anti-affinity (negative), and required affinity (`hardPodAffinityWeight`).
    AffinityWeights,
}

/// A count for each topology domain. Zero counts are not stored: if each host is a domain, the pods of a
/// `MachineDeployment` are in few of very many domains.
#[derive(Debug, Default)]
pub(super) struct Counter {
    counts_by_domain: NumberMap<u32, i64>,
    /// Sum over all domains.
    pub(super) total: i64,
    /// Number of domains by their count; `None` for counters without a minimum.
    histogram: Option<CountHistogram>,
}

/// Number of domains for each count, without domains whose count is zero.
#[derive(Debug)]
struct CountHistogram {
    domains_by_count: BTreeMap<i64, u32>,
    /// Index of the [`EligibleDomains`] over which the minimum is computed.
    eligible_domains: u32,
}

impl Counter {
    /// Creates a counter that also computes the minimum over the domains of the [`EligibleDomains`] with this index.
    /// Callers must add only pods on eligible hosts.
    pub(super) fn with_histogram(eligible_domains: u32) -> Self {
        let histogram = CountHistogram { domains_by_count: BTreeMap::new(), eligible_domains };
        Self { histogram: Some(histogram), ..Self::default() }
    }

    pub(super) fn get(&self, domain: u32) -> i64 {
        self.counts_by_domain.get(&domain).copied().unwrap_or(0)
    }

    /// Adds `delta` to the count of a domain; ignores [`NO_DOMAIN`].
    pub(super) fn add(&mut self, domain: u32, delta: i64) {
        if domain == NO_DOMAIN {
            return;
        }
        let before = self.get(domain);
        let now = before.saturating_add(delta);
        self.total = self.total.saturating_add(delta);
        if now == 0 {
            self.counts_by_domain.remove(&domain);
        } else {
            self.counts_by_domain.insert(domain, now);
        }
        if let Some(histogram) = &mut self.histogram {
            histogram.remove_domain(before);
            histogram.add_domain(now);
        }
    }

    /// Returns the minimum count over all eligible domains; 0 if there are fewer eligible domains than `min_domains`.
    pub(super) fn minimum_count(
        &self,
        eligible_domains: &[EligibleDomains],
        min_domains: u32,
    ) -> i64 {
        let Some(histogram) = &self.histogram else { return 0 };
        let all = eligible_domains
            .get(to_index(histogram.eligible_domains))
            .map_or(0, |eligible_domains| eligible_domains.domain_count);
        let has_empty_domain = self.counts_by_domain.len() < to_index(all);
        if all < min_domains || has_empty_domain {
            return 0;
        }
        histogram.domains_by_count.first_key_value().map_or(0, |(count, _)| *count)
    }
}

impl CountHistogram {
    fn add_domain(&mut self, count: i64) {
        if count != 0 {
            let domains = self.domains_by_count.entry(count).or_default();
            *domains = domains.saturating_add(1);
        }
    }

    fn remove_domain(&mut self, count: i64) {
        if let Some(domains) = self.domains_by_count.get_mut(&count) {
            *domains = domains.saturating_sub(1);
            if *domains == 0 {
                self.domains_by_count.remove(&count);
            }
        }
    }
}

/// The domains of one topology that have eligible hosts. Constraints with the same topology and the same eligibility
/// rule share one value.
#[derive(Debug)]
pub(super) struct EligibleDomains {
    pub(super) topology: u32,
    /// Number of the eligibility rule (`EligibilityRule` of `Hosts::intern_eligibility_rule`).
    pub(super) eligibility_rule: u32,
    /// Number of eligible hosts in each domain.
    hosts_by_domain: Vec<u32>,
    /// Number of domains with at least one eligible host.
    domain_count: u32,
}

impl EligibleDomains {
    pub(super) const fn new(topology: u32, eligibility_rule: u32) -> Self {
        Self { topology, eligibility_rule, hosts_by_domain: Vec::new(), domain_count: 0 }
    }

    /// Adds an eligible host to a domain.
    pub(super) fn add_host(&mut self, domain: u32) {
        if domain == NO_DOMAIN {
            return;
        }
        let at = to_index(domain);
        if self.hosts_by_domain.len() <= at {
            self.hosts_by_domain.resize(at + 1, 0);
        }
        if let Some(hosts) = self.hosts_by_domain.get_mut(at) {
            *hosts = hosts.saturating_add(1);
            self.domain_count = self.domain_count.saturating_add(u32::from(*hosts == 1));
        }
    }

    /// Removes an eligible host from a domain. The host's pods must have been removed from all counters before.
    pub(super) fn remove_host(&mut self, domain: u32) {
        if let Some(hosts) = self.hosts_by_domain.get_mut(to_index(domain))
            && *hosts > 0
        {
            *hosts -= 1;
            self.domain_count = self.domain_count.saturating_sub(u32::from(*hosts == 0));
        }
    }
}
