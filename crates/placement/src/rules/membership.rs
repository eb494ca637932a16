//! The groups to which a pod belongs. They are computed once, because the placement, the addition and the removal of
//! the pod need them.

use super::groups::{Groups, PodAttributes};
use super::symbols::{Symbols, to_index};

/// Numbers of the counters of all groups to which a pod belongs. The numbers are valid until groups are added or the
/// labels of namespaces change.
#[derive(Clone, Debug, Default)]
pub(super) struct GroupMembership {
    /// Numbers of all counters, in three sections: [`Self::group_pod_counters`], [`Self::anti_affinity_counters`] and
    /// [`Self::weight_counters`].
    counters: Box<[u32]>,
    existing_anti_affinity_start: u32,
    weights_start: u32,
    /// Value of `ClusterState::groups_version` for which the counters were computed.
    pub(super) groups_version: u64,
}

impl GroupMembership {
    pub(super) fn compute(
        groups: &Groups,
        symbols: &Symbols,
        member: PodAttributes<'_>,
        groups_version: u64,
    ) -> Self {
        let [mut counters, mut existing_anti_affinity, mut weights]: [Vec<u32>; 3] =
            Default::default();
        groups.for_each_matching(symbols, member, |group_counters| {
            counters.extend(&group_counters.members);
            existing_anti_affinity.extend(&group_counters.existing_anti_affinity);
            weights.extend(&group_counters.weights);
        });
        let end = |counters: &[u32]| u32::try_from(counters.len()).unwrap_or(u32::MAX);
        let first = end(&counters);
        counters.extend(existing_anti_affinity);
        let second = end(&counters);
        counters.extend(weights);
        Self {
            counters: counters.into(),
            existing_anti_affinity_start: first,
            weights_start: second,
            groups_version,
        }
    }

    /// Returns the numbers of the counters that count the pods in the groups to which the pod belongs.
    pub(super) fn group_pod_counters(&self) -> &[u32] {
        self.counters.get(..to_index(self.existing_anti_affinity_start)).unwrap_or_default()
    }

    /// Returns the numbers of the counters that count the pods with a required anti-affinity to the pod's groups.
    pub(super) fn anti_affinity_counters(&self) -> &[u32] {
        self.counters
            .get(to_index(self.existing_anti_affinity_start)..to_index(self.weights_start))
            .unwrap_or_default()
    }

    /// Returns the numbers of the counters that sum the weights of the affinity terms that select the pod's groups.
    pub(super) fn weight_counters(&self) -> &[u32] {
        self.counters.get(to_index(self.weights_start)..).unwrap_or_default()
    }
}
