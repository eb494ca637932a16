//! Compiled rules of a pod, as numbers of the `Counts` that compiled the rules.

use std::sync::Arc;

use super::fit::Amounts;
use super::membership::GroupMembership;
use super::selector::Selector;
use super::symbols::{Labels, Symbol};
use berth_kubelet_admission::pod::Pod;

/// Rules of a pod as numbers of the `Counts` that compiled the rules; the numbers are meaningless for another
/// `Counts`.
#[derive(Debug)]
pub struct Rules {
    pub(super) labels: Labels,
    pub(super) is_terminating: bool,
    pub(super) pod_requests: PodRequests,
    pub(super) template: Arc<Template>,
    /// For each `DoNotSchedule` constraint of the template: true if the pod matches the constraint's own selector.
    pub(super) counts_itself: Box<[bool]>,
    pub(super) membership: GroupMembership,
}

/// The part of the rules that is equal for pods that differ only in labels, containers and uid.
#[derive(Debug)]
pub(super) struct Template {
    pub(super) namespace: Symbol,
    /// `nodeSelector` and required node affinity, if any.
    pub(super) node_rule: Option<u32>,
    pub(super) preference: Option<u32>,
    pub(super) tolerations: u32,
    pub(super) tolerates_unschedulable: bool,
    /// Group of pods of the required affinity, and the counter of the group for each term's topology.
    pub(super) affinity: Option<(u32, Box<[u32]>)>,
    /// Counters of the pods of the required anti-affinity.
    pub(super) anti_affinity: Box<[u32]>,
    /// `DoNotSchedule` constraints, each with the selector of its pods.
    pub(super) spread: Box<[(Spread, Selector)]>,
    /// `ScheduleAnyway` constraints.
    pub(super) soft_spread: Box<[Spread]>,
    /// Counters of the preferred affinity and anti-affinity, with weights.
    pub(super) preferred: Box<[(u32, i64)]>,
    /// Counters that the pod increases on its host, with the amounts; the counters are evaluated for later pods.
    pub(super) contributions: Box<[(u32, i64)]>,
}

/// The part of the rules that does not depend on other pods. Pods with equal values from the same `Counts` have the
/// same candidates and host preferences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HostRules {
    node_rule: Option<u32>,
    preference: Option<u32>,
    tolerations: u32,
}

/// A compiled spread constraint.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spread {
    pub(super) counter: u32,
    pub(super) max_skew: i64,
    pub(super) min_domains: u32,
    /// True if each domain is a single host.
    pub(super) is_by_host: bool,
}

impl Rules {
    /// Returns the part of the rules that does not depend on other pods.
    #[must_use]
    pub fn of_hosts(&self) -> HostRules {
        let Template { node_rule, preference, tolerations, .. } = *self.template;
        HostRules { node_rule, preference, tolerations }
    }

    /// Returns the requests of the pod's containers, without a uid, because pods with equal requests share the value.
    #[must_use]
    pub const fn containers(&self) -> &Arc<Pod> {
        &self.pod_requests.pod
    }

    /// Returns a number that is equal for pods whose containers have equal requests.
    pub(crate) const fn hash_of_requests(&self) -> u64 {
        self.pod_requests.number
    }
}

/// Containers of a pod, stored once for many pods, with the amounts that the scheduler counts.
#[derive(Clone, Debug)]
pub(super) struct PodRequests {
    /// Pod without a uid, because many pods share the value.
    pub(super) pod: Arc<Pod>,
    pub(super) amounts: Arc<Amounts>,
    /// Number that is equal for containers with equal requests.
    pub(super) number: u64,
}
