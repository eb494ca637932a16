//! Where one pod may go: all that does not depend on the host is looked up once, then a host costs a few loads.

use super::bits::Bits;
use super::compile::{Rules, Spread};
use super::counter::{Counted, Counter, NOWHERE, Topology};
use super::counts::{Counts, HostId};
use super::hosts::Host;
use super::reason::Reason;
use super::selector::Requirement;
use super::symbols::{Symbol, index};

/// A pod's question to all hosts, of one moment.
#[derive(Debug)]
pub struct Question<'a> {
    pub(super) counts: &'a Counts,
    pub(super) rules: &'a Rules,
    right: Option<&'a Bits>,
    tolerated: Option<&'a Bits>,
    together: Vec<Near<'a>>,
    /// Whether the pod may begin a group that it must be together with.
    begins: bool,
    apart: Vec<Near<'a>>,
    refused: Vec<Near<'a>>,
    spread: Vec<Skew<'a>>,
}

/// A count by domain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Near<'a> {
    pub(super) topology: &'a Topology,
    pub(super) counter: &'a Counter,
    counted: &'a Counted,
}

/// A spread constraint of this moment.
#[derive(Clone, Copy, Debug)]
struct Skew<'a> {
    near: Near<'a>,
    rule: Spread,
    /// Whether the pod itself is among those that are spread.
    counts_itself: bool,
    least: i64,
}

impl<'a> Near<'a> {
    pub(super) fn of(counts: &'a Counts, number: u32) -> Option<Self> {
        let (counted, counter) = counts.counted(number)?;
        let topology = counts.hosts.topologies.get(index(counted.topology))?;
        Some(Self { topology, counter, counted })
    }

    /// The count where the host is; `None` if it is in no domain.
    pub(super) fn at(&self, host: HostId) -> Option<i64> {
        let domain = self.topology.of(host.0);
        (domain != NOWHERE).then(|| self.counter.get(domain))
    }

    fn key(&self, counts: &Counts) -> String {
        counts.symbols.name(self.topology.key).to_owned()
    }

    fn value(&self, counts: &Counts, host: HostId) -> Option<String> {
        let value = self.topology.value(self.topology.of(host.0))?;
        Some(counts.symbols.name(value).to_owned())
    }

    fn pods(&self, counts: &Counts) -> String {
        let group = counts.groups.get(self.counted.group);
        group.map(|(group, _)| group.shown(&counts.symbols)).unwrap_or_default()
    }
}

impl Skew<'_> {
    fn is_too_much(&self, pods: i64) -> bool {
        let with_it = pods.saturating_add(i64::from(self.counts_itself));
        with_it.saturating_sub(self.least) > self.rule.max_skew
    }
}

impl Counts {
    /// Whether a pod may go there by what other pods do not decide, resources apart.
    #[must_use]
    pub fn allows_by_host(&self, rules: &Rules, host: HostId) -> bool {
        let hosts = &self.hosts;
        let right = |rule: u32| hosts.rules.get(rule).is_some_and(|(_, hosts)| hosts.has(host.0));
        let tolerated = hosts.tolerations.get(rules.template.tolerations);
        hosts.present.has(host.0)
            && (rules.template.tolerates_cordon || !hosts.cordoned.has(host.0))
            && tolerated.is_some_and(|(_, hosts)| hosts.has(host.0))
            && rules.template.node_rule.is_none_or(right)
    }

    /// Whether there is room for what a pod asks for, by the Node's totals.
    #[must_use]
    pub fn has_room(&self, rules: &Rules, host: HostId) -> bool {
        self.hosts.room(host.0).is_some_and(|room| room.has(&rules.asked.amounts))
    }
}

impl<'a> Question<'a> {
    pub(super) fn new(counts: &'a Counts, rules: &'a Rules) -> Self {
        let near = |number: &u32| Near::of(counts, *number);
        let member = counts.member(rules);
        let (mut together, mut begins) = (Vec::new(), false);
        if let Some((group, counters)) = &rules.template.affinity {
            together = counters.iter().filter_map(near).collect();
            // A pod that would be the first of its group need not wait for another (`satisfyPodAffinity`).
            begins = together.iter().all(|near| near.counter.total == 0)
                && counts
                    .groups
                    .get(*group)
                    .is_some_and(|(group, _)| group.has(&counts.symbols, member));
        }
        let is_somewhere = |near: &Near<'_>| near.counter.total > 0;
        let mut refused = Vec::new();
        let belongs = counts.belongs(rules);
        refused.extend(belongs.refusers().iter().filter_map(near).filter(is_somewhere));
        let spread = rules.template.spread.iter().zip(&rules.counts_itself);
        let spread = spread.filter_map(|((rule, _), counts_itself)| {
            let near = Near::of(counts, rule.counter)?;
            Some(Skew {
                near,
                rule: *rule,
                counts_itself: *counts_itself,
                least: near.counter.least(&counts.reaches, rule.min_domains),
            })
        });
        Self {
            counts,
            rules,
            right: rules.template.node_rule.and_then(|rule| Some(counts.hosts.rules.get(rule)?.1)),
            tolerated: counts
                .hosts
                .tolerations
                .get(rules.template.tolerations)
                .map(|(_, hosts)| hosts),
            together,
            begins,
            apart: rules
                .template
                .anti_affinity
                .iter()
                .filter_map(near)
                .filter(is_somewhere)
                .collect(),
            refused,
            spread: spread.collect(),
        }
    }

    /// Hosts that are right by labels, name, taints and cordon, in the order in which they first came. The others
    /// need not be asked.
    pub fn candidates(&self) -> impl Iterator<Item = HostId> + use<> {
        let mut hosts = self.right.unwrap_or(&self.counts.hosts.present).clone();
        if let Some(tolerated) = self.tolerated {
            hosts.keep(tolerated);
        }
        if !self.rules.template.tolerates_cordon {
            hosts.drop_all(&self.counts.hosts.cordoned);
        }
        let hosts: Vec<u32> = hosts.iter().collect();
        hosts.into_iter().map(HostId)
    }

    /// Whether the pod may go there by all rules, resources too.
    #[must_use]
    pub fn allows(&self, host: HostId) -> bool {
        self.allows_by_host(host) && self.has_room(host) && self.allows_by_pods(host)
    }

    /// Whether the pod may go there by what other pods do not decide, resources apart.
    #[must_use]
    pub fn allows_by_host(&self, host: HostId) -> bool {
        self.counts.allows_by_host(self.rules, host)
    }

    /// Whether any pod, there or elsewhere, has to do with where it may go.
    #[must_use]
    pub fn depends_on_pods(&self) -> bool {
        !(self.together.is_empty()
            && self.apart.is_empty()
            && self.refused.is_empty()
            && self.spread.is_empty())
    }

    /// Whether there is room for what it asks for, by the Node's totals.
    #[must_use]
    pub fn has_room(&self, host: HostId) -> bool {
        self.counts.has_room(self.rules, host)
    }

    /// The same without resources, for those who count these better.
    #[must_use]
    pub fn allows_but_for_resources(&self, host: HostId) -> bool {
        self.allows_by_host(host) && self.allows_by_pods(host)
    }

    /// Whether the pod may go there by the pods that are there and elsewhere.
    #[must_use]
    pub fn allows_by_pods(&self, host: HostId) -> bool {
        let is_in = |near: &Near<'_>| near.at(host).is_some_and(|pods| pods > 0);
        self.spread.iter().all(|one| one.near.at(host).is_some_and(|n| !one.is_too_much(n)))
            && self
                .together
                .iter()
                .all(|near| near.at(host).is_some_and(|pods| pods > 0 || self.begins))
            && !self.apart.iter().any(is_in)
            && !self.refused.iter().any(is_in)
    }

    /// Why the pod may not go there; nothing if it may.
    ///
    /// As kube-scheduler does, what a later rule says is not asked where an earlier one says no, in the order of its
    /// default plugins; only of resources all that are short are named.
    #[must_use]
    pub fn reasons(&self, host: HostId) -> Vec<Reason> {
        let Some(there) = self.counts.hosts.get(host.0) else { return vec![Reason::NoHost] };
        if let Some(reason) = self.by_taints(there).or_else(|| self.by_labels(there)) {
            return vec![reason];
        }
        let room = self.counts.hosts.room(host.0);
        let lacking = room.map(|room| room.lacks(&self.counts.symbols, &self.rules.asked.amounts));
        if let Some(lacking) = lacking
            && !lacking.is_empty()
        {
            return lacking;
        }
        self.by_pods(host).into_iter().collect()
    }

    fn by_taints(&self, host: &Host) -> Option<Reason> {
        if host.is_cordoned && !self.rules.template.tolerates_cordon {
            return Some(Reason::Unschedulable);
        }
        let (tolerations, _) =
            self.counts.hosts.tolerations.get(self.rules.template.tolerations)?;
        let taint = tolerations.repelled_by(&host.taints)?;
        let name = |symbol: Symbol| self.counts.symbols.name(symbol).to_owned();
        Some(Reason::Taint { key: name(taint.key), value: name(taint.value), effect: taint.effect })
    }

    fn by_labels(&self, host: &Host) -> Option<Reason> {
        let symbols = &self.counts.symbols;
        let (rule, _) = self.counts.hosts.rules.get(self.rules.template.node_rule?)?;
        let misses = |one: &&Requirement| !one.matches(symbols, &host.labels);
        if let Some(missed) = rule.selector.iter().find(misses) {
            return Some(Reason::NodeSelector {
                wanted: missed.shown(symbols).to_string(),
                found: host.labels.get(missed.key).map(|value| symbols.name(value).to_owned()),
            });
        }
        if rule.matches(symbols, host.name, &host.labels) {
            return None;
        }
        let terms = rule.terms.iter().flatten().map(|term| term.shown(symbols).to_string());
        Some(Reason::NodeAffinity { wanted: terms.collect::<Vec<_>>().join(" or ") })
    }

    fn by_pods(&self, host: HostId) -> Option<Reason> {
        let counts = self.counts;
        for one in &self.spread {
            let key = one.near.key(counts);
            let Some(pods) = one.near.at(host) else { return Some(Reason::NoTopology { key }) };
            if one.is_too_much(pods) {
                return Some(Reason::TopologySpread {
                    key,
                    domain: one.near.value(counts, host).unwrap_or_default(),
                    pods,
                    fewest: one.least,
                    max_skew: one.rule.max_skew,
                });
            }
        }
        let alone = self
            .together
            .iter()
            .find(|near| near.at(host).is_none_or(|pods| pods <= 0 && !self.begins));
        if let Some(near) = alone {
            return Some(Reason::PodAffinity {
                key: near.key(counts),
                domain: near.value(counts, host),
                pods: near.pods(counts),
            });
        }
        let is_in = |near: &&Near<'_>| near.at(host).is_some_and(|pods| pods > 0);
        if let Some(near) = self.apart.iter().find(is_in) {
            return Some(Reason::PodAntiAffinity {
                key: near.key(counts),
                domain: near.value(counts, host).unwrap_or_default(),
                pods: near.pods(counts),
            });
        }
        let near = self.refused.iter().find(is_in)?;
        Some(Reason::ExistingAntiAffinity {
            key: near.key(counts),
            domain: near.value(counts, host).unwrap_or_default(),
            pods: near.pods(counts),
        })
    }
}
