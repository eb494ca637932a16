//! Compiled rules of a pod. They consist of numbers that identify entries of a `ClusterState`.

use std::sync::Arc;

use super::membership::GroupMembership;
use super::resource_fit::Amounts;
use super::selector::Selector;
use super::symbols::{Labels, Symbol};
use berth_kubelet_admission::pod::Pod;

/// Compiled rules of a pod. They consist of numbers that identify entries of the `ClusterState` that compiled them, and
/// must not be used with another `ClusterState`.
#[derive(Debug)]
pub struct Rules {
    pub(super) labels: Labels,
    pub(super) is_terminating: bool,
    pub(super) pod_requests: PodRequests,
    pub(super) template: Arc<CompiledTemplate>,
    /// For each `DoNotSchedule` constraint of the template: true if the pod itself matches the constraint's selector.
    pub(super) matches_own_constraints: Box<[bool]>,
    pub(super) membership: GroupMembership,
    /// Numbers of the PersistentVolumeClaims of the pod's volumes.
    pub(super) claims: Box<[u32]>,
}

/// The part of the rules that is equal for pods that differ only in labels, containers and UID.
#[derive(Debug)]
pub(super) struct CompiledTemplate {
    pub(super) namespace: Symbol,
    /// Number of the rule for `nodeSelector` and required node affinity; `None` if the pod has neither.
    pub(super) node_rule: Option<u32>,
    pub(super) preference: Option<u32>,
    pub(super) tolerations: u32,
    pub(super) tolerates_unschedulable: bool,
    /// For the required affinity, the number of the group of pods that match all terms, and for each term the number of
    /// the counter that counts this group by the term's topology. `None` if the pod has no required affinity.
    pub(super) affinity: Option<(u32, Box<[u32]>)>,
    /// Numbers of the counters that count the pods that match the terms of the required anti-affinity.
    pub(super) anti_affinity: Box<[u32]>,
    /// `DoNotSchedule` constraints, each with its label selector.
    pub(super) hard_spread: Box<[(CompiledSpread, Selector)]>,
    /// `ScheduleAnyway` constraints.
    pub(super) soft_spread: Box<[CompiledSpread]>,
    /// Numbers of the counters that count the pods that match the preferred affinity and anti-affinity terms, each with
    /// the weight of its term.
    pub(super) preferred_affinity: Box<[(u32, i64)]>,
    /// Numbers of the counters that the pod increases on its host, each with the amount of the increase. These counters
    /// affect the placement of later pods.
    pub(super) counter_contributions: Box<[(u32, i64)]>,
}

/// The part of the rules that does not depend on other pods. Pods with equal values from the same `ClusterState` have the
/// same candidate hosts and the same `HostPreference`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HostRules {
    node_rule: Option<u32>,
    preference: Option<u32>,
    tolerations: u32,
}

/// A compiled spread constraint.
#[derive(Clone, Copy, Debug)]
pub(super) struct CompiledSpread {
    pub(super) counter: u32,
    pub(super) max_skew: i64,
    pub(super) min_domains: u32,
    /// True if the topology key is `kubernetes.io/hostname`.
    pub(super) is_per_host: bool,
}

impl Rules {
    /// Returns the part of the rules that does not depend on other pods.
    #[must_use]
    pub fn host_rules(&self) -> HostRules {
        let CompiledTemplate { node_rule, preference, tolerations, .. } = *self.template;
        HostRules { node_rule, preference, tolerations }
    }

    /// Returns the pod's containers with their requests. The returned pod has no uid, because pods with equal
    /// requests share it.
    #[must_use]
    pub const fn containers(&self) -> &Arc<Pod> {
        &self.pod_requests.pod
    }

    /// Returns true if the pod is being deleted.
    pub(crate) const fn is_terminating(&self) -> bool {
        self.is_terminating
    }

    /// Returns true if the pod was compiled with PersistentVolumeClaims.
    pub(crate) fn has_claims(&self) -> bool {
        !self.claims.is_empty()
    }

    /// Returns a hash of the requests of the pod's containers.
    pub(crate) const fn requests_hash(&self) -> u64 {
        self.pod_requests.requests_hash
    }
}

/// Containers of a pod and the amounts that the scheduler counts for them. Pods with equal requests share the value.
#[derive(Clone, Debug)]
pub(super) struct PodRequests {
    /// Pod without a uid, because many pods share the value.
    pub(super) pod: Arc<Pod>,
    pub(super) amounts: Arc<Amounts>,
    /// Hash of the requests of the containers.
    pub(super) requests_hash: u64,
}
