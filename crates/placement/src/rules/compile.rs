//! Compiles a pod's spec to numbers: the pod's requirements, its preferences, and its effects on the placement of later
//! pods.

use std::borrow::Cow;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    PodAffinityTerm, TopologySpreadConstraint, WeightedPodAffinityTerm,
};

use super::cluster_state::ClusterState;
use super::compiled::{CompiledSpread, CompiledTemplate, Rules};
use super::counter::{CounterKey, CounterKind};
use super::field_path::{FieldPath, InvalidField, validate_label_key};
use super::groups::{AffinityTerm, PodGroupSelector};
use super::hosts::EligibilityRule;
use super::node_affinity::{NodeRule, read_preferred_terms, validate_weight};
use super::object_fields::PodFields;
use super::resource_fit::compute_requests;
use super::selector::{Requirement, Selector};
use super::symbols::{Labels, Symbol, Symbols};
use super::taints::Tolerations;

impl Rules {
    /// Compiles a pod's rules. Parts that are equal for many pods, such as the selectors of a `MachineDeployment`, are
    /// stored once.
    ///
    /// # Errors
    ///
    /// Returns the invalid field and its problem if the API server would have rejected the pod.
    pub fn compile(
        cluster: &mut ClusterState,
        fields: &PodFields<'_>,
    ) -> Result<Self, InvalidField> {
        let (number, known) = cluster.compile_cache.find_template(fields);
        let known = known.map(Arc::clone);
        let namespace = if fields.namespace.is_empty() { "default" } else { fields.namespace };
        let symbols = &mut cluster.symbols;
        let namespace =
            known.as_ref().map_or_else(|| symbols.intern(namespace), |known| known.namespace);
        let labels = Labels::intern(symbols, fields.labels.into_iter().flatten());
        let template = match known {
            Some(known) => known,
            None => {
                let new = Arc::new(CompiledTemplate::compile_template(
                    cluster, fields, namespace, &labels,
                )?);
                cluster.compile_cache.store_template(number, fields, &new);
                new
            }
        };
        let ClusterState { compile_cache, symbols, volumes, .. } = cluster;
        let claims = volumes.intern_claims(symbols, namespace, fields.claims);
        let pod_requests = compile_cache
            .find_or_compute_requests(fields.containers, |pod| compute_requests(symbols, pod));
        let self_matches =
            template.hard_spread.iter().map(|(_, pods)| pods.matches(symbols, &labels));
        let counts_itself = self_matches.collect();
        let is_terminating = fields.is_terminating;
        let membership = cluster.compute_membership(namespace, &labels, is_terminating);
        Ok(Self {
            labels,
            is_terminating,
            pod_requests,
            template,
            matches_own_constraints: counts_itself,
            membership,
            claims,
        })
    }
}

impl CompiledTemplate {
    fn compile_template(
        cluster: &mut ClusterState,
        fields: &PodFields<'_>,
        namespace: Symbol,
        labels: &Labels,
    ) -> Result<Self, InvalidField> {
        let spec = FieldPath::root("spec");
        let symbols = &mut cluster.symbols;
        let node_affinity = fields.affinity.and_then(|affinity| affinity.node_affinity.as_ref());
        let rule = NodeRule::read(symbols, &spec, fields.node_selector, node_affinity)?;
        let preference = read_preferred_terms(symbols, &spec, node_affinity)?;
        let path = spec.field("tolerations");
        let tolerations = Tolerations::read(symbols, &path, fields.tolerations)?;
        let tolerates_unschedulable = tolerations.tolerates_unschedulable(symbols);
        let pod_affinity = PodAffinityTerms::read(symbols, &spec, fields, namespace, labels)?;
        let path = spec.field("topologySpreadConstraints");
        let mut constraints = Vec::with_capacity(fields.spread_constraints.len());
        for (at, one) in fields.spread_constraints.iter().enumerate() {
            constraints.push(SpreadConstraint::read(symbols, &path.item(at), one, labels)?);
        }

        // `cluster` is not changed before this line, because only now are all parts of the pod known to be valid.
        let tolerations = cluster.hosts.intern_tolerations(tolerations);
        let node_rule =
            (!rule.is_empty()).then(|| cluster.hosts.intern_node_rule(&cluster.symbols, rule));
        let preference = (!preference.is_empty())
            .then(|| cluster.hosts.intern_preference(&cluster.symbols, preference));
        let properties =
            SpreadContext { namespace, node_rule_id: node_rule, tolerations_id: tolerations };
        let (hard, soft): (Vec<_>, Vec<_>) = constraints.into_iter().partition(|one| one.is_hard);
        let spread = properties.compile_constraints(cluster, &hard);
        let spread = spread.into_iter().zip(hard).map(|(spread, one)| (spread, one.selector));
        let spread = spread.collect();
        let soft_spread = properties.compile_constraints(cluster, &soft).into();
        let (affinity, anti_affinity, preferred, contributions) = pod_affinity.intern(cluster);
        Ok(Self {
            namespace,
            node_rule,
            preference,
            tolerations,
            tolerates_unschedulable,
            affinity,
            anti_affinity,
            hard_spread: spread,
            soft_spread,
            preferred_affinity: preferred,
            counter_contributions: contributions,
        })
    }
}

/// Terms of a pod's affinity and anti-affinity to other pods, each with the term's topology key.
#[derive(Default)]
struct PodAffinityTerms {
    affinity: Vec<(AffinityTerm, Symbol)>,
    anti_affinity: Vec<(AffinityTerm, Symbol)>,
    /// Preferred terms with their topology keys and weights. Weights are positive for affinity and negative for
    /// anti-affinity.
    preferred: Vec<(AffinityTerm, Symbol, i64)>,
}

type ReadTerm<'a> = dyn FnMut(&FieldPath<'_>, &PodAffinityTerm) -> Result<(AffinityTerm, Symbol), InvalidField>
    + 'a;

fn required_terms(
    read: &mut ReadTerm<'_>,
    affinity: &FieldPath<'_>,
    terms: &[PodAffinityTerm],
) -> Result<Vec<(AffinityTerm, Symbol)>, InvalidField> {
    let path = affinity.field("requiredDuringSchedulingIgnoredDuringExecution");
    terms.iter().enumerate().map(|(at, term)| read(&path.item(at), term)).collect()
}

/// Reads preferred terms with their topology keys and weights.
fn weighted_terms(
    read: &mut ReadTerm<'_>,
    affinity: &FieldPath<'_>,
    terms: &[WeightedPodAffinityTerm],
) -> Result<Vec<(AffinityTerm, Symbol, i64)>, InvalidField> {
    let path = affinity.field("preferredDuringSchedulingIgnoredDuringExecution");
    let read_term = |(at, one): (usize, &WeightedPodAffinityTerm)| {
        let path = path.item(at);
        let (term, key) = read(&path.field("podAffinityTerm"), &one.pod_affinity_term)?;
        Ok((term, key, i64::from(validate_weight(&path, one.weight)?)))
    };
    terms.iter().enumerate().map(read_term).collect()
}

type CompiledAffinity =
    (Option<(u32, Box<[u32]>)>, Box<[u32]>, Box<[(u32, i64)]>, Box<[(u32, i64)]>);

impl PodAffinityTerms {
    fn read(
        symbols: &mut Symbols,
        spec: &FieldPath<'_>,
        fields: &PodFields<'_>,
        namespace: Symbol,
        labels: &Labels,
    ) -> Result<Self, InvalidField> {
        let mut terms = Self::default();
        let Some(affinity) = fields.affinity else { return Ok(terms) };
        let affinity_path = spec.field("affinity");
        let mut read = |path: &FieldPath<'_>, term: &PodAffinityTerm| {
            compile_affinity_term(symbols, path, term, namespace, labels)
        };
        if let Some(one) = &affinity.pod_affinity {
            let path = affinity_path.field("podAffinity");
            let required = one.required_during_scheduling_ignored_during_execution.as_deref();
            terms.affinity = required_terms(&mut read, &path, required.unwrap_or_default())?;
            let preferred = one.preferred_during_scheduling_ignored_during_execution.as_deref();
            terms.preferred = weighted_terms(&mut read, &path, preferred.unwrap_or_default())?;
        }
        if let Some(one) = &affinity.pod_anti_affinity {
            let path = affinity_path.field("podAntiAffinity");
            let required = one.required_during_scheduling_ignored_during_execution.as_deref();
            terms.anti_affinity = required_terms(&mut read, &path, required.unwrap_or_default())?;
            let preferred = one.preferred_during_scheduling_ignored_during_execution.as_deref();
            let weighted = weighted_terms(&mut read, &path, preferred.unwrap_or_default())?;
            let negative = weighted.into_iter().map(|(term, key, weight)| (term, key, -weight));
            terms.preferred.extend(negative);
        }
        Ok(terms)
    }

    fn intern(self, cluster: &mut ClusterState) -> CompiledAffinity {
        /// kube-scheduler's default of `hardPodAffinityWeight`.
        const HARD_POD_AFFINITY_WEIGHT: i64 = 1;
        let counter =
            |cluster: &mut ClusterState, term: &AffinityTerm, key: Symbol, kind: CounterKind| {
                let group = cluster.intern_group(PodGroupSelector::new(vec![term.clone()], false));
                let topology = cluster.hosts.intern_topology(key);
                cluster.intern_counter(CounterKey { group, topology, kind })
            };
        let mut contributions = Vec::new();
        for (term, key) in &self.affinity {
            contributions.push((
                counter(cluster, term, *key, CounterKind::AffinityWeights),
                HARD_POD_AFFINITY_WEIGHT,
            ));
        }
        let mut anti_affinity = Vec::new();
        for (term, key) in &self.anti_affinity {
            contributions
                .push((counter(cluster, term, *key, CounterKind::ExistingAntiAffinity), 1));
            let incoming_term = term_for_incoming_pod(cluster, term);
            anti_affinity.push(counter(cluster, &incoming_term, *key, CounterKind::GroupPods));
        }
        let mut preferred = Vec::new();
        for (term, key, weight) in &self.preferred {
            contributions
                .push((counter(cluster, term, *key, CounterKind::AffinityWeights), *weight));
            let incoming_term = term_for_incoming_pod(cluster, term);
            preferred
                .push((counter(cluster, &incoming_term, *key, CounterKind::GroupPods), *weight));
        }
        // An existing pod counts for a term of the required affinity only if it matches all these terms
        // (interpodaffinity `podMatchesAllAffinityTerms`).
        let (terms, keys): (Vec<AffinityTerm>, Vec<Symbol>) = self.affinity.into_iter().unzip();
        let terms: Vec<AffinityTerm> =
            terms.iter().map(|term| term_for_incoming_pod(cluster, term).into_owned()).collect();
        let affinity = (!terms.is_empty()).then(|| {
            let group = cluster.intern_group(PodGroupSelector::new(terms, false));
            let counters = keys.into_iter().map(|key| {
                let topology = cluster.hosts.intern_topology(key);
                cluster.intern_counter(CounterKey { group, topology, kind: CounterKind::GroupPods })
            });
            let counters = counters.collect();
            (group, counters)
        });
        (affinity, anti_affinity.into(), preferred.into(), contributions.into())
    }
}

/// Returns the form in which kube-scheduler evaluates a term of the incoming pod. Because of
/// [`SchedulerBugs`](super::cluster_state::SchedulerBugs), it may differ from the term in the pod's spec. Terms of
/// existing pods are evaluated as in their spec.
fn term_for_incoming_pod<'a>(
    cluster: &ClusterState,
    term: &'a AffinityTerm,
) -> Cow<'a, AffinityTerm> {
    if cluster.scheduler_bugs.negative_namespace_selectors
        && term.namespace_selector.matches(&cluster.symbols, &cluster.no_labels)
    {
        let namespace_selector = Selector::from_requirements(Vec::new());
        return Cow::Owned(AffinityTerm { namespace_selector, ..term.clone() });
    }
    Cow::Borrowed(term)
}

fn compile_affinity_term(
    symbols: &mut Symbols,
    path: &FieldPath<'_>,
    term: &PodAffinityTerm,
    namespace: Symbol,
    labels: &Labels,
) -> Result<(AffinityTerm, Symbol), InvalidField> {
    let key = read_topology_key(symbols, path, &term.topology_key)?;
    let mut own_label_requirements = Vec::new();
    let label_key_fields = [
        ("matchLabelKeys", &term.match_label_keys, true),
        ("mismatchLabelKeys", &term.mismatch_label_keys, false),
    ];
    for (field, keys, must_match) in label_key_fields {
        let path = path.field(field);
        let keys = keys.as_deref().unwrap_or_default();
        for (key, value) in
            own_label_values(symbols, &path, keys, labels, term.label_selector.is_some())?
        {
            own_label_requirements.push(if must_match {
                Requirement::equals(key, value)
            } else {
                Requirement::not_equals(key, value)
            });
        }
    }
    let field = path.field("labelSelector");
    let selector =
        Selector::read(symbols, &field, term.label_selector.as_ref(), own_label_requirements)?;
    let field = path.field("namespaceSelector");
    let namespace_selector_spec = term.namespace_selector.as_ref();
    let namespace_selector = Selector::read(symbols, &field, namespace_selector_spec, [])?;
    let namespace_names = term.namespaces.as_deref().unwrap_or_default();
    let mut namespaces: Vec<Symbol> =
        namespace_names.iter().map(|name| symbols.intern(name)).collect();
    if namespace_names.is_empty() && namespace_selector_spec.is_none() {
        namespaces.push(namespace);
    }
    namespaces.sort_unstable();
    namespaces.dedup();
    Ok((AffinityTerm { namespaces: namespaces.into(), namespace_selector, selector }, key))
}

fn read_topology_key(
    symbols: &mut Symbols,
    path: &FieldPath<'_>,
    key: &str,
) -> Result<Symbol, InvalidField> {
    validate_label_key(&path.field("topologyKey"), key)?;
    Ok(symbols.intern(key))
}

/// Returns the pod's own labels with these keys. Keys that the pod's labels lack are ignored.
fn own_label_values(
    symbols: &mut Symbols,
    path: &FieldPath<'_>,
    keys: &[String],
    labels: &Labels,
    has_selector: bool,
) -> Result<Vec<(Symbol, Symbol)>, InvalidField> {
    if !keys.is_empty() && !has_selector {
        return Err(path.invalid_field(keys.join(","), "requires a labelSelector"));
    }
    let mut all = Vec::new();
    for (at, key) in keys.iter().enumerate() {
        validate_label_key(&path.item(at), key)?;
        let key = symbols.intern(key);
        all.extend(labels.get(key).map(|value| (key, value)));
    }
    Ok(all)
}

/// A validated spread constraint.
struct SpreadConstraint {
    selector: Selector,
    topology_key: Symbol,
    is_hard: bool,
    max_skew: i64,
    min_domains: u32,
    honors_node_affinity: bool,
    honors_node_taints: bool,
    is_per_host: bool,
}

impl SpreadConstraint {
    fn read(
        symbols: &mut Symbols,
        path: &FieldPath<'_>,
        constraint: &TopologySpreadConstraint,
        labels: &Labels,
    ) -> Result<Self, InvalidField> {
        let topology_key = read_topology_key(symbols, path, &constraint.topology_key)?;
        if constraint.max_skew < 1 {
            return Err(path
                .field("maxSkew")
                .invalid_field(constraint.max_skew, "must be at least 1"));
        }
        let is_hard = match constraint.when_unsatisfiable.as_str() {
            "DoNotSchedule" => true,
            "ScheduleAnyway" => false,
            other => {
                let problem = "must be DoNotSchedule or ScheduleAnyway";
                return Err(path.field("whenUnsatisfiable").invalid_field(other, problem));
            }
        };
        let field = path.field("minDomains");
        let min_domains = match constraint.min_domains {
            None => 1,
            Some(number) if !is_hard => {
                return Err(field
                    .invalid_field(number, "is valid only with whenUnsatisfiable: DoNotSchedule"));
            }
            Some(number) => u32::try_from(number)
                .ok()
                .filter(|number| *number > 0)
                .ok_or_else(|| field.invalid_field(number, "must be at least 1"))?,
        };
        let policy = |name, policy: &Option<String>, default| match policy.as_deref() {
            None => Ok(default),
            Some("Honor") => Ok(true),
            Some("Ignore") => Ok(false),
            Some(other) => Err(path.field(name).invalid_field(other, "must be Honor or Ignore")),
        };
        let honours_affinity =
            policy("nodeAffinityPolicy", &constraint.node_affinity_policy, true)?;
        let honours_taints = policy("nodeTaintsPolicy", &constraint.node_taints_policy, false)?;
        let keys = constraint.match_label_keys.as_deref().unwrap_or_default();
        let field = path.field("matchLabelKeys");
        let own_labels =
            own_label_values(symbols, &field, keys, labels, constraint.label_selector.is_some())?;
        let extra = own_labels.into_iter().map(|(key, value)| Requirement::equals(key, value));
        let field = path.field("labelSelector");
        Ok(Self {
            selector: Selector::read(symbols, &field, constraint.label_selector.as_ref(), extra)?,
            topology_key,
            is_hard,
            max_skew: i64::from(constraint.max_skew),
            min_domains,
            honors_node_affinity: honours_affinity,
            honors_node_taints: honours_taints,
            is_per_host: constraint.topology_key == "kubernetes.io/hostname",
        })
    }
}

/// Properties of the pod on which the meaning of its spread constraints depends.
struct SpreadContext {
    namespace: Symbol,
    node_rule_id: Option<u32>,
    tolerations_id: u32,
}

impl SpreadContext {
    /// Compiles the given constraints, which are all constraints of the pod with the same `whenUnsatisfiable`.
    fn compile_constraints(
        &self,
        cluster: &mut ClusterState,
        all: &[SpreadConstraint],
    ) -> Vec<CompiledSpread> {
        let mut keys: Vec<Symbol> = all.iter().map(|one| one.topology_key).collect();
        keys.sort_unstable();
        keys.dedup();
        let compiled = all.iter().map(|one| {
            // A constraint with an empty selector counts no pods, although the pod itself matches the selector
            // (podtopologyspread `countPodsMatchSelector`).
            let matches_everything = one.selector.matches_everything();
            let term = AffinityTerm {
                namespaces: [self.namespace].into(),
                namespace_selector: Selector::Nothing,
                selector: if matches_everything { Selector::Nothing } else { one.selector.clone() },
            };
            let group = cluster.intern_group(PodGroupSelector::new(vec![term], true));
            let topology = cluster.hosts.intern_topology(one.topology_key);
            let eligible = cluster.hosts.intern_eligibility_rule(EligibilityRule {
                required_keys: keys.clone().into(),
                node_rule: self.node_rule_id.filter(|_| one.honors_node_affinity),
                tolerations: one.honors_node_taints.then_some(self.tolerations_id),
            });
            CompiledSpread {
                counter: cluster.intern_counter(CounterKey {
                    group,
                    topology,
                    kind: CounterKind::Spread(eligible),
                }),
                max_skew: one.max_skew,
                min_domains: one.min_domains,
                is_per_host: one.is_per_host,
            }
        });
        compiled.collect()
    }
}
