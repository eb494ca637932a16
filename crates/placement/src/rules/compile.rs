//! From a pod's spec to numbers: what it requires, what it prefers, and what it asks of pods that come later.

use std::borrow::Cow;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PodAffinityTerm, TopologySpreadConstraint};

use super::belongs::Belongs;
use super::counter::{Counted, What};
use super::counts::Counts;
use super::fit::requests;
use super::groups::{Group, Term};
use super::hosts::Eligible;
use super::invalid::{Invalid, Place, label_key};
use super::node_affinity::{NodeRule, preference, weight};
use super::parts::PodSpecParts;
use super::recent::Asked;
use super::selector::{Requirement, Selector};
use super::symbols::{Labels, Symbol, Symbols};
use super::taints::Tolerations;
use berth_kubelet_admission::pod::Pod;

/// A pod's rules, as numbers of the [`Counts`] that compiled them; with others they mean nothing.
#[derive(Debug)]
pub struct Rules {
    pub(super) labels: Labels,
    pub(super) is_terminating: bool,
    pub(super) asked: Asked,
    pub(super) template: Arc<Template>,
    /// Of each of the template's constraints `DoNotSchedule`: whether the pod itself is among those that are spread.
    pub(super) counts_itself: Box<[bool]>,
    pub(super) belongs: Belongs,
}

/// What pods that differ only in labels, containers and uid have in common.
#[derive(Debug)]
pub(super) struct Template {
    pub(super) namespace: Symbol,
    /// Of `nodeSelector` and required node affinity, if it has any.
    pub(super) node_rule: Option<u32>,
    pub(super) preference: Option<u32>,
    pub(super) tolerations: u32,
    pub(super) tolerates_cordon: bool,
    /// The group of pods that it must be together with, and its counter for each term's topology.
    pub(super) affinity: Option<(u32, Box<[u32]>)>,
    /// Counters of pods that it must not be together with.
    pub(super) anti_affinity: Box<[u32]>,
    /// `DoNotSchedule`, each with the pods that it spreads.
    pub(super) spread: Box<[(Spread, Selector)]>,
    /// `ScheduleAnyway`.
    pub(super) soft_spread: Box<[Spread]>,
    /// Counters of pods that it likes or dislikes, and how much.
    pub(super) preferred: Box<[(u32, i64)]>,
    /// Counters that are to be raised by this where the pod is: for pods that come later.
    pub(super) says: Box<[(u32, i64)]>,
}

/// Which hosts a pod may go to, and which it would rather, as far as other pods do not matter: pods with equal ones, of
/// one [`Counts`], see all hosts alike.
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
    /// Whether the domains are the hosts themselves.
    pub(super) is_by_host: bool,
}

impl Rules {
    /// What of them does not depend on other pods.
    #[must_use]
    pub fn of_hosts(&self) -> HostRules {
        let Template { node_rule, preference, tolerations, .. } = *self.template;
        HostRules { node_rule, preference, tolerations }
    }

    /// What its containers ask for, without a uid: pods that ask for the same share it.
    #[must_use]
    pub const fn containers(&self) -> &Arc<Pod> {
        &self.asked.pod
    }

    /// The same number for pods whose containers request the same.
    pub(crate) const fn number_of_requests(&self) -> u64 {
        self.asked.number
    }

    /// Reads a pod's rules. What is equal for many pods, such as the selectors of one `MachineDeployment`, is kept once.
    ///
    /// # Errors
    /// If the API server would not have taken the pod: what is wrong, and where.
    pub fn compile(counts: &mut Counts, parts: &PodSpecParts<'_>) -> Result<Self, Invalid> {
        let (number, known) = counts.recents.template(parts);
        let known = known.map(Arc::clone);
        let namespace = if parts.namespace.is_empty() { "default" } else { parts.namespace };
        let symbols = &mut counts.symbols;
        let namespace =
            known.as_ref().map_or_else(|| symbols.intern(namespace), |known| known.namespace);
        let labels = Labels::of(symbols, parts.labels.into_iter().flatten());
        let template = match known {
            Some(known) => known,
            None => {
                let new = Arc::new(Template::compile(counts, parts, namespace, &labels)?);
                counts.recents.keep_template(number, parts, &new);
                new
            }
        };
        let Counts { recents, symbols, .. } = counts;
        let asked = recents.asked(parts.containers, |pod| requests(symbols, pod));
        let itself = template.spread.iter().map(|(_, pods)| pods.matches(symbols, &labels));
        let counts_itself = itself.collect();
        let is_terminating = parts.is_terminating;
        let belongs = counts.belonging(namespace, &labels, is_terminating);
        Ok(Self { labels, is_terminating, asked, template, counts_itself, belongs })
    }
}

impl Template {
    fn compile(
        counts: &mut Counts,
        parts: &PodSpecParts<'_>,
        namespace: Symbol,
        labels: &Labels,
    ) -> Result<Self, Invalid> {
        let spec = Place::top("spec");
        let symbols = &mut counts.symbols;
        let node = parts.affinity.and_then(|affinity| affinity.node_affinity.as_ref());
        let rule = NodeRule::read(symbols, &spec, parts.node_selector, node)?;
        let preference = preference(symbols, &spec, node)?;
        let place = spec.field("tolerations");
        let tolerations = Tolerations::read(symbols, &place, parts.tolerations)?;
        let tolerates_cordon = tolerations.tolerate_cordon(symbols);
        let near = Near::read(symbols, &spec, parts, namespace, labels)?;
        let place = spec.field("topologySpreadConstraints");
        let mut constraints = Vec::with_capacity(parts.spread.len());
        for (at, one) in parts.spread.iter().enumerate() {
            constraints.push(Constraint::read(symbols, &place.item(at), one, labels)?);
        }

        // All is well: only now is anything kept.
        let tolerations = counts.hosts.tolerations(tolerations);
        let node_rule = (!rule.is_empty()).then(|| counts.hosts.rule(&counts.symbols, rule));
        let preference =
            (!preference.is_empty()).then(|| counts.hosts.preference(&counts.symbols, preference));
        let seen = Seen { namespace, node_rule, tolerations };
        let (hard, soft): (Vec<_>, Vec<_>) = constraints.into_iter().partition(|one| one.is_hard);
        let spread = seen.constraints(counts, &hard);
        let spread = spread.into_iter().zip(hard).map(|(spread, one)| (spread, one.selector));
        let spread = spread.collect();
        let soft_spread = seen.constraints(counts, &soft).into();
        let (affinity, anti_affinity, preferred, says) = near.keep(counts);
        Ok(Self {
            namespace,
            node_rule,
            preference,
            tolerations,
            tolerates_cordon,
            affinity,
            anti_affinity,
            spread,
            soft_spread,
            preferred,
            says,
        })
    }
}

/// Terms of pod affinity and anti-affinity, each with its topology key.
#[derive(Default)]
struct Near {
    affinity: Vec<(Term, Symbol)>,
    anti_affinity: Vec<(Term, Symbol)>,
    /// Positive for affinity, negative for anti-affinity.
    preferred: Vec<(Term, Symbol, i64)>,
}

type Kept = (Option<(u32, Box<[u32]>)>, Box<[u32]>, Box<[(u32, i64)]>, Box<[(u32, i64)]>);

impl Near {
    fn read(
        symbols: &mut Symbols,
        spec: &Place<'_>,
        parts: &PodSpecParts<'_>,
        namespace: Symbol,
        labels: &Labels,
    ) -> Result<Self, Invalid> {
        const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
        const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
        let mut near = Self::default();
        let Some(affinity) = parts.affinity else { return Ok(near) };
        let place = spec.field("affinity");
        let mut read = |place: &Place<'_>, term: &PodAffinityTerm| {
            affinity_term(symbols, place, term, namespace, labels)
        };
        if let Some(one) = &affinity.pod_affinity {
            let place = place.field("podAffinity");
            let here = place.field(REQUIRED);
            let required = one.required_during_scheduling_ignored_during_execution.as_deref();
            for (at, term) in required.unwrap_or_default().iter().enumerate() {
                near.affinity.push(read(&here.item(at), term)?);
            }
            let here = place.field(PREFERRED);
            let preferred = one.preferred_during_scheduling_ignored_during_execution.as_deref();
            for (at, one) in preferred.unwrap_or_default().iter().enumerate() {
                let place = here.item(at);
                let (term, key) = read(&place.field("podAffinityTerm"), &one.pod_affinity_term)?;
                near.preferred.push((term, key, i64::from(weight(&place, one.weight)?)));
            }
        }
        if let Some(one) = &affinity.pod_anti_affinity {
            let place = place.field("podAntiAffinity");
            let here = place.field(REQUIRED);
            let required = one.required_during_scheduling_ignored_during_execution.as_deref();
            for (at, term) in required.unwrap_or_default().iter().enumerate() {
                near.anti_affinity.push(read(&here.item(at), term)?);
            }
            let here = place.field(PREFERRED);
            let preferred = one.preferred_during_scheduling_ignored_during_execution.as_deref();
            for (at, one) in preferred.unwrap_or_default().iter().enumerate() {
                let place = here.item(at);
                let (term, key) = read(&place.field("podAffinityTerm"), &one.pod_affinity_term)?;
                near.preferred.push((term, key, -i64::from(weight(&place, one.weight)?)));
            }
        }
        Ok(near)
    }

    fn keep(self, counts: &mut Counts) -> Kept {
        /// `hardPodAffinityWeight` of the scheduler's configuration, where nobody changed it.
        const OF_REQUIRED: i64 = 1;
        let counter = |counts: &mut Counts, term: &Term, key: Symbol, what: What| {
            let group = counts.group(Group::new(vec![term.clone()], false));
            let topology = counts.hosts.topology(key);
            counts.counter(Counted { group, topology, what })
        };
        let mut says = Vec::new();
        for (term, key) in &self.affinity {
            says.push((counter(counts, term, *key, What::Weights), OF_REQUIRED));
        }
        let mut anti_affinity = Vec::new();
        for (term, key) in &self.anti_affinity {
            says.push((counter(counts, term, *key, What::Refusers), 1));
            let own = own_view(counts, term);
            anti_affinity.push(counter(counts, &own, *key, What::Members));
        }
        let mut preferred = Vec::new();
        for (term, key, weight) in &self.preferred {
            says.push((counter(counts, term, *key, What::Weights), *weight));
            let own = own_view(counts, term);
            preferred.push((counter(counts, &own, *key, What::Members), *weight));
        }
        // A pod must be of all terms to count for any (interpodaffinity `podMatchesAllAffinityTerms`).
        let (terms, keys): (Vec<Term>, Vec<Symbol>) = self.affinity.into_iter().unzip();
        let terms: Vec<Term> =
            terms.iter().map(|term| own_view(counts, term).into_owned()).collect();
        let affinity = (!terms.is_empty()).then(|| {
            let group = counts.group(Group::new(terms, false));
            let counters = keys.into_iter().map(|key| {
                let topology = counts.hosts.topology(key);
                counts.counter(Counted { group, topology, what: What::Members })
            });
            let counters = counters.collect();
            (group, counters)
        });
        (affinity, anti_affinity.into(), preferred.into(), says.into())
    }
}

/// Whom the scheduler takes a new pod's own term to mean; when that pod is there, the term means what it says.
fn own_view<'a>(counts: &Counts, term: &'a Term) -> Cow<'a, Term> {
    if counts.quirks.negative_namespace_selectors
        && term.namespace_selector.matches(&counts.symbols, &counts.no_labels)
    {
        let namespace_selector = Selector::all(Vec::new());
        return Cow::Owned(Term { namespace_selector, ..term.clone() });
    }
    Cow::Borrowed(term)
}

fn affinity_term(
    symbols: &mut Symbols,
    place: &Place<'_>,
    term: &PodAffinityTerm,
    namespace: Symbol,
    labels: &Labels,
) -> Result<(Term, Symbol), Invalid> {
    let key = topology_key(symbols, place, &term.topology_key)?;
    let mut extra = Vec::new();
    let with = [
        ("matchLabelKeys", &term.match_label_keys, true),
        ("mismatchLabelKeys", &term.mismatch_label_keys, false),
    ];
    for (field, keys, is) in with {
        let place = place.field(field);
        let keys = keys.as_deref().unwrap_or_default();
        for (key, value) in own(symbols, &place, keys, labels, term.label_selector.is_some())? {
            extra.push(if is {
                Requirement::is(key, value)
            } else {
                Requirement::is_not(key, value)
            });
        }
    }
    let field = place.field("labelSelector");
    let selector = Selector::read(symbols, &field, term.label_selector.as_ref(), extra)?;
    let field = place.field("namespaceSelector");
    let within = term.namespace_selector.as_ref();
    let namespace_selector = Selector::read(symbols, &field, within, [])?;
    let named = term.namespaces.as_deref().unwrap_or_default();
    let mut namespaces: Vec<Symbol> = named.iter().map(|name| symbols.intern(name)).collect();
    if named.is_empty() && within.is_none() {
        namespaces.push(namespace);
    }
    namespaces.sort_unstable();
    namespaces.dedup();
    Ok((Term { namespaces: namespaces.into(), namespace_selector, selector }, key))
}

fn topology_key(symbols: &mut Symbols, place: &Place<'_>, key: &str) -> Result<Symbol, Invalid> {
    label_key(&place.field("topologyKey"), key)?;
    Ok(symbols.intern(key))
}

/// The pod's own values of these labels; those that it does not have are passed over.
fn own(
    symbols: &mut Symbols,
    place: &Place<'_>,
    keys: &[String],
    labels: &Labels,
    has_selector: bool,
) -> Result<Vec<(Symbol, Symbol)>, Invalid> {
    if !keys.is_empty() && !has_selector {
        return Err(place.invalid(keys.join(","), "needs a labelSelector beside it"));
    }
    let mut all = Vec::new();
    for (at, key) in keys.iter().enumerate() {
        label_key(&place.item(at), key)?;
        let key = symbols.intern(key);
        all.extend(labels.get(key).map(|value| (key, value)));
    }
    Ok(all)
}

/// A spread constraint that has been read.
struct Constraint {
    selector: Selector,
    key: Symbol,
    is_hard: bool,
    max_skew: i64,
    min_domains: u32,
    honours_affinity: bool,
    honours_taints: bool,
    is_by_host: bool,
}

impl Constraint {
    fn read(
        symbols: &mut Symbols,
        place: &Place<'_>,
        one: &TopologySpreadConstraint,
        labels: &Labels,
    ) -> Result<Self, Invalid> {
        let key = topology_key(symbols, place, &one.topology_key)?;
        if one.max_skew < 1 {
            return Err(place.field("maxSkew").invalid(one.max_skew, "is not at least 1"));
        }
        let is_hard = match one.when_unsatisfiable.as_str() {
            "DoNotSchedule" => true,
            "ScheduleAnyway" => false,
            other => {
                let known = "is neither DoNotSchedule nor ScheduleAnyway";
                return Err(place.field("whenUnsatisfiable").invalid(other, known));
            }
        };
        let field = place.field("minDomains");
        let min_domains = match one.min_domains {
            None => 1,
            Some(number) if !is_hard => {
                return Err(
                    field.invalid(number, "goes with whenUnsatisfiable: DoNotSchedule only")
                );
            }
            Some(number) => u32::try_from(number)
                .ok()
                .filter(|number| *number > 0)
                .ok_or_else(|| field.invalid(number, "is not at least 1"))?,
        };
        let policy = |name, policy: &Option<String>, absent| match policy.as_deref() {
            None => Ok(absent),
            Some("Honor") => Ok(true),
            Some("Ignore") => Ok(false),
            Some(other) => Err(place.field(name).invalid(other, "is neither Honor nor Ignore")),
        };
        let honours_affinity = policy("nodeAffinityPolicy", &one.node_affinity_policy, true)?;
        let honours_taints = policy("nodeTaintsPolicy", &one.node_taints_policy, false)?;
        let keys = one.match_label_keys.as_deref().unwrap_or_default();
        let field = place.field("matchLabelKeys");
        let own = own(symbols, &field, keys, labels, one.label_selector.is_some())?;
        let extra = own.into_iter().map(|(key, value)| Requirement::is(key, value));
        let field = place.field("labelSelector");
        Ok(Self {
            selector: Selector::read(symbols, &field, one.label_selector.as_ref(), extra)?,
            key,
            is_hard,
            max_skew: i64::from(one.max_skew),
            min_domains,
            honours_affinity,
            honours_taints,
            is_by_host: one.topology_key == "kubernetes.io/hostname",
        })
    }
}

/// What constraints need to know of their pod.
struct Seen {
    namespace: Symbol,
    node_rule: Option<u32>,
    tolerations: u32,
}

impl Seen {
    /// Those that say the same of `whenUnsatisfiable`.
    fn constraints(&self, counts: &mut Counts, all: &[Constraint]) -> Vec<Spread> {
        let mut keys: Vec<Symbol> = all.iter().map(|one| one.key).collect();
        keys.sort_unstable();
        keys.dedup();
        let compiled = all.iter().map(|one| {
            // A selector of everything counts nothing, though the pod itself matches it
            // (podtopologyspread `countPodsMatchSelector`).
            let everything = one.selector.is_everything();
            let term = Term {
                namespaces: [self.namespace].into(),
                namespace_selector: Selector::Nothing,
                selector: if everything { Selector::Nothing } else { one.selector.clone() },
            };
            let group = counts.group(Group::new(vec![term], true));
            let topology = counts.hosts.topology(one.key);
            let eligible = counts.hosts.eligible(Eligible {
                keys: keys.clone().into(),
                rule: self.node_rule.filter(|_| one.honours_affinity),
                tolerations: one.honours_taints.then_some(self.tolerations),
            });
            Spread {
                counter: counts.counter(Counted { group, topology, what: What::Spread(eligible) }),
                max_skew: one.max_skew,
                min_domains: one.min_domains,
                is_by_host: one.is_by_host,
            }
        });
        compiled.collect()
    }
}
