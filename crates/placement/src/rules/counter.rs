//! Counts by topology domain, changed by one pod at a time.

use std::collections::{BTreeMap, HashMap};

use super::symbols::{NumberMap, Symbol, index};

/// No domain: the host does not have the label.
pub(super) const NOWHERE: u32 = u32::MAX;

/// The domains that hosts form by the value of one label.
#[derive(Debug)]
pub(super) struct Topology {
    pub(super) key: Symbol,
    numbers: HashMap<Symbol, u32>,
    values: Vec<Symbol>,
    /// By host.
    of_host: Vec<u32>,
}

impl Topology {
    pub(super) fn new(key: Symbol) -> Self {
        Self { key, numbers: HashMap::new(), values: Vec::new(), of_host: Vec::new() }
    }

    pub(super) fn put(&mut self, host: u32, value: Option<Symbol>) {
        let at = index(host);
        if self.of_host.len() <= at {
            self.of_host.resize(at + 1, NOWHERE);
        }
        let domain = value.map_or(NOWHERE, |value| {
            *self.numbers.entry(value).or_insert_with(|| {
                self.values.push(value);
                u32::try_from(self.values.len() - 1).unwrap_or(NOWHERE)
            })
        });
        if let Some(of_host) = self.of_host.get_mut(at) {
            *of_host = domain;
        }
    }

    /// [`NOWHERE`] if the host does not have the label.
    pub(super) fn of(&self, host: u32) -> u32 {
        self.of_host.get(index(host)).copied().unwrap_or(NOWHERE)
    }

    pub(super) fn value(&self, domain: u32) -> Option<Symbol> {
        self.values.get(index(domain)).copied()
    }
}

/// What is counted, and where: equal ones are one counter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Counted {
    pub(super) group: u32,
    pub(super) topology: u32,
    pub(super) what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum What {
    /// Pods of the group.
    Members,
    /// Pods of the group on hosts of this kind, and where there are fewest.
    Spread(u32),
    /// Pods that refuse to be near the group.
    Refusers,
    /// Weights of pods that like or dislike to be near the group.
    Weights,
}

/// A number for each domain. Where it is 0 nothing is kept: over hosts, a `MachineDeployment`'s pods are in few of very
/// many domains.
#[derive(Debug, Default)]
pub(super) struct Counter {
    values: NumberMap<u32, i64>,
    /// Of all domains.
    pub(super) total: i64,
    /// Only where the least is asked for.
    levels: Option<Levels>,
}

/// How many domains have a certain count, 0 apart.
#[derive(Debug)]
struct Levels {
    domains: BTreeMap<i64, u32>,
    /// Where the least is looked for, by number.
    reach: u32,
}

impl Counter {
    /// One whose least is asked for, of all domains of this [`Reach`]: its pods are on hosts of no other domain.
    pub(super) fn of(reach: u32) -> Self {
        let levels = Levels { domains: BTreeMap::new(), reach };
        Self { levels: Some(levels), ..Self::default() }
    }

    pub(super) fn get(&self, domain: u32) -> i64 {
        self.values.get(&domain).copied().unwrap_or(0)
    }

    /// Nothing happens in no domain.
    pub(super) fn add(&mut self, domain: u32, by: i64) {
        if domain == NOWHERE {
            return;
        }
        let before = self.get(domain);
        let now = before.saturating_add(by);
        self.total = self.total.saturating_add(by);
        if now == 0 {
            self.values.remove(&domain);
        } else {
            self.values.insert(domain, now);
        }
        if let Some(levels) = &mut self.levels {
            levels.leave(before);
            levels.enter(now);
        }
    }

    /// The count where it is least; 0 if there are fewer domains than that.
    pub(super) fn least(&self, reaches: &[Reach], min_domains: u32) -> i64 {
        let Some(levels) = &self.levels else { return 0 };
        let all = reaches.get(index(levels.reach)).map_or(0, |reach| reach.domains);
        let is_somewhere_none = self.values.len() < index(all);
        if all < min_domains || is_somewhere_none {
            return 0;
        }
        levels.domains.first_key_value().map_or(0, |(count, _)| *count)
    }
}

impl Levels {
    fn enter(&mut self, count: i64) {
        if count != 0 {
            let domains = self.domains.entry(count).or_default();
            *domains = domains.saturating_add(1);
        }
    }

    fn leave(&mut self, count: i64) {
        if let Some(domains) = self.domains.get_mut(&count) {
            *domains = domains.saturating_sub(1);
            if *domains == 0 {
                self.domains.remove(&count);
            }
        }
    }
}

/// The domains that hosts of one kind are in, the same for all that is to be spread over them.
#[derive(Debug)]
pub(super) struct Reach {
    pub(super) topology: u32,
    /// The kind of hosts.
    pub(super) eligible: u32,
    /// By domain.
    hosts: Vec<u32>,
    /// Those that have any.
    domains: u32,
}

impl Reach {
    pub(super) const fn new(topology: u32, eligible: u32) -> Self {
        Self { topology, eligible, hosts: Vec::new(), domains: 0 }
    }

    /// A host of the kind comes.
    pub(super) fn host_comes(&mut self, domain: u32) {
        if domain == NOWHERE {
            return;
        }
        let at = index(domain);
        if self.hosts.len() <= at {
            self.hosts.resize(at + 1, 0);
        }
        if let Some(hosts) = self.hosts.get_mut(at) {
            *hosts = hosts.saturating_add(1);
            self.domains = self.domains.saturating_add(u32::from(*hosts == 1));
        }
    }

    /// One goes; its pods have been taken out of all counts before.
    pub(super) fn host_goes(&mut self, domain: u32) {
        if let Some(hosts) = self.hosts.get_mut(index(domain))
            && *hosts > 0
        {
            *hosts -= 1;
            self.domains = self.domains.saturating_sub(u32::from(*hosts == 0));
        }
    }
}
