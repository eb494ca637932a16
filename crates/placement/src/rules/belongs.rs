//! Which groups a pod is in, found once: it is asked when the pod looks for a host, when it comes to one, and when it goes.

use super::groups::{Groups, Member};
use super::symbols::{Symbols, index};

/// The groups that a pod is in, by what is counted of them: found once, and right until groups are added or namespaces
/// change.
#[derive(Clone, Debug, Default)]
pub(super) struct Belongs {
    /// Numbers of counters: of members, then of refusers, then of weights.
    counters: Box<[u32]>,
    refusers: u32,
    weights: u32,
    /// When it was found.
    pub(super) as_of: u64,
}

impl Belongs {
    pub(super) fn of(groups: &Groups, symbols: &Symbols, member: Member<'_>, as_of: u64) -> Self {
        let [mut counters, mut refusers, mut weights]: [Vec<u32>; 3] = Default::default();
        groups.of(symbols, member, |uses| {
            counters.extend(&uses.members);
            refusers.extend(&uses.refusers);
            weights.extend(&uses.weights);
        });
        let end = |counters: &[u32]| u32::try_from(counters.len()).unwrap_or(u32::MAX);
        let first = end(&counters);
        counters.extend(refusers);
        let second = end(&counters);
        counters.extend(weights);
        Self { counters: counters.into(), refusers: first, weights: second, as_of }
    }

    /// Counters of the pods that are in these groups.
    pub(super) fn members(&self) -> &[u32] {
        self.counters.get(..index(self.refusers)).unwrap_or_default()
    }

    /// Counters of pods that refuse to be near these groups.
    pub(super) fn refusers(&self) -> &[u32] {
        self.counters.get(index(self.refusers)..index(self.weights)).unwrap_or_default()
    }

    /// Counters of the weights with which pods like these groups near, or dislike it.
    pub(super) fn weights(&self) -> &[u32] {
        self.counters.get(index(self.weights)..).unwrap_or_default()
    }
}
