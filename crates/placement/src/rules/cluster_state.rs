//! Hosts and their pods, with the counters of all compiled rules. The counters are updated at each change of a host
//! or pod.

use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::compile_cache::CompileCache;
use super::compiled::Rules;
use super::counter::{Counter, CounterKey, CounterKind, EligibleDomains};
use super::field_path::{FieldPath, InvalidField};
use super::groups::{Groups, IndexKey, PodAttributes, PodGroupSelector, PodSet};
use super::hosts::{Hosts, NodeInfo};
use super::membership::GroupMembership;
use super::object_fields::NodeFields;
use super::resource_fit::Amounts;
use super::symbols::{LabelPair, Labels, NumberMap, Symbol, Symbols, index_pairs, to_index};
use super::taints::Taint;
use super::volumes::Volumes;

/// Identifier of a host in a [`ClusterState`]. A host keeps the identifier of its name, even if it is removed and added
/// again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub(super) u32);

impl HostId {
    /// Returns the identifier of the host whose name was added as number `index`, counted from 0.
    #[must_use]
    pub fn from_index(index: usize) -> Self {
        Self(u32::try_from(index).unwrap_or(u32::MAX))
    }

    /// Returns the number of the host in the order in which host names were added, counted from 0.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Bugs of kube-scheduler that the evaluation of rules reproduces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedulerBugs {
    /// True if a term of a new pod selects pods of all namespaces when its `namespaceSelector` matches a namespace
    /// without labels, as with `NotIn` and `DoesNotExist`. kube-scheduler has this bug from 1.34 until its patch
    /// releases of autumn 2026 (kubernetes issue 141526, fixed by pull request 141563).
    pub negative_namespace_selectors: bool,
}

/// Identifier of a pod that is on a host. It is valid until the pod is removed, and is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodId(u64);

/// The hosts and pods for which rules are evaluated.
///
/// Compiled rules are never dropped, because further pods of the same template need them. Therefore callers should
/// periodically build a new state from the Nodes and pods, for instance once a day.
#[derive(Debug)]
pub struct ClusterState {
    pub(super) symbols: Symbols,
    pub(super) hosts: Hosts,
    pub(super) groups: Groups,
    counters: Vec<(CounterKey, Counter)>,
    counter_numbers: NumberMap<CounterKey, u32>,
    /// For each combination of topology and eligibility rule, the domains over which counters of kind
    /// [`CounterKind::Spread`] compute their minimum.
    pub(super) eligible_domains: Vec<EligibleDomains>,
    namespaces: HashMap<Symbol, Labels>,
    pub(super) no_labels: Labels,
    pub(super) scheduler_bugs: SchedulerBugs,
    pods: NumberMap<u64, CountedPod>,
    next_pod_number: u64,
    pods_by_label: NumberMap<LabelPair, PodSet>,
    pub(super) compile_cache: CompileCache,
    /// Version of the groups, incremented whenever existing pods may have come to belong to other groups.
    groups_version: u64,
    pods_by_host: Vec<Vec<u64>>,
    pub(super) volumes: Volumes,
}

#[derive(Clone, Debug)]
struct CountedPod {
    rules: Arc<Rules>,
    host: u32,
}

impl Default for ClusterState {
    fn default() -> Self {
        Self::new()
    }
}

impl ClusterState {
    /// Creates an empty state that evaluates rules as Kubernetes documents them.
    #[must_use]
    pub fn new() -> Self {
        Self::with_scheduler_bugs(SchedulerBugs::default())
    }

    /// Creates an empty state that evaluates rules like a kube-scheduler with the bugs `scheduler_bugs`.
    #[must_use]
    pub fn with_scheduler_bugs(scheduler_bugs: SchedulerBugs) -> Self {
        Self {
            scheduler_bugs,
            symbols: Symbols::new(),
            hosts: Hosts::new(),
            groups: Groups::new(),
            counters: Vec::new(),
            counter_numbers: NumberMap::default(),
            eligible_domains: Vec::new(),
            namespaces: HashMap::new(),
            no_labels: Labels::default(),
            pods: NumberMap::default(),
            next_pod_number: 0,
            pods_by_label: NumberMap::default(),
            compile_cache: CompileCache::default(),
            groups_version: 0,
            pods_by_host: Vec::new(),
            volumes: Volumes::new(),
        }
    }

    /// Sets the labels of a namespace. A namespace has no labels until they are set.
    pub fn set_namespace(&mut self, name: &str, labels: &BTreeMap<String, String>) {
        let name = self.symbols.intern(name);
        let labels = Labels::intern(&mut self.symbols, labels);
        if self.namespace_labels(name) == &labels {
            return;
        }
        let namespace_pods = self.pods_by_label.get(&(super::symbols::EMPTY_SYMBOL, name));
        let pods: Vec<CountedPod> = namespace_pods
            .into_iter()
            .flat_map(PodSet::iter)
            .filter_map(|pod| self.pods.get(&pod).cloned())
            .collect();
        for pod in &pods {
            self.update_counters(&pod.rules, pod.host, -1);
        }
        self.namespaces.insert(name, labels);
        self.groups_version = self.groups_version.saturating_add(1);
        for pod in &pods {
            self.update_counters(&pod.rules, pod.host, 1);
        }
    }

    pub(super) fn namespace_labels(&self, name: Symbol) -> &Labels {
        self.namespaces.get(&name).unwrap_or(&self.no_labels)
    }

    /// Adds or updates a host. An updated host retains its pods.
    ///
    /// # Errors
    ///
    /// Returns an error for a taint that the API server would have rejected.
    pub fn set_host(&mut self, fields: &NodeFields<'_>) -> Result<HostId, InvalidField> {
        let spec = FieldPath::root("spec");
        let taints_path = spec.field("taints");
        let mut taints = Vec::with_capacity(fields.taints.len());
        for (at, taint) in fields.taints.iter().enumerate() {
            taints.push(Taint::read(&mut self.symbols, &taints_path.item(at), taint)?);
        }
        let name = self.symbols.intern(fields.name);
        let host = NodeInfo {
            name,
            labels: Labels::intern(&mut self.symbols, fields.labels.into_iter().flatten()),
            taints: taints.into(),
            is_cordoned: fields.is_cordoned,
        };
        let number = self.hosts.intern_name(fields.name);
        let allocatable = Amounts::intern(&mut self.symbols, fields.allocatable);
        if let Some(resources) = self.hosts.resources.get_mut(to_index(number)) {
            resources.set(allocatable, fields.pods_limit);
        }
        if self.pods_by_host.len() <= to_index(number) {
            self.pods_by_host.resize_with(to_index(number) + 1, Vec::new);
        }
        // A kubelet updates its Node every few minutes, but the fields that the rules read rarely change.
        if self.hosts.get(number) != Some(&host) {
            self.replace_node_info(number, Some(host));
        }
        Ok(HostId(number))
    }

    /// Removes a host with its pods; returns the number of these pods.
    pub fn remove_host(&mut self, host: HostId) -> usize {
        let pods = self.pods_by_host.get(to_index(host.0)).cloned().unwrap_or_default();
        for pod in &pods {
            self.remove_pod(PodId(*pod));
        }
        self.replace_node_info(host.0, None);
        pods.len()
    }

    fn replace_node_info(&mut self, number: u32, host: Option<NodeInfo>) {
        let pods: Vec<Arc<Rules>> = self
            .pods_by_host
            .get(to_index(number))
            .into_iter()
            .flatten()
            .filter_map(|pod| self.pods.get(pod).map(|pod| Arc::clone(&pod.rules)))
            .collect();
        for rules in &pods {
            self.update_counters(rules, number, -1);
        }
        self.update_eligible_domains(number, EligibleDomains::remove_host);
        self.volumes.count_host(&self.symbols, &self.hosts, number, false);
        self.hosts.replace_node(&self.symbols, number, host);
        self.volumes.count_host(&self.symbols, &self.hosts, number, true);
        self.update_eligible_domains(number, EligibleDomains::add_host);
        for rules in &pods {
            self.update_counters(rules, number, 1);
        }
    }

    fn update_eligible_domains(&mut self, host: u32, update: fn(&mut EligibleDomains, u32)) {
        for eligible_domains in &mut self.eligible_domains {
            if self.hosts.is_eligible(eligible_domains.eligibility_rule, host) {
                update(eligible_domains, self.hosts.domain(eligible_domains.topology, host));
            }
        }
    }

    /// Returns the index in `self.eligible_domains` of the domains for a topology and an eligibility rule. If they are
    /// missing, adds them and counts the existing eligible hosts.
    fn intern_eligible_domains(&mut self, topology: u32, eligibility_rule: u32) -> u32 {
        let is_match = |eligible_domains: &EligibleDomains| {
            eligible_domains.topology == topology
                && eligible_domains.eligibility_rule == eligibility_rule
        };
        let known = self.eligible_domains.iter().position(is_match);
        let at = known.unwrap_or_else(|| {
            let mut new = EligibleDomains::new(topology, eligibility_rule);
            if let Some((_, hosts)) = self.hosts.eligibility_rules.get(eligibility_rule) {
                hosts.iter().for_each(|host| new.add_host(self.hosts.domain(topology, host)));
            }
            self.eligible_domains.push(new);
            self.eligible_domains.len() - 1
        });
        u32::try_from(at).unwrap_or(u32::MAX)
    }

    /// Returns the host with this name, if the host exists.
    #[must_use]
    pub fn host(&self, name: &str) -> Option<HostId> {
        self.hosts.find(name).map(HostId)
    }

    /// Returns the hosts with this label, in the order in which the hosts were first added.
    pub fn hosts_with_label(&self, key: &str, value: &str) -> impl Iterator<Item = HostId> + '_ {
        let pair = self.symbols.find(key).zip(self.symbols.find(value));
        let hosts = pair.and_then(|pair| self.hosts.hosts_with_label(pair));
        hosts.into_iter().flat_map(|hosts| hosts.iter().map(HostId))
    }

    /// Returns the value of a host's label; `None` if the host does not exist or does not have the label.
    #[must_use]
    pub fn host_label(&self, host: HostId, key: &str) -> Option<&str> {
        let value = self.hosts.get(host.0)?.labels.get(self.symbols.find(key)?)?;
        Some(self.symbols.name(value))
    }

    /// Returns true if a host has a `NoSchedule` or `NoExecute` taint.
    pub(crate) fn has_excluding_taint(&self, host: HostId) -> bool {
        let taints = self.hosts.get(host.0).map(|host| &host.taints);
        taints.is_some_and(|taints| taints.iter().any(|taint| taint.effect.excludes_pods()))
    }

    /// Adds a pod to a host. Returns the pod's identifier, or `None` if the host does not exist.
    pub fn add_pod(&mut self, pod: Arc<Rules>, host: HostId) -> Option<PodId> {
        self.hosts.get(host.0)?;
        let number = self.next_pod_number;
        self.next_pod_number = number.saturating_add(1);
        self.update_counters(&pod, host.0, 1);
        for pair in index_pairs(pod.template.namespace, &pod.labels) {
            let pods = self.pods_by_label.entry(pair);
            pods.and_modify(|pods| pods.add(number)).or_insert(PodSet::One(number));
        }
        if let Some(resources) = self.hosts.resources.get_mut(to_index(host.0)) {
            resources.add_pod(&pod.pod_requests.amounts);
        }
        if let Some(pods) = self.pods_by_host.get_mut(to_index(host.0)) {
            pods.push(number);
        }
        self.volumes.add_pod(&self.symbols, &self.hosts, &pod.claims, number, host.0);
        self.pods.insert(number, CountedPod { rules: pod, host: host.0 });
        Some(PodId(number))
    }

    /// Removes a pod; returns false if the pod was unknown.
    pub fn remove_pod(&mut self, pod: PodId) -> bool {
        let Some(CountedPod { rules, host }) = self.pods.remove(&pod.0) else { return false };
        self.update_counters(&rules, host, -1);
        for pair in index_pairs(rules.template.namespace, &rules.labels) {
            if let Entry::Occupied(mut pods) = self.pods_by_label.entry(pair)
                && !pods.get_mut().remove(pod.0)
            {
                pods.remove();
            }
        }
        if let Some(resources) = self.hosts.resources.get_mut(to_index(host)) {
            resources.remove_pod(&rules.pod_requests.amounts);
        }
        if let Some(pods) = self.pods_by_host.get_mut(to_index(host)) {
            pods.retain(|other| *other != pod.0);
        }
        self.volumes.remove_pod(&self.symbols, &self.hosts, &rules.claims, pod.0);
        true
    }

    pub(super) fn pod_attributes<'a>(&'a self, rules: &'a Rules) -> PodAttributes<'a> {
        let Rules { labels, is_terminating, template, .. } = rules;
        self.attributes_of(template.namespace, labels, *is_terminating)
    }

    fn attributes_of<'a>(
        &'a self,
        namespace: Symbol,
        labels: &'a Labels,
        is_terminating: bool,
    ) -> PodAttributes<'a> {
        let namespace_labels = self.namespace_labels(namespace);
        PodAttributes { namespace, namespace_labels, labels, is_terminating }
    }

    /// Computes the counters of all groups to which a pod belongs.
    pub(super) fn compute_membership(
        &self,
        namespace: Symbol,
        labels: &Labels,
        is_terminating: bool,
    ) -> GroupMembership {
        let member = self.attributes_of(namespace, labels, is_terminating);
        GroupMembership::compute(&self.groups, &self.symbols, member, self.groups_version)
    }

    /// Returns the counters of all groups to which a pod belongs: the stored counters if they are up to date, otherwise
    /// newly computed counters.
    pub(super) fn membership<'a>(&self, rules: &'a Rules) -> Cow<'a, GroupMembership> {
        if rules.membership.groups_version == self.groups_version {
            return Cow::Borrowed(&rules.membership);
        }
        let Rules { labels, is_terminating, template, .. } = rules;
        Cow::Owned(self.compute_membership(template.namespace, labels, *is_terminating))
    }

    /// Adds the pod's contribution, multiplied by `factor`, to all counters that the pod affects: 1 adds the pod, and
    /// -1 removes it.
    fn update_counters(&mut self, rules: &Rules, host: u32, factor: i64) {
        let membership = self.membership(rules);
        let Self { hosts, counters, .. } = self;
        let mut add = |number: u32, by: i64| {
            let Some((counted, counter)) = counters.get_mut(to_index(number)) else { return };
            if let CounterKind::Spread(eligible) = counted.kind
                && !hosts.is_eligible(eligible, host)
            {
                return;
            }
            counter.add(hosts.domain(counted.topology, host), by);
        };
        for number in membership.group_pod_counters() {
            add(*number, factor);
        }
        for (number, weight) in &rules.template.counter_contributions {
            add(*number, weight.saturating_mul(factor));
        }
    }

    pub(super) fn intern_group(&mut self, group: PodGroupSelector) -> u32 {
        self.groups.intern(group)
    }

    /// Returns the number of a counter. A new counter is initialized with the existing pods.
    pub(super) fn intern_counter(&mut self, key: CounterKey) -> u32 {
        if let Some(known) = self.counter_numbers.get(&key) {
            return *known;
        }
        let number = u32::try_from(self.counters.len()).unwrap_or(u32::MAX);
        let mut counter = match key.kind {
            CounterKind::Spread(eligible) => {
                Counter::with_histogram(self.intern_eligible_domains(key.topology, eligible))
            }
            _ => Counter::default(),
        };
        // The other kinds of counters count only pods whose compiled rules refer to the counter. No existing pod refers
        // to a new counter, so it starts at zero.
        if matches!(key.kind, CounterKind::GroupPods | CounterKind::Spread(_)) {
            self.recount(&key, &mut counter);
        }
        if let Some(counters) = self.groups.counters_mut(key.group) {
            match key.kind {
                CounterKind::GroupPods | CounterKind::Spread(_) => counters.members.push(number),
                CounterKind::ExistingAntiAffinity => counters.existing_anti_affinity.push(number),
                CounterKind::AffinityWeights => counters.weights.push(number),
            }
        }
        self.groups_version = self.groups_version.saturating_add(1);
        self.counter_numbers.insert(key.clone(), number);
        self.counters.push((key, counter));
        number
    }

    fn recount(&self, key: &CounterKey, counter: &mut Counter) {
        let Some((group, _)) = self.groups.get(key.group) else { return };
        let mut count_pod = |pod: &CountedPod| {
            let is_counted = match key.kind {
                CounterKind::Spread(eligible) => self.hosts.is_eligible(eligible, pod.host),
                _ => true,
            };
            if is_counted && group.contains(&self.symbols, self.pod_attributes(&pod.rules)) {
                counter.add(self.hosts.domain(key.topology, pod.host), 1);
            }
        };
        // The index avoids an iteration over all pods: a tenant's namespace may have thousands of pods, although a new
        // MachineDeployment has none.
        match group.index_key(|pair| self.pods_by_label.get(pair).map_or(0, PodSet::len)) {
            // A pod has at most one value for each label key, so each pod is visited at most once.
            IndexKey::LabelPairs(pairs) => {
                let pods = pairs.iter().filter_map(|pair| self.pods_by_label.get(pair));
                let pods = pods.flat_map(PodSet::iter);
                pods.filter_map(|pod| self.pods.get(&pod)).for_each(count_pod);
            }
            IndexKey::LabelKey(_) | IndexKey::Unindexed => {
                self.pods.values().for_each(&mut count_pod)
            }
            IndexKey::MatchesNothing => {}
        }
    }

    pub(super) fn get_counter(&self, number: u32) -> Option<&(CounterKey, Counter)> {
        self.counters.get(to_index(number))
    }
}
