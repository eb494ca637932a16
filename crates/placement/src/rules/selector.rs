//! Label selectors of pods and namespaces, and their requirements.

use std::fmt;

use k8s_openapi::api::core::v1::NodeSelectorRequirement;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

use super::field_path::{FieldPath, InvalidField, validate_label_key, validate_label_value};
use super::symbols::{Labels, Symbol, Symbols};

/// A test of a label's value (apimachinery `labels.Requirement.Matches`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum LabelTest {
    /// The label has one of these values. They are sorted and without duplicates.
    In(Box<[Symbol]>),
    /// The label has none of these values, or the object lacks the label.
    NotIn(Box<[Symbol]>),
    Exists,
    Absent,
    GreaterThan(i64),
    LessThan(i64),
}

/// A label key and the test of its value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Requirement {
    pub(super) key: Symbol,
    pub(super) test: LabelTest,
}

impl Requirement {
    pub(super) fn equals(key: Symbol, value: Symbol) -> Self {
        Self { key, test: LabelTest::In([value].into()) }
    }

    pub(super) fn not_equals(key: Symbol, value: Symbol) -> Self {
        Self { key, test: LabelTest::NotIn([value].into()) }
    }

    pub(super) fn matches(&self, symbols: &Symbols, labels: &Labels) -> bool {
        let value = labels.get(self.key);
        let integer_value = || value.and_then(|value| symbols.integer_value(value));
        match &self.test {
            LabelTest::In(values) => value.is_some_and(|value| values.contains(&value)),
            LabelTest::NotIn(values) => value.is_none_or(|value| !values.contains(&value)),
            LabelTest::Exists => value.is_some(),
            LabelTest::Absent => value.is_none(),
            LabelTest::GreaterThan(bound) => integer_value().is_some_and(|number| number > *bound),
            LabelTest::LessThan(bound) => integer_value().is_some_and(|number| number < *bound),
        }
    }

    /// Formats the requirement as `kubectl get --selector` does.
    pub(super) fn to_display_text<'a>(&'a self, symbols: &'a Symbols) -> impl fmt::Display + 'a {
        fmt::from_fn(move |f| {
            let key = symbols.name(self.key);
            let list = |values: &[Symbol]| {
                let names: Vec<&str> = values.iter().map(|value| symbols.name(*value)).collect();
                names.join(",")
            };
            match &self.test {
                LabelTest::In(values) => match &**values {
                    [one] => write!(f, "{key}={}", symbols.name(*one)),
                    _ => write!(f, "{key} in ({})", list(values)),
                },
                LabelTest::NotIn(values) => match &**values {
                    [one] => write!(f, "{key}!={}", symbols.name(*one)),
                    _ => write!(f, "{key} notin ({})", list(values)),
                },
                LabelTest::Exists => f.write_str(key),
                LabelTest::Absent => write!(f, "!{key}"),
                LabelTest::GreaterThan(bound) => write!(f, "{key}>{bound}"),
                LabelTest::LessThan(bound) => write!(f, "{key}<{bound}"),
            }
        })
    }
}

/// Selects objects by their labels.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Selector {
    /// Selects no object. An absent selector is converted to this value (`metav1.LabelSelectorAsSelector` of nil).
    Nothing,
    /// Selects the objects that match all these requirements. They are sorted and without duplicates. Without
    /// requirements, selects every object.
    All(Box<[Requirement]>),
}

impl Selector {
    /// Validates and reads a selector, and adds `own_label_requirements`, the requirements for the pod's own labels
    /// that `matchLabelKeys` and similar fields define. The requirements are merged as in the API server
    /// (`registry/core/pod`, `applyLabelKeysToLabelSelector`), so that an object that the API server has already
    /// processed compiles to the same selector. An absent selector stays absent.
    pub(super) fn read(
        symbols: &mut Symbols,
        field: &FieldPath<'_>,
        selector: Option<&LabelSelector>,
        own_label_requirements: impl IntoIterator<Item = Requirement>,
    ) -> Result<Self, InvalidField> {
        let Some(selector) = selector else { return Ok(Self::Nothing) };
        let mut all: Vec<Requirement> = own_label_requirements.into_iter().collect();
        let labels_path = field.field("matchLabels");
        for (key, value) in selector.match_labels.iter().flatten() {
            validate_label_key(&labels_path, key)?;
            validate_label_value(&labels_path.field(key), value)?;
            all.push(Requirement::equals(symbols.intern(key), symbols.intern(value)));
        }
        let expressions_path = field.field("matchExpressions");
        for (at, one) in selector.match_expressions.iter().flatten().enumerate() {
            all.push(read_label_requirement(symbols, &expressions_path.item(at), one)?);
        }
        Ok(Self::from_requirements(all))
    }

    pub(super) fn from_requirements(mut requirements: Vec<Requirement>) -> Self {
        requirements.sort_unstable();
        requirements.dedup();
        Self::All(requirements.into())
    }

    /// Returns true if the selector matches every object. Spread constraints with such a selector count no pods.
    pub(super) fn matches_everything(&self) -> bool {
        matches!(self, Self::All(requirements) if requirements.is_empty())
    }

    pub(super) fn requirements(&self) -> &[Requirement] {
        match self {
            Self::Nothing => &[],
            Self::All(requirements) => requirements,
        }
    }

    pub(super) fn matches(&self, symbols: &Symbols, labels: &Labels) -> bool {
        match self {
            Self::Nothing => false,
            Self::All(requirements) => requirements.iter().all(|one| one.matches(symbols, labels)),
        }
    }

    /// Formats the selector for messages.
    pub(super) fn to_display_text<'a>(&'a self, symbols: &'a Symbols) -> impl fmt::Display + 'a {
        fmt::from_fn(move |f| match self {
            Self::Nothing => f.write_str("nothing"),
            Self::All(all) if all.is_empty() => f.write_str("everything"),
            Self::All(all) => {
                for (at, one) in all.iter().enumerate() {
                    let comma = if at > 0 { "," } else { "" };
                    write!(f, "{comma}{}", one.to_display_text(symbols))?;
                }
                Ok(())
            }
        })
    }
}

/// Validates and reads a requirement of a label selector.
fn read_label_requirement(
    symbols: &mut Symbols,
    path: &FieldPath<'_>,
    source: &LabelSelectorRequirement,
) -> Result<Requirement, InvalidField> {
    let values = source.values.as_deref().unwrap_or_default();
    if matches!(source.operator.as_str(), "Gt" | "Lt") {
        let problem = "is supported only in node selectors";
        return Err(path.field("operator").invalid_field(&source.operator, problem));
    }
    validate_requirement(symbols, path, &source.key, &source.operator, values)
}

/// Validates and reads a requirement of a node selector term's `matchExpressions`.
pub(super) fn read_node_requirement(
    symbols: &mut Symbols,
    path: &FieldPath<'_>,
    source: &NodeSelectorRequirement,
) -> Result<Requirement, InvalidField> {
    let values = source.values.as_deref().unwrap_or_default();
    validate_requirement(symbols, path, &source.key, &source.operator, values)
}

/// Validates a requirement according to apimachinery's `labels.NewRequirement`.
fn validate_requirement(
    symbols: &mut Symbols,
    path: &FieldPath<'_>,
    key: &str,
    operator: &str,
    values: &[String],
) -> Result<Requirement, InvalidField> {
    validate_label_key(&path.field("key"), key)?;
    let values_path = path.field("values");
    let joined_values = || values.join(",");
    let mut intern_values = || {
        let mut all = Vec::with_capacity(values.len());
        for (at, value) in values.iter().enumerate() {
            validate_label_value(&values_path.item(at), value)?;
            all.push(symbols.intern(value));
        }
        all.sort_unstable();
        all.dedup();
        Ok(all.into_boxed_slice())
    };
    let test = match operator {
        "In" | "NotIn" if values.is_empty() => {
            return Err(values_path
                .invalid_field("", format!("must not be empty with operator {operator}")));
        }
        "In" => LabelTest::In(intern_values()?),
        "NotIn" => LabelTest::NotIn(intern_values()?),
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            return Err(values_path.invalid_field(
                joined_values(),
                format!("must be empty with operator {operator}"),
            ));
        }
        "Exists" => LabelTest::Exists,
        "DoesNotExist" => LabelTest::Absent,
        "Gt" | "Lt" => {
            let [value] = values else {
                return Err(values_path.invalid_field(
                    joined_values(),
                    format!("must be one integer with operator {operator}"),
                ));
            };
            validate_label_value(&values_path.item(0), value)?;
            let bound = value
                .parse()
                .map_err(|_| values_path.item(0).invalid_field(value, "must be an integer"))?;
            if operator == "Gt" {
                LabelTest::GreaterThan(bound)
            } else {
                LabelTest::LessThan(bound)
            }
        }
        _ => {
            let problem = "must be one of In, NotIn, Exists, DoesNotExist, Gt, Lt";
            return Err(path.field("operator").invalid_field(operator, problem));
        }
    };
    Ok(Requirement { key: symbols.intern(key), test })
}
