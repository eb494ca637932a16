//! Groups of pods that rules speak of, and which groups a pod belongs to without asking each of them.

use std::collections::HashSet;
use std::hash::BuildHasherDefault;

use super::selector::{Selector, Test};
use super::symbols::{EMPTY, Labels, Mix, NumberMap, Pair, Shared, Symbol, Symbols, pairs};

/// Pods in these namespaces with these labels (kube-scheduler `framework.AffinityTerm`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Term {
    /// By name, sorted.
    pub(super) namespaces: Box<[Symbol]>,
    /// And by their labels.
    pub(super) namespace_selector: Selector,
    pub(super) selector: Selector,
}

/// Pods of which all terms are true.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Group {
    /// Sorted, at least one.
    pub(super) terms: Box<[Term]>,
    /// Without those that are being deleted: so spreading counts, and affinity does not.
    pub(super) living: bool,
}

/// A pod as groups see it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member<'a> {
    pub(super) namespace: Symbol,
    pub(super) namespace_labels: &'a Labels,
    pub(super) labels: &'a Labels,
    pub(super) is_terminating: bool,
}

impl Group {
    pub(super) fn new(mut terms: Vec<Term>, living: bool) -> Self {
        terms.sort_unstable();
        terms.dedup();
        Self { terms: terms.into(), living }
    }

    pub(super) fn has(&self, symbols: &Symbols, member: Member<'_>) -> bool {
        let here = |term: &Term| {
            term.namespaces.contains(&member.namespace)
                || term.namespace_selector.matches(symbols, member.namespace_labels)
        };
        !(self.living && member.is_terminating)
            && self
                .terms
                .iter()
                .all(|term| term.selector.matches(symbols, member.labels) && here(term))
    }

    /// The best one: of few pairs, and of those that few others share, whoever that is.
    pub(super) fn anchor(&self, crowd: impl Fn(&Pair) -> usize) -> Anchor {
        let mut best: Option<(usize, Vec<Pair>)> = None;
        let mut key = None;
        for term in &self.terms {
            if term.selector == Selector::Nothing {
                return Anchor::None;
            }
            let mut offer = |pairs: Vec<Pair>| {
                let cost = pairs.iter().map(&crowd).sum::<usize>().saturating_add(pairs.len());
                if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                    best = Some((cost, pairs));
                }
            };
            for one in term.selector.requirements() {
                match &one.test {
                    Test::In(values) => {
                        offer(values.iter().map(|value| (one.key, *value)).collect());
                    }
                    Test::Exists => key = Some(one.key),
                    _ => {}
                }
            }
            if term.namespace_selector == Selector::Nothing {
                offer(term.namespaces.iter().map(|name| (EMPTY, *name)).collect());
            }
        }
        match (best, key) {
            (Some((_, pairs)), _) => Anchor::Pairs(pairs),
            (None, Some(key)) => Anchor::Key(key),
            (None, None) => Anchor::Rest,
        }
    }

    /// For people.
    pub(super) fn shown(&self, symbols: &Symbols) -> String {
        let terms: Vec<String> =
            self.terms.iter().map(|term| term.selector.shown(symbols).to_string()).collect();
        terms.join(" and ")
    }
}

/// Counters of a group.
#[derive(Clone, Debug, Default)]
pub(super) struct Uses {
    /// Of its pods.
    pub(super) members: Vec<u32>,
    /// Of pods that want no pod of the group near.
    pub(super) refusers: Vec<u32>,
    /// Of the weights with which pods like the group near, or dislike it.
    pub(super) weights: Vec<u32>,
}

/// All groups.
#[derive(Debug)]
pub(super) struct Groups {
    all: Shared<Group, Uses>,
    /// Groups whose pods all have one of these pairs.
    by_pair: NumberMap<Pair, Vec<u32>>,
    /// Groups whose pods all have a label with this key.
    by_key: NumberMap<Symbol, Vec<u32>>,
    /// Groups that say only what their pods do not have.
    rest: Vec<u32>,
}

/// What all pods of a group have in common, so that it need be looked at for no others.
pub(super) enum Anchor {
    /// One of these.
    Pairs(Vec<Pair>),
    Key(Symbol),
    Rest,
    /// The group has no pods.
    None,
}

impl Groups {
    pub(super) fn new() -> Self {
        Self {
            all: Shared::new(),
            by_pair: NumberMap::default(),
            by_key: NumberMap::default(),
            rest: Vec::new(),
        }
    }

    pub(super) fn get(&self, number: u32) -> Option<(&Group, &Uses)> {
        self.all.get(number)
    }

    pub(super) fn uses_mut(&mut self, number: u32) -> Option<&mut Uses> {
        self.all.derived_mut(number)
    }

    pub(super) fn intern(&mut self, group: Group) -> u32 {
        // Hundreds of groups may say `kubevirt.io=virt-launcher` beside the label that tells them apart.
        let anchor = group.anchor(|pair| self.by_pair.get(pair).map_or(0, Vec::len));
        let (number, is_new) = self.all.intern(group, |_| Uses::default());
        if is_new {
            match anchor {
                Anchor::Pairs(pairs) => {
                    for pair in pairs {
                        self.by_pair.entry(pair).or_default().push(number);
                    }
                }
                Anchor::Key(key) => self.by_key.entry(key).or_default().push(number),
                Anchor::Rest => self.rest.push(number),
                Anchor::None => {}
            }
        }
        number
    }

    /// Calls for every group that has this pod.
    pub(super) fn of<'a>(
        &'a self,
        symbols: &Symbols,
        member: Member<'_>,
        mut each: impl FnMut(&'a Uses),
    ) {
        let mut look = |numbers: &[u32]| {
            for number in numbers {
                if let Some((group, uses)) = self.all.get(*number)
                    && group.has(symbols, member)
                {
                    each(uses);
                }
            }
        };
        for pair in pairs(member.namespace, member.labels) {
            if let Some(numbers) = self.by_pair.get(&pair) {
                look(numbers);
            }
            if let Some(numbers) = self.by_key.get(&pair.0) {
                look(numbers);
            }
        }
        look(&self.rest);
    }
}

/// Pods that have a pair in common. Most pairs are one pod's own, such as its name, and need no set.
#[derive(Debug)]
pub(super) enum Sharing {
    One(u64),
    Many(HashSet<u64, BuildHasherDefault<Mix>>),
}

impl Sharing {
    pub(super) fn add(&mut self, pod: u64) {
        match self {
            Self::One(other) => *self = Self::Many([*other, pod].into_iter().collect()),
            Self::Many(pods) => {
                pods.insert(pod);
            }
        }
    }

    /// Whether somebody is left.
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
