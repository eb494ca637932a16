//! Hosts and the pods on them, counted for every rule that has been compiled, and kept right one change at a time.

use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::belongs::Belongs;
use super::compile::Rules;
use super::counter::{Counted, Counter, Reach, What};
use super::fit::Amounts;
use super::groups::{Anchor, Group, Groups, Member, Sharing};
use super::hosts::{Host, Hosts};
use super::invalid::{Invalid, Place};
use super::parts::HostParts;
use super::question::Question;
use super::recent::Recents;
use super::symbols::{Labels, NumberMap, Pair, Symbol, Symbols, index, pairs};
use super::taints::Taint;

/// A host of [`Counts`]; the same for the same name, also if it went away in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub(super) u32);

impl HostId {
    /// The host that came as this one, from 0.
    #[must_use]
    pub fn at(place: usize) -> Self {
        Self(u32::try_from(place).unwrap_or(u32::MAX))
    }

    /// As which one it came.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Faults of a scheduler that has to be foretold as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quirks {
    /// A new pod's own terms with a `namespaceSelector` that is true of a namespace without labels (`NotIn`,
    /// `DoesNotExist`) mean pods of all namespaces. In kube-scheduler since 1.34, until its patch releases of autumn
    /// 2026 (kubernetes issue 141526, fixed by pull request 141563).
    pub negative_namespace_selectors: bool,
}

/// A pod on a host, until it is removed; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodId(u64);

/// All that rules are judged by.
///
/// Whatever has been compiled is kept, as the next pod of its kind will want it; so in time this should be made anew
/// from the objects themselves, for instance once a day.
#[derive(Debug)]
pub struct Counts {
    pub(super) symbols: Symbols,
    pub(super) hosts: Hosts,
    pub(super) groups: Groups,
    counters: Vec<(Counted, Counter)>,
    known: NumberMap<Counted, u32>,
    /// What the counters of [`What::Spread`] look for their least in.
    pub(super) reaches: Vec<Reach>,
    namespaces: HashMap<Symbol, Labels>,
    pub(super) no_labels: Labels,
    pub(super) quirks: Quirks,
    pods: NumberMap<u64, Placed>,
    next: u64,
    by_pair: NumberMap<Pair, Sharing>,
    pub(super) recents: Recents,
    /// Raised whenever pods may belong to other groups than before.
    regrouped: u64,
    on_host: Vec<Vec<u64>>,
}

#[derive(Clone, Debug)]
struct Placed {
    rules: Arc<Rules>,
    host: u32,
}

impl Default for Counts {
    fn default() -> Self {
        Self::new()
    }
}

impl Counts {
    /// Without hosts and pods, and by the rules as they are documented.
    #[must_use]
    pub fn new() -> Self {
        Self::with(Quirks::default())
    }

    /// The same by the rules of a scheduler with faults.
    #[must_use]
    pub fn with(quirks: Quirks) -> Self {
        Self {
            quirks,
            symbols: Symbols::new(),
            hosts: Hosts::new(),
            groups: Groups::new(),
            counters: Vec::new(),
            known: NumberMap::default(),
            reaches: Vec::new(),
            namespaces: HashMap::new(),
            no_labels: Labels::default(),
            pods: NumberMap::default(),
            next: 0,
            by_pair: NumberMap::default(),
            recents: Recents::default(),
            regrouped: 0,
            on_host: Vec::new(),
        }
    }

    /// A namespace's labels; one that is not known has none.
    pub fn set_namespace(&mut self, name: &str, labels: &BTreeMap<String, String>) {
        let name = self.symbols.intern(name);
        let labels = Labels::of(&mut self.symbols, labels);
        if self.namespace(name) == &labels {
            return;
        }
        let here = self.by_pair.get(&(super::symbols::EMPTY, name));
        let pods: Vec<Placed> = here
            .into_iter()
            .flat_map(Sharing::iter)
            .filter_map(|pod| self.pods.get(&pod).cloned())
            .collect();
        for pod in &pods {
            self.count(&pod.rules, pod.host, -1);
        }
        self.namespaces.insert(name, labels);
        self.regrouped = self.regrouped.saturating_add(1);
        for pod in &pods {
            self.count(&pod.rules, pod.host, 1);
        }
    }

    pub(super) fn namespace(&self, name: Symbol) -> &Labels {
        self.namespaces.get(&name).unwrap_or(&self.no_labels)
    }

    /// A host comes, or has changed. Its pods stay.
    ///
    /// # Errors
    /// If it has a taint that no API server would have taken.
    pub fn set_host(&mut self, parts: &HostParts<'_>) -> Result<HostId, Invalid> {
        let spec = Place::top("spec");
        let place = spec.field("taints");
        let mut taints = Vec::with_capacity(parts.taints.len());
        for (at, taint) in parts.taints.iter().enumerate() {
            taints.push(Taint::read(&mut self.symbols, &place.item(at), taint)?);
        }
        let name = self.symbols.intern(parts.name);
        let host = Host {
            name,
            labels: Labels::of(&mut self.symbols, parts.labels.into_iter().flatten()),
            taints: taints.into(),
            is_cordoned: parts.is_cordoned,
        };
        let number = self.hosts.number(parts.name);
        let allocatable = Amounts::of(&mut self.symbols, parts.allocatable);
        if let Some(room) = self.hosts.rooms.get_mut(index(number)) {
            room.set(allocatable, parts.pods_limit);
        }
        if self.on_host.len() <= index(number) {
            self.on_host.resize_with(index(number) + 1, Vec::new);
        }
        // A kubelet writes its Node every few minutes, and nearly always nothing of this has changed.
        if self.hosts.get(number) != Some(&host) {
            self.replace(number, Some(host));
        }
        Ok(HostId(number))
    }

    /// A host goes, and its pods with it; says how many they were.
    pub fn remove_host(&mut self, host: HostId) -> usize {
        let pods = self.on_host.get(index(host.0)).cloned().unwrap_or_default();
        for pod in &pods {
            self.remove(PodId(*pod));
        }
        self.replace(host.0, None);
        pods.len()
    }

    fn replace(&mut self, number: u32, host: Option<Host>) {
        let pods: Vec<Arc<Rules>> = self
            .on_host
            .get(index(number))
            .into_iter()
            .flatten()
            .filter_map(|pod| self.pods.get(pod).map(|pod| Arc::clone(&pod.rules)))
            .collect();
        for rules in &pods {
            self.count(rules, number, -1);
        }
        self.host_reaches(number, Reach::host_goes);
        self.hosts.set(&self.symbols, number, host);
        self.host_reaches(number, Reach::host_comes);
        for rules in &pods {
            self.count(rules, number, 1);
        }
    }

    fn host_reaches(&mut self, host: u32, change: fn(&mut Reach, u32)) {
        for reach in &mut self.reaches {
            if self.hosts.is_eligible(reach.eligible, host) {
                change(reach, self.hosts.domain(reach.topology, host));
            }
        }
    }

    /// By number; a new one knows the hosts that are there already.
    fn reach(&mut self, topology: u32, eligible: u32) -> u32 {
        let is_it = |reach: &Reach| reach.topology == topology && reach.eligible == eligible;
        let known = self.reaches.iter().position(is_it);
        let at = known.unwrap_or_else(|| {
            let mut new = Reach::new(topology, eligible);
            if let Some((_, hosts)) = self.hosts.eligible.get(eligible) {
                hosts.iter().for_each(|host| new.host_comes(self.hosts.domain(topology, host)));
            }
            self.reaches.push(new);
            self.reaches.len() - 1
        });
        u32::try_from(at).unwrap_or(u32::MAX)
    }

    /// The host of a name, if it is there.
    #[must_use]
    pub fn host(&self, name: &str) -> Option<HostId> {
        self.hosts.find(name).map(HostId)
    }

    /// Hosts that have this label, in the order in which they first came.
    pub fn hosts_with(&self, key: &str, value: &str) -> impl Iterator<Item = HostId> + '_ {
        let pair = self.symbols.find(key).zip(self.symbols.find(value));
        let hosts = pair.and_then(|pair| self.hosts.with(pair));
        hosts.into_iter().flat_map(|hosts| hosts.iter().map(HostId))
    }

    /// A pod comes to a host. `None` if there is no such host.
    pub fn add(&mut self, pod: Arc<Rules>, host: HostId) -> Option<PodId> {
        self.hosts.get(host.0)?;
        let number = self.next;
        self.next = number.saturating_add(1);
        self.count(&pod, host.0, 1);
        for pair in pairs(pod.template.namespace, &pod.labels) {
            let pods = self.by_pair.entry(pair);
            pods.and_modify(|pods| pods.add(number)).or_insert(Sharing::One(number));
        }
        if let Some(room) = self.hosts.rooms.get_mut(index(host.0)) {
            room.take(&pod.asked.amounts);
        }
        if let Some(pods) = self.on_host.get_mut(index(host.0)) {
            pods.push(number);
        }
        self.pods.insert(number, Placed { rules: pod, host: host.0 });
        Some(PodId(number))
    }

    /// A pod goes; whether it was there.
    pub fn remove(&mut self, pod: PodId) -> bool {
        let Some(Placed { rules, host }) = self.pods.remove(&pod.0) else { return false };
        self.count(&rules, host, -1);
        for pair in pairs(rules.template.namespace, &rules.labels) {
            if let Entry::Occupied(mut pods) = self.by_pair.entry(pair)
                && !pods.get_mut().remove(pod.0)
            {
                pods.remove();
            }
        }
        if let Some(room) = self.hosts.rooms.get_mut(index(host)) {
            room.give_back(&rules.asked.amounts);
        }
        if let Some(pods) = self.on_host.get_mut(index(host)) {
            pods.retain(|other| *other != pod.0);
        }
        true
    }

    /// Where a pod may go.
    #[must_use]
    pub fn ask<'a>(&'a self, rules: &'a Rules) -> Question<'a> {
        Question::new(self, rules)
    }

    pub(super) fn member<'a>(&'a self, rules: &'a Rules) -> Member<'a> {
        let Rules { labels, is_terminating, template, .. } = rules;
        self.member_of(template.namespace, labels, *is_terminating)
    }

    fn member_of<'a>(
        &'a self,
        namespace: Symbol,
        labels: &'a Labels,
        is_terminating: bool,
    ) -> Member<'a> {
        let namespace_labels = self.namespace(namespace);
        Member { namespace, namespace_labels, labels, is_terminating }
    }

    /// The groups that a pod is in.
    pub(super) fn belonging(
        &self,
        namespace: Symbol,
        labels: &Labels,
        is_terminating: bool,
    ) -> Belongs {
        let member = self.member_of(namespace, labels, is_terminating);
        Belongs::of(&self.groups, &self.symbols, member, self.regrouped)
    }

    /// The groups that a pod is in now.
    pub(super) fn belongs<'a>(&self, rules: &'a Rules) -> Cow<'a, Belongs> {
        if rules.belongs.as_of == self.regrouped {
            return Cow::Borrowed(&rules.belongs);
        }
        let Rules { labels, is_terminating, template, .. } = rules;
        Cow::Owned(self.belonging(template.namespace, labels, *is_terminating))
    }

    /// Counts a pod, once more or once less.
    fn count(&mut self, rules: &Rules, host: u32, by: i64) {
        let belongs = self.belongs(rules);
        let Self { hosts, counters, .. } = self;
        let mut add = |number: u32, by: i64| {
            let Some((counted, counter)) = counters.get_mut(index(number)) else { return };
            if let What::Spread(eligible) = counted.what
                && !hosts.is_eligible(eligible, host)
            {
                return;
            }
            counter.add(hosts.domain(counted.topology, host), by);
        };
        for number in belongs.members() {
            add(*number, by);
        }
        for (number, weight) in &rules.template.says {
            add(*number, weight.saturating_mul(by));
        }
    }

    pub(super) fn group(&mut self, group: Group) -> u32 {
        self.groups.intern(group)
    }

    /// The counter of something; a new one counts the pods that are there already.
    pub(super) fn counter(&mut self, counted: Counted) -> u32 {
        if let Some(known) = self.known.get(&counted) {
            return *known;
        }
        let number = u32::try_from(self.counters.len()).unwrap_or(u32::MAX);
        let mut counter = match counted.what {
            What::Spread(eligible) => Counter::of(self.reach(counted.topology, eligible)),
            _ => Counter::default(),
        };
        // A pod that says something has compiled its counter, so those of what pods say begin empty.
        if matches!(counted.what, What::Members | What::Spread(_)) {
            self.recount(&counted, &mut counter);
        }
        if let Some(uses) = self.groups.uses_mut(counted.group) {
            match counted.what {
                What::Members | What::Spread(_) => uses.members.push(number),
                What::Refusers => uses.refusers.push(number),
                What::Weights => uses.weights.push(number),
            }
        }
        self.regrouped = self.regrouped.saturating_add(1);
        self.known.insert(counted.clone(), number);
        self.counters.push((counted, counter));
        number
    }

    fn recount(&self, counted: &Counted, counter: &mut Counter) {
        let Some((group, _)) = self.groups.get(counted.group) else { return };
        let mut look = |pod: &Placed| {
            let here = match counted.what {
                What::Spread(eligible) => self.hosts.is_eligible(eligible, pod.host),
                _ => true,
            };
            if here && group.has(&self.symbols, self.member(&pod.rules)) {
                counter.add(self.hosts.domain(counted.topology, pod.host), 1);
            }
        };
        // The tenant's namespace may have thousands of pods, and the new MachineDeployment none.
        match group.anchor(|pair| self.by_pair.get(pair).map_or(0, Sharing::len)) {
            // A pod has one value of a label, so it is met once.
            Anchor::Pairs(pairs) => {
                let pods = pairs.iter().filter_map(|pair| self.by_pair.get(pair));
                let pods = pods.flat_map(Sharing::iter);
                pods.filter_map(|pod| self.pods.get(&pod)).for_each(look);
            }
            Anchor::Key(_) | Anchor::Rest => self.pods.values().for_each(&mut look),
            Anchor::None => {}
        }
    }

    pub(super) fn counted(&self, number: u32) -> Option<&(Counted, Counter)> {
        self.counters.get(index(number))
    }
}
