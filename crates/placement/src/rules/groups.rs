//! Groups of pods to which rules refer, with an index that finds the groups of a pod without testing every group.

use std::collections::HashSet;
use std::hash::BuildHasherDefault;

use super::selector::{LabelTest, Selector};
use super::symbols::{
    EMPTY_SYMBOL, Interner, LabelPair, Labels, NumberHasher, NumberMap, Symbol, Symbols,
    index_pairs,
};

/// Selects pods by their namespaces and labels (kube-scheduler `framework.AffinityTerm`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct AffinityTerm {
    /// Names of the namespaces, sorted.
    pub(super) namespaces: Box<[Symbol]>,
    /// Label selector for namespaces in addition to `namespaces`.
    pub(super) namespace_selector: Selector,
    pub(super) selector: Selector,
}

/// A group of pods: the pods that match all terms.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct PodGroupSelector {
    /// Terms of the group, sorted; there is at least one term.
    pub(super) terms: Box<[AffinityTerm]>,
    /// True if pods that are being deleted do not belong to the group. Spread constraints exclude such pods; affinity
    /// terms do not.
    pub(super) excludes_terminating: bool,
}

/// The properties of a pod that determine to which groups it belongs.
#[derive(Clone, Copy, Debug)]
pub(super) struct PodAttributes<'a> {
    pub(super) namespace: Symbol,
    pub(super) namespace_labels: &'a Labels,
    pub(super) labels: &'a Labels,
    pub(super) is_terminating: bool,
}

impl PodGroupSelector {
    pub(super) fn new(mut terms: Vec<AffinityTerm>, excludes_terminating: bool) -> Self {
        terms.sort_unstable();
        terms.dedup();
        Self { terms: terms.into(), excludes_terminating }
    }

    pub(super) fn contains(&self, symbols: &Symbols, member: PodAttributes<'_>) -> bool {
        let matches_namespace = |term: &AffinityTerm| {
            term.namespaces.contains(&member.namespace)
                || term.namespace_selector.matches(symbols, member.namespace_labels)
        };
        !(self.excludes_terminating && member.is_terminating)
            && self.terms.iter().all(|term| {
                term.selector.matches(symbols, member.labels) && matches_namespace(term)
            })
    }

    /// Returns the key by which to index the group. If possible, it consists of few label pairs that occur in few other
    /// index keys. `usage_count` returns the number of index entries with a pair.
    pub(super) fn index_key(&self, usage_count: impl Fn(&LabelPair) -> usize) -> IndexKey {
        let mut best: Option<(usize, Vec<LabelPair>)> = None;
        let mut key = None;
        for term in &self.terms {
            if term.selector == Selector::Nothing {
                return IndexKey::MatchesNothing;
            }
            let mut consider_pairs = |pairs: Vec<LabelPair>| {
                let cost =
                    pairs.iter().map(&usage_count).sum::<usize>().saturating_add(pairs.len());
                if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                    best = Some((cost, pairs));
                }
            };
            for one in term.selector.requirements() {
                match &one.test {
                    LabelTest::In(values) => {
                        consider_pairs(values.iter().map(|value| (one.key, *value)).collect());
                    }
                    LabelTest::Exists => key = Some(one.key),
                    _ => {}
                }
            }
            if term.namespace_selector == Selector::Nothing {
                consider_pairs(term.namespaces.iter().map(|name| (EMPTY_SYMBOL, *name)).collect());
            }
        }
        match (best, key) {
            (Some((_, pairs)), _) => IndexKey::LabelPairs(pairs),
            (None, Some(key)) => IndexKey::LabelKey(key),
            (None, None) => IndexKey::Unindexed,
        }
    }

    /// Formats the label selectors of the group for messages.
    pub(super) fn to_display_text(&self, symbols: &Symbols) -> String {
        let terms: Vec<String> = self
            .terms
            .iter()
            .map(|term| term.selector.to_display_text(symbols).to_string())
            .collect();
        terms.join(" and ")
    }
}

/// Numbers of the counters that refer to a group.
#[derive(Clone, Debug, Default)]
pub(super) struct GroupCounters {
    /// Numbers of the counters that count the pods of the group.
    pub(super) members: Vec<u32>,
    /// Numbers of the counters that count the pods with a required anti-affinity to the group.
    pub(super) existing_anti_affinity: Vec<u32>,
    /// Numbers of the counters of kind [`CounterKind::AffinityWeights`](super::counter::CounterKind::AffinityWeights): weights of the
    /// affinity terms that select the group.
    pub(super) weights: Vec<u32>,
}

/// All pod groups that compiled rules refer to, indexed by the labels of their pods.
#[derive(Debug)]
pub(super) struct Groups {
    interner: Interner<PodGroupSelector, GroupCounters>,
    /// Numbers of the groups that are indexed by label pairs, for each pair. Every pod of such a group has at least one
    /// of the group's pairs.
    by_pair: NumberMap<LabelPair, Vec<u32>>,
    /// Numbers of the groups that are indexed by a label key, for each key. Every pod of such a group has a label with
    /// this key.
    by_key: NumberMap<Symbol, Vec<u32>>,
    /// Numbers of the groups without an index key, because they have only negative requirements.
    unindexed_groups: Vec<u32>,
}

/// A property that all pods of a group have and by which the group can be indexed.
pub(super) enum IndexKey {
    /// Every pod of the group has at least one of these pairs.
    LabelPairs(Vec<LabelPair>),
    LabelKey(Symbol),
    Unindexed,
    /// No pod can belong to the group.
    MatchesNothing,
}

impl Groups {
    pub(super) fn new() -> Self {
        Self {
            interner: Interner::new(),
            by_pair: NumberMap::default(),
            by_key: NumberMap::default(),
            unindexed_groups: Vec::new(),
        }
    }

    pub(super) fn get(&self, number: u32) -> Option<(&PodGroupSelector, &GroupCounters)> {
        self.interner.get(number)
    }

    pub(super) fn counters_mut(&mut self, number: u32) -> Option<&mut GroupCounters> {
        self.interner.derived_mut(number)
    }

    pub(super) fn intern(&mut self, group: PodGroupSelector) -> u32 {
        // Hundreds of groups may require the label `kubevirt.io=virt-launcher` in addition to a label that
        // distinguishes them. Therefore the key is a pair that few groups require.
        let index_key = group.index_key(|pair| self.by_pair.get(pair).map_or(0, Vec::len));
        let (number, is_new) = self.interner.intern(group, |_| GroupCounters::default());
        if is_new {
            match index_key {
                IndexKey::LabelPairs(pairs) => {
                    for pair in pairs {
                        self.by_pair.entry(pair).or_default().push(number);
                    }
                }
                IndexKey::LabelKey(key) => self.by_key.entry(key).or_default().push(number),
                IndexKey::Unindexed => self.unindexed_groups.push(number),
                IndexKey::MatchesNothing => {}
            }
        }
        number
    }

    /// Calls `each` for each group to which the pod belongs, with the group's counters.
    pub(super) fn for_each_matching<'a>(
        &'a self,
        symbols: &Symbols,
        member: PodAttributes<'_>,
        mut each: impl FnMut(&'a GroupCounters),
    ) {
        let mut visit_groups = |numbers: &[u32]| {
            for number in numbers {
                if let Some((group, counters)) = self.interner.get(*number)
                    && group.contains(symbols, member)
                {
                    each(counters);
                }
            }
        };
        for pair in index_pairs(member.namespace, member.labels) {
            if let Some(numbers) = self.by_pair.get(&pair) {
                visit_groups(numbers);
            }
            if let Some(numbers) = self.by_key.get(&pair.0) {
                visit_groups(numbers);
            }
        }
        visit_groups(&self.unindexed_groups);
    }
}

/// Pods that have the same label pair. Most pairs, for example that with the pod's name, belong to a single pod and
/// need no set.
#[derive(Debug)]
pub(super) enum PodSet {
    One(u64),
    Many(HashSet<u64, BuildHasherDefault<NumberHasher>>),
}

impl PodSet {
    pub(super) fn add(&mut self, pod: u64) {
        match self {
            Self::One(other) => *self = Self::Many([*other, pod].into_iter().collect()),
            Self::Many(pods) => {
                pods.insert(pod);
            }
        }
    }

    /// Removes a pod. Returns false if the set is empty afterwards.
    pub(super) fn remove(&mut self, pod: u64) -> bool {
        match self {
            Self::One(one) => *one != pod,
            Self::Many(pods) => {
                pods.remove(&pod);
                !pods.is_empty()
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Many(pods) => pods.len(),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        let (one, many) = match self {
            Self::One(one) => (Some(*one), None),
            Self::Many(pods) => (None, Some(pods)),
        };
        one.into_iter().chain(many.into_iter().flatten().copied())
    }
}
