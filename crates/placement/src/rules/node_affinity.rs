//! `nodeSelector` and node affinity: required and preferred labels and names of hosts.
//!
//! The rules follow component-helpers `scheduling/corev1/nodeaffinity`: terms are alternatives (OR), requirements of a
//! term are combined (AND), and an empty term matches nothing.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1::{
    NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, TopologySelectorTerm,
};

use super::field_path::{FieldPath, InvalidField, validate_label_key, validate_label_value};
use super::selector::{LabelTest, Requirement, read_node_requirement};
use super::symbols::{LabelPair, Labels, Symbol, Symbols};

/// Requirements for hosts, from a pod's `nodeSelector` and required node affinity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct NodeRule {
    /// Requirements of `spec.nodeSelector`, sorted.
    pub(super) selector: Box<[Requirement]>,
    /// Terms of the required node affinity, sorted; a host must match at least one of them. `None` if there is no
    /// required node affinity.
    pub(super) terms: Option<Box<[NodeTerm]>>,
}

/// A term of node affinity: a host must meet all its requirements, of which there is at least one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct NodeTerm {
    label_requirements: Box<[Requirement]>,
    /// Requirements for `metadata.name`. True: the host's name must equal the symbol; false: the host's name must
    /// differ from the symbol.
    name_requirements: Box<[(bool, Symbol)]>,
}

/// Preferred terms, each with its weight from 1 to 100.
pub(super) type PreferredTerms = Box<[(NodeTerm, u32)]>;

impl NodeRule {
    pub(super) fn read(
        symbols: &mut Symbols,
        spec: &FieldPath<'_>,
        selector: Option<&BTreeMap<String, String>>,
        affinity: Option<&NodeAffinity>,
    ) -> Result<Self, InvalidField> {
        let selector_path = spec.field("nodeSelector");
        let mut all = Vec::new();
        for (key, value) in selector.into_iter().flatten() {
            validate_label_key(&selector_path, key)?;
            validate_label_value(&selector_path.field(key), value)?;
            all.push(Requirement::equals(symbols.intern(key), symbols.intern(value)));
        }
        all.sort_unstable();
        let required = affinity.and_then(|affinity| {
            affinity.required_during_scheduling_ignored_during_execution.as_ref()
        });
        let affinity_path = spec.field("affinity");
        let node_affinity_path = affinity_path.field("nodeAffinity");
        let required_path =
            node_affinity_path.field("requiredDuringSchedulingIgnoredDuringExecution");
        let terms_path = required_path.field("nodeSelectorTerms");
        let terms = match required {
            None => None,
            Some(required) => {
                if required.node_selector_terms.is_empty() {
                    return Err(terms_path.invalid_field("[]", "must contain at least one term"));
                }
                Some(read_terms(symbols, &terms_path, &required.node_selector_terms)?)
            }
        };
        Ok(Self { selector: all.into(), terms })
    }

    /// Reads a node selector, such as the required node affinity of a PersistentVolume (component-helpers
    /// `CheckNodeAffinity`).
    pub(super) fn from_selector(
        symbols: &mut Symbols,
        path: &FieldPath<'_>,
        selector: &NodeSelector,
    ) -> Result<Self, InvalidField> {
        let terms_path = path.field("nodeSelectorTerms");
        let terms = read_terms(symbols, &terms_path, &selector.node_selector_terms)?;
        Ok(Self { selector: Box::default(), terms: Some(terms) })
    }

    /// Reads `allowedTopologies` of a StorageClass. Returns `None` if the list is empty, because it then permits all
    /// hosts (component-helpers `MatchTopologySelectorTerms`).
    pub(super) fn from_topologies(
        symbols: &mut Symbols,
        path: &FieldPath<'_>,
        topologies: &[TopologySelectorTerm],
    ) -> Result<Option<Self>, InvalidField> {
        let mut terms = Vec::new();
        for (at, topology) in topologies.iter().enumerate() {
            let item_path = path.item(at);
            let expressions_path = item_path.field("matchLabelExpressions");
            let mut labels = Vec::new();
            for (at, one) in topology.match_label_expressions.iter().flatten().enumerate() {
                let requirement = NodeSelectorRequirement {
                    key: one.key.clone(),
                    operator: "In".to_owned(),
                    values: Some(one.values.clone()),
                };
                labels.push(read_node_requirement(
                    symbols,
                    &expressions_path.item(at),
                    &requirement,
                )?);
            }
            terms.extend(NodeTerm::new(labels, Vec::new()));
        }
        terms.sort_unstable();
        terms.dedup();
        let rule = Self { selector: Box::default(), terms: Some(terms.into()) };
        Ok((!topologies.is_empty()).then_some(rule))
    }

    /// Returns true if the rule has no requirements, so that every host satisfies it.
    pub(super) fn is_empty(&self) -> bool {
        self.selector.is_empty() && self.terms.is_none()
    }

    /// Returns the labels that every matching host has, because `spec.nodeSelector` requires them.
    pub(super) fn required_labels(&self) -> impl Iterator<Item = LabelPair> + '_ {
        self.selector.iter().filter_map(|one| match &one.test {
            LabelTest::In(values) => values.first().map(|value| (one.key, *value)),
            _ => None,
        })
    }

    pub(super) fn selector_matches(&self, symbols: &Symbols, labels: &Labels) -> bool {
        self.selector.iter().all(|one| one.matches(symbols, labels))
    }

    pub(super) fn matches(&self, symbols: &Symbols, name: Symbol, labels: &Labels) -> bool {
        let matches = |terms: &[NodeTerm]| terms.iter().any(|t| t.matches(symbols, name, labels));
        self.selector_matches(symbols, labels) && self.terms.as_deref().is_none_or(matches)
    }

    /// Formats the terms for messages.
    pub(super) fn terms_text(&self, symbols: &Symbols) -> String {
        let terms = self.terms.iter().flatten();
        let texts = terms.map(|term| term.to_display_text(symbols).to_string());
        texts.collect::<Vec<_>>().join(" or ")
    }
}

/// Reads the terms of a node selector. Empty terms are omitted, because they match no host.
fn read_terms(
    symbols: &mut Symbols,
    path: &FieldPath<'_>,
    terms: &[NodeSelectorTerm],
) -> Result<Box<[NodeTerm]>, InvalidField> {
    let mut all = Vec::new();
    for (at, term) in terms.iter().enumerate() {
        all.extend(NodeTerm::read(symbols, &path.item(at), term)?);
    }
    all.sort_unstable();
    all.dedup();
    Ok(all.into())
}

/// Validates and reads the preferred node affinity. Empty terms are ignored.
pub(super) fn read_preferred_terms(
    symbols: &mut Symbols,
    spec: &FieldPath<'_>,
    affinity: Option<&NodeAffinity>,
) -> Result<PreferredTerms, InvalidField> {
    let preferred = affinity.and_then(|affinity| {
        affinity.preferred_during_scheduling_ignored_during_execution.as_deref()
    });
    let affinity_path = spec.field("affinity");
    let node_affinity_path = affinity_path.field("nodeAffinity");
    let terms_path = node_affinity_path.field("preferredDuringSchedulingIgnoredDuringExecution");
    let mut terms = Vec::new();
    for (at, one) in preferred.unwrap_or_default().iter().enumerate() {
        let term_path = terms_path.item(at);
        let weight = validate_weight(&term_path, one.weight)?;
        let term = NodeTerm::read(symbols, &term_path.field("preference"), &one.preference)?;
        terms.extend(term.map(|term| (term, weight)));
    }
    terms.sort_unstable();
    Ok(terms.into())
}

/// Checks that the weight of a preferred term is between 1 and 100.
pub(super) fn validate_weight(path: &FieldPath<'_>, weight: i32) -> Result<u32, InvalidField> {
    let valid = u32::try_from(weight).ok().filter(|weight| (1..=100).contains(weight));
    valid.ok_or_else(|| path.field("weight").invalid_field(weight, "must be from 1 to 100"))
}

impl NodeTerm {
    /// Validates and reads a term; returns `None` if the term is empty.
    fn read(
        symbols: &mut Symbols,
        path: &FieldPath<'_>,
        term: &NodeSelectorTerm,
    ) -> Result<Option<Self>, InvalidField> {
        let expressions_path = path.field("matchExpressions");
        let mut labels = Vec::new();
        for (at, one) in term.match_expressions.iter().flatten().enumerate() {
            labels.push(read_node_requirement(symbols, &expressions_path.item(at), one)?);
        }
        let fields_path = path.field("matchFields");
        let mut names = Vec::new();
        for (at, one) in term.match_fields.iter().flatten().enumerate() {
            names.push(read_name_requirement(symbols, &fields_path.item(at), one)?);
        }
        Ok(Self::new(labels, names))
    }

    /// Returns a term with these requirements for labels and names; `None` if there are none.
    fn new(mut labels: Vec<Requirement>, mut names: Vec<(bool, Symbol)>) -> Option<Self> {
        labels.sort_unstable();
        labels.dedup();
        names.sort_unstable();
        names.dedup();
        let is_empty = labels.is_empty() && names.is_empty();
        (!is_empty)
            .then(|| Self { label_requirements: labels.into(), name_requirements: names.into() })
    }

    pub(super) fn matches(&self, symbols: &Symbols, name: Symbol, labels: &Labels) -> bool {
        self.label_requirements.iter().all(|one| one.matches(symbols, labels))
            && self.name_requirements.iter().all(|(is_equal, named)| (*named == name) == *is_equal)
    }

    /// Formats the term for messages.
    pub(super) fn to_display_text<'a>(&'a self, symbols: &'a Symbols) -> impl fmt::Display + 'a {
        fmt::from_fn(move |f| {
            let mut comma = "";
            for one in &self.label_requirements {
                write!(f, "{comma}{}", one.to_display_text(symbols))?;
                comma = ",";
            }
            for (is_equal, name) in &self.name_requirements {
                let sign = if *is_equal { "=" } else { "!=" };
                write!(f, "{comma}metadata.name{sign}{}", symbols.name(*name))?;
                comma = ",";
            }
            Ok(())
        })
    }
}

/// Validates and reads a requirement of `matchFields`. The only supported field is `metadata.name`, with exactly one
/// value.
fn read_name_requirement(
    symbols: &mut Symbols,
    path: &FieldPath<'_>,
    requirement: &NodeSelectorRequirement,
) -> Result<(bool, Symbol), InvalidField> {
    if requirement.key != "metadata.name" {
        let problem = "is not supported: use metadata.name";
        return Err(path.field("key").invalid_field(&requirement.key, problem));
    }
    let is_equal = match requirement.operator.as_str() {
        "In" => true,
        "NotIn" => false,
        other => return Err(path.field("operator").invalid_field(other, "must be In or NotIn")),
    };
    let values = requirement.values.as_deref().unwrap_or_default();
    let [name] = values else {
        return Err(path
            .field("values")
            .invalid_field(values.join(","), "must contain exactly one name"));
    };
    Ok((is_equal, symbols.intern(name)))
}
