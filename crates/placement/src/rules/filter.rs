//! Filter of hosts for one pod. All data that do not depend on the host are looked up once, so that the check of a host
//! needs only a few memory accesses.

use super::cluster_state::{ClusterState, HostId};
use super::compiled::{CompiledSpread, Rules};
use super::counter::{Counter, CounterKey, NO_DOMAIN, Topology};
use super::host_set::HostSet;
use super::hosts::NodeInfo;
use super::reason::Reason;
use super::selector::Requirement;
use super::symbols::{Symbol, to_index};
use super::volume_filter::VolumeFilter;

/// The rules of a pod, prepared for evaluation against the current hosts and pods.
#[derive(Debug)]
pub struct PodFilter<'a> {
    pub(super) cluster: &'a ClusterState,
    pub(super) rules: &'a Rules,
    node_rule_hosts: Option<&'a HostSet>,
    tolerated_hosts: Option<&'a HostSet>,
    affinity: Vec<DomainCounter<'a>>,
    /// True if no pod of the group that the required affinity selects exists yet, and the pod itself belongs to this
    /// group.
    may_start_group: bool,
    anti_affinity: Vec<DomainCounter<'a>>,
    existing_anti_affinity: Vec<DomainCounter<'a>>,
    spread: Vec<SpreadCheck<'a>>,
    volumes: VolumeFilter<'a>,
}

/// A counter, with the topology whose domains it distinguishes.
#[derive(Clone, Copy, Debug)]
pub(super) struct DomainCounter<'a> {
    pub(super) topology: &'a Topology,
    pub(super) counter: &'a Counter,
    counter_key: &'a CounterKey,
}

/// A spread constraint, with the current minimum count over the constraint's domains.
#[derive(Clone, Copy, Debug)]
struct SpreadCheck<'a> {
    domain_counter: DomainCounter<'a>,
    constraint: CompiledSpread,
    /// True if the pod itself matches the constraint's selector.
    matches_itself: bool,
    minimum_count: i64,
}

impl<'a> DomainCounter<'a> {
    pub(super) fn look_up(cluster: &'a ClusterState, number: u32) -> Option<Self> {
        let (counted, counter) = cluster.get_counter(number)?;
        let topology = cluster.hosts.topologies.get(to_index(counted.topology))?;
        Some(Self { topology, counter, counter_key: counted })
    }

    /// Returns the count in the host's domain; `None` if the host is in no domain.
    pub(super) fn count_for_host(&self, host: HostId) -> Option<i64> {
        let domain = self.topology.domain_of(host.0);
        (domain != NO_DOMAIN).then(|| self.counter.get(domain))
    }

    fn topology_key(&self, cluster: &ClusterState) -> String {
        cluster.symbols.name(self.topology.key).to_owned()
    }

    fn domain_value(&self, cluster: &ClusterState, host: HostId) -> Option<String> {
        let value = self.topology.value(self.topology.domain_of(host.0))?;
        Some(cluster.symbols.name(value).to_owned())
    }

    fn selector_text(&self, cluster: &ClusterState) -> String {
        let group = cluster.groups.get(self.counter_key.group);
        group.map(|(group, _)| group.to_display_text(&cluster.symbols)).unwrap_or_default()
    }
}

impl SpreadCheck<'_> {
    fn exceeds_max_skew(&self, pods: i64) -> bool {
        let count_with_self = pods.saturating_add(i64::from(self.matches_itself));
        count_with_self.saturating_sub(self.minimum_count) > self.constraint.max_skew
    }
}

impl ClusterState {
    /// Prepares the rules of a pod for the evaluation of hosts.
    #[must_use]
    pub fn pod_filter<'a>(&'a self, rules: &'a Rules) -> PodFilter<'a> {
        PodFilter::new(self, rules)
    }

    /// Returns true if the pod may be placed on the host according to the rules that do not depend on other pods. Resources
    /// are not checked.
    #[must_use]
    pub fn allows_by_host(&self, rules: &Rules, host: HostId) -> bool {
        let hosts = &self.hosts;
        let matching =
            |rule: u32| hosts.node_rules.get(rule).is_some_and(|(_, hosts)| hosts.contains(host.0));
        let tolerated = hosts.tolerations.get(rules.template.tolerations);
        hosts.existing_hosts.contains(host.0)
            && (rules.template.tolerates_unschedulable || !hosts.cordoned_hosts.contains(host.0))
            && tolerated.is_some_and(|(_, hosts)| hosts.contains(host.0))
            && rules.template.node_rule.is_none_or(matching)
    }

    /// Returns true if the Node's remaining allocatable resources are sufficient for the requests of the pod.
    #[must_use]
    pub fn has_sufficient_resources(&self, rules: &Rules, host: HostId) -> bool {
        self.hosts
            .resources(host.0)
            .is_some_and(|resources| resources.fits(&rules.pod_requests.amounts))
    }
}

impl<'a> PodFilter<'a> {
    pub(super) fn new(cluster: &'a ClusterState, rules: &'a Rules) -> Self {
        let lookup = |number: &u32| DomainCounter::look_up(cluster, *number);
        let member = cluster.pod_attributes(rules);
        let (mut affinity, mut starts_group) = (Vec::new(), false);
        if let Some((group, counters)) = &rules.template.affinity {
            affinity = counters.iter().filter_map(lookup).collect();
            // If a pod has an affinity to its own group, the first pod of the group needs no other pod
            // (`satisfyPodAffinity`).
            starts_group = affinity.iter().all(|near| near.counter.total == 0)
                && cluster
                    .groups
                    .get(*group)
                    .is_some_and(|(group, _)| group.contains(&cluster.symbols, member));
        }
        let has_pods = |near: &DomainCounter<'_>| near.counter.total > 0;
        let mut existing_anti_affinity = Vec::new();
        let membership = cluster.membership(rules);
        existing_anti_affinity
            .extend(membership.anti_affinity_counters().iter().filter_map(lookup).filter(has_pods));
        let spread = rules.template.hard_spread.iter().zip(&rules.matches_own_constraints);
        let spread = spread.filter_map(|((rule, _), self_match)| {
            let domain_count = DomainCounter::look_up(cluster, rule.counter)?;
            Some(SpreadCheck {
                domain_counter: domain_count,
                constraint: *rule,
                matches_itself: *self_match,
                minimum_count: domain_count
                    .counter
                    .minimum_count(&cluster.eligible_domains, rule.min_domains),
            })
        });
        Self {
            cluster,
            rules,
            node_rule_hosts: rules
                .template
                .node_rule
                .and_then(|rule| Some(cluster.hosts.node_rules.get(rule)?.1)),
            tolerated_hosts: cluster
                .hosts
                .tolerations
                .get(rules.template.tolerations)
                .map(|(_, hosts)| hosts),
            affinity,
            may_start_group: starts_group,
            anti_affinity: rules
                .template
                .anti_affinity
                .iter()
                .filter_map(lookup)
                .filter(has_pods)
                .collect(),
            existing_anti_affinity,
            spread: spread.collect(),
            volumes: VolumeFilter::new(cluster, &rules.claims),
        }
    }

    /// Returns the hosts that match the pod's node selector, node affinity and tolerations, in the order in which the
    /// hosts were first added. All other hosts are excluded.
    pub fn candidate_hosts(&self) -> impl Iterator<Item = HostId> + use<> {
        let mut hosts = self.node_rule_hosts.unwrap_or(&self.cluster.hosts.existing_hosts).clone();
        if let Some(tolerated) = self.tolerated_hosts {
            hosts.intersect_with(tolerated);
        }
        if !self.rules.template.tolerates_unschedulable {
            hosts.difference_with(&self.cluster.hosts.cordoned_hosts);
        }
        let hosts: Vec<u32> = hosts.iter().collect();
        hosts.into_iter().map(HostId)
    }

    /// Returns true if the pod may be placed on the host according to all rules, and the host's resources are sufficient.
    #[must_use]
    pub fn allows(&self, host: HostId) -> bool {
        self.allows_by_host(host)
            && self.has_sufficient_resources(host)
            && self.allows_by_pods(host)
    }

    /// Returns true if the pod may be placed on the host according to the rules that do not depend on other pods. Resources
    /// are not checked.
    #[must_use]
    pub fn allows_by_host(&self, host: HostId) -> bool {
        self.cluster.allows_by_host(self.rules, host)
    }

    /// Returns true if existing pods or the pod's own volumes affect the set of hosts on which the pod may be placed.
    #[must_use]
    pub fn depends_on_pods(&self) -> bool {
        !(self.affinity.is_empty()
            && self.anti_affinity.is_empty()
            && self.existing_anti_affinity.is_empty()
            && self.spread.is_empty()
            && self.volumes.is_empty())
    }

    /// Returns true if the Node's remaining allocatable resources are sufficient for the requests of the pod.
    #[must_use]
    pub fn has_sufficient_resources(&self, host: HostId) -> bool {
        self.cluster.has_sufficient_resources(self.rules, host)
    }

    /// Returns the result of [`Self::allows`] without the check of resources, for callers that account for resources
    /// themselves.
    #[must_use]
    pub fn allows_except_resources(&self, host: HostId) -> bool {
        self.allows_by_host(host) && self.allows_by_pods(host)
    }

    /// Returns true if the pod may be placed on the host according to the rules that depend on other pods, and according
    /// to the pod's volumes.
    #[must_use]
    pub fn allows_by_pods(&self, host: HostId) -> bool {
        let has_pods_in_domain =
            |near: &DomainCounter<'_>| near.count_for_host(host).is_some_and(|pods| pods > 0);
        self.spread.iter().all(|one| {
            one.domain_counter.count_for_host(host).is_some_and(|n| !one.exceeds_max_skew(n))
        }) && self.affinity.iter().all(|near| {
            near.count_for_host(host).is_some_and(|pods| pods > 0 || self.may_start_group)
        }) && !self.anti_affinity.iter().any(has_pods_in_domain)
            && !self.existing_anti_affinity.iter().any(has_pods_in_domain)
            && self.volumes.allows(self.cluster, host.0)
    }

    /// Returns the reasons why the pod may not be placed on the host; empty if it may.
    ///
    /// As in kube-scheduler, the rules are evaluated in the order of the default plugins, and only the reason of the
    /// first plugin that excludes the host is returned. If resources are insufficient, there is a reason for each of
    /// these resources.
    #[must_use]
    pub fn reasons(&self, host: HostId) -> Vec<Reason> {
        let Some(node) = self.cluster.hosts.get(host.0) else { return vec![Reason::HostNotFound] };
        if let Some(reason) = self.taint_rejection(node).or_else(|| self.node_rule_rejection(node))
        {
            return vec![reason];
        }
        let resources = self.cluster.hosts.resources(host.0);
        let shortages = resources.map(|resources| {
            resources
                .insufficient_resources(&self.cluster.symbols, &self.rules.pod_requests.amounts)
        });
        if let Some(shortages) = shortages
            && !shortages.is_empty()
        {
            return shortages;
        }
        let volumes = self.volumes.rejection(self.cluster, host.0);
        volumes.or_else(|| self.pod_rule_rejection(host)).into_iter().collect()
    }

    fn taint_rejection(&self, host: &NodeInfo) -> Option<Reason> {
        if host.is_cordoned && !self.rules.template.tolerates_unschedulable {
            return Some(Reason::Unschedulable);
        }
        let (tolerations, _) =
            self.cluster.hosts.tolerations.get(self.rules.template.tolerations)?;
        let taint = tolerations.first_untolerated(&host.taints)?;
        let name = |symbol: Symbol| self.cluster.symbols.name(symbol).to_owned();
        Some(Reason::Taint { key: name(taint.key), value: name(taint.value), effect: taint.effect })
    }

    fn node_rule_rejection(&self, host: &NodeInfo) -> Option<Reason> {
        let symbols = &self.cluster.symbols;
        let (rule, _) = self.cluster.hosts.node_rules.get(self.rules.template.node_rule?)?;
        let is_unmet = |one: &&Requirement| !one.matches(symbols, &host.labels);
        if let Some(unmet) = rule.selector.iter().find(is_unmet) {
            return Some(Reason::NodeSelector {
                required: unmet.to_display_text(symbols).to_string(),
                actual: host.labels.get(unmet.key).map(|value| symbols.name(value).to_owned()),
            });
        }
        if rule.matches(symbols, host.name, &host.labels) {
            return None;
        }
        Some(Reason::NodeAffinity { required: rule.terms_text(symbols) })
    }

    fn pod_rule_rejection(&self, host: HostId) -> Option<Reason> {
        let cluster = self.cluster;
        for one in &self.spread {
            let key = one.domain_counter.topology_key(cluster);
            let Some(pods) = one.domain_counter.count_for_host(host) else {
                return Some(Reason::MissingTopologyLabel { key });
            };
            if one.exceeds_max_skew(pods) {
                return Some(Reason::TopologySpread {
                    key,
                    domain: one.domain_counter.domain_value(cluster, host).unwrap_or_default(),
                    pods,
                    minimum_pods: one.minimum_count,
                    max_skew: one.constraint.max_skew,
                });
            }
        }
        let unsatisfied = self.affinity.iter().find(|near| {
            near.count_for_host(host).is_none_or(|pods| pods <= 0 && !self.may_start_group)
        });
        if let Some(near) = unsatisfied {
            return Some(Reason::PodAffinity {
                key: near.topology_key(cluster),
                domain: near.domain_value(cluster, host),
                pods: near.selector_text(cluster),
            });
        }
        let has_pods_in_domain =
            |near: &&DomainCounter<'_>| near.count_for_host(host).is_some_and(|pods| pods > 0);
        if let Some(near) = self.anti_affinity.iter().find(has_pods_in_domain) {
            return Some(Reason::PodAntiAffinity {
                key: near.topology_key(cluster),
                domain: near.domain_value(cluster, host).unwrap_or_default(),
                pods: near.selector_text(cluster),
            });
        }
        let near = self.existing_anti_affinity.iter().find(has_pods_in_domain)?;
        Some(Reason::ExistingAntiAffinity {
            key: near.topology_key(cluster),
            domain: near.domain_value(cluster, host).unwrap_or_default(),
            pods: near.selector_text(cluster),
        })
    }
}
