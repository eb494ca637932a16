//! Strict parser of a providerSpec, as in machine-controller: unknown fields are errors, field names are compared
//! case-insensitively (as Go's encoding/json does), and values may be references to Secrets and ConfigMaps.
//!
//! The parser collects all problems with their paths, and continues with the valid fields. A value from a Secret
//! becomes a [`ConfigVar`], which messages redact.

use std::cell::{Cell, RefCell};

use berth_api::Problem;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::config_var::{ConfigVar, Redacted};
use super::json_value::{is_set, to_plain_string};
use super::references::{EntryReference, ReferenceResolver, ReferenceScope};

/// State that the parsers of all fields of one MachineDeployment share.
pub(super) struct ProblemReporter<'a> {
    /// Kind, namespace and name of the object, for messages.
    pub(super) object: String,
    pub(super) resolver: &'a dyn ReferenceResolver,
    /// Restricts the Secrets and ConfigMaps to which the object may refer.
    pub(super) scope: ReferenceScope<'a>,
    /// True if at least one value came from a Secret.
    pub(super) has_secrets: Cell<bool>,
    pub(super) problems: RefCell<Vec<Problem>>,
}

impl ProblemReporter<'_> {
    /// Reports an invalid field. No machines are created from an object with invalid fields.
    pub(super) fn report_error(
        &self,
        path: &str,
        value: &(impl Redacted + ?Sized),
        message: impl Into<String>,
    ) {
        let problem = Problem::new(&self.object, path, value.redacted(), message);
        self.problems.borrow_mut().push(problem.into_fatal("no machine is created"));
    }

    /// Reports a problem that does not prevent rendering.
    pub(super) fn report_warning(
        &self,
        path: &str,
        value: &(impl Redacted + ?Sized),
        message: impl Into<String>,
    ) {
        self.problems.borrow_mut().push(Problem::new(
            &self.object,
            path,
            value.redacted(),
            message,
        ));
    }
}

/// The fields of a JSON object that have not been read yet. The methods that read a field remove it.
pub(super) struct UnreadFields<'a> {
    reporter: &'a ProblemReporter<'a>,
    path: String,
    unread: Map<String, Value>,
}

impl<'a> UnreadFields<'a> {
    /// Reads the fields of an object. `null` counts as an object without fields; a value of another type is reported.
    pub(super) fn new(value: Value, path: &str, reporter: &'a ProblemReporter<'a>) -> Self {
        let map = match value {
            Value::Object(map) => map,
            Value::Null => Map::new(),
            other => {
                reporter.report_error(path, &to_plain_string(&other), "must be an object");
                Map::new()
            }
        };
        Self { reporter, path: path.to_owned(), unread: map }
    }

    /// Returns the path of a field.
    pub(super) fn field_path(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// Reports an invalid field of this object.
    pub(super) fn report_error(
        &self,
        name: &str,
        value: &(impl Redacted + ?Sized),
        message: impl Into<String>,
    ) {
        self.reporter.report_error(&self.field_path(name), value, message);
    }

    /// Removes a field that Berth does not support, and reports the field if it is set.
    pub(super) fn skip_unsupported(&mut self, name: &str, hint: &str) {
        if let Some(value) = self.take_field(name).filter(is_set) {
            self.reporter.report_warning(
                &self.field_path(name),
                &to_plain_string(&value),
                format!("is not supported{hint}"),
            );
        }
    }

    /// Removes and returns the field with exactly this name, or else with this name in another case. `null` counts as
    /// absent.
    pub(super) fn take_field(&mut self, name: &str) -> Option<Value> {
        let key = if self.unread.contains_key(name) {
            name.to_owned()
        } else {
            self.unread.keys().find(|key| key.eq_ignore_ascii_case(name))?.clone()
        };
        self.unread.remove(&key).filter(|value| !value.is_null())
    }

    /// Returns the path of the object.
    pub(super) fn path(&self) -> String {
        self.path.clone()
    }

    /// Removes and returns the fields with these names, unparsed.
    pub(super) fn take_fields(&mut self, names: &[&str]) -> Map<String, Value> {
        let each = names.iter().map(|name| ((*name).to_owned(), self.take_field(name)));
        each.filter_map(|(name, value)| Some((name, value?))).collect()
    }

    /// Returns true if a field is present and not `null`.
    pub(super) fn has_field(&self, name: &str) -> bool {
        let matches =
            |(key, value): (&String, &Value)| key.eq_ignore_ascii_case(name) && !value.is_null();
        self.unread.iter().any(matches)
    }

    /// Reads a field that is an object. An absent field counts as an object without fields.
    pub(super) fn read_object(&mut self, name: &str) -> Self {
        let path = self.field_path(name);
        Self::new(self.take_field(name).unwrap_or_default(), &path, self.reporter)
    }

    /// Reads a field that is a list of objects.
    pub(super) fn read_objects(&mut self, name: &str) -> Vec<Self> {
        let values = self.read_list(name);
        let each = values.into_iter().map(|(path, value)| Self::new(value, &path, self.reporter));
        each.collect()
    }

    fn read_list(&mut self, name: &str) -> Vec<(String, Value)> {
        let path = self.field_path(name);
        match self.take_field(name) {
            None => Vec::new(),
            Some(Value::Array(items)) => {
                let each = items.into_iter().enumerate();
                each.map(|(at, value)| (format!("{path}[{at}]"), value)).collect()
            }
            Some(other) => {
                self.reporter.report_error(&path, &to_plain_string(&other), "must be a list");
                Vec::new()
            }
        }
    }

    /// Reads a field that is a string; returns an empty string if the field is absent or invalid.
    pub(super) fn read_text(&mut self, name: &str) -> String {
        match self.take_field(name) {
            None => String::new(),
            Some(Value::String(text)) => text,
            Some(other) => {
                self.report_error(
                    name,
                    &to_plain_string(&other),
                    "must be a string: put it in quotes",
                );
                String::new()
            }
        }
    }

    /// Reads a field that is a list of strings.
    pub(super) fn read_texts(&mut self, name: &str) -> Vec<String> {
        let mut texts = Vec::new();
        for (path, value) in self.read_list(name) {
            match value {
                Value::String(text) => texts.push(text),
                other => {
                    self.reporter.report_error(&path, &to_plain_string(&other), "must be a string")
                }
            }
        }
        texts
    }

    /// Reads a field that is an unsigned integer.
    pub(super) fn read_number(&mut self, name: &str) -> u32 {
        let Some(value) = self.take_field(name) else { return 0 };
        let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
        number.unwrap_or_else(|| {
            self.report_error(
                name,
                &to_plain_string(&value),
                "must be an integer from 0 to 4294967295",
            );
            0
        })
    }

    /// Reads a field of the Kubernetes API type `T`. Returns the unparsed value if it can be parsed as `T`.
    pub(super) fn take_typed_field<T: DeserializeOwned>(&mut self, name: &str) -> Option<Value> {
        let value = self.take_field(name)?;
        match serde_path_to_error::deserialize::<_, T>(value.clone()) {
            Ok(_) => Some(value),
            Err(error) => {
                let path = format!("{}.{}", self.field_path(name), error.path());
                self.reporter.report_error(&path, "", error.inner().to_string());
                None
            }
        }
    }

    /// Reads a `ConfigVarString`: a scalar, or an object that contains the value or a reference to it. Returns an empty
    /// value if the field is absent.
    pub(super) fn read_variable(&mut self, name: &str) -> ConfigVar {
        let path = self.field_path(name);
        self.take_field(name)
            .map_or_else(ConfigVar::default, |value| self.reporter.resolve_variable(&path, value))
    }

    /// Reads a field that is a list of values of type `ConfigVarString`.
    pub(super) fn read_variables(&mut self, name: &str) -> Vec<ConfigVar> {
        let values = self.read_list(name);
        values
            .into_iter()
            .map(|(path, value)| self.reporter.resolve_variable(&path, value))
            .collect()
    }

    /// Reads a `ConfigVarBool`; returns `None` if the field is absent.
    pub(super) fn read_flag(&mut self, name: &str) -> Option<bool> {
        let text = self.read_variable(name);
        match &*text {
            "" | "null" => None,
            "true" | "True" | "TRUE" | "t" | "T" | "1" => Some(true),
            "false" | "False" | "FALSE" | "f" | "F" | "0" => Some(false),
            _ => {
                self.report_error(name, &text, "must be true or false");
                None
            }
        }
    }

    /// Reports all fields that have not been read as unknown fields. `known` are the names of valid fields, for
    /// suggestions.
    pub(super) fn report_unknown_fields(self, known: &[&str]) {
        for (key, value) in &self.unread {
            let message = match closest_name(key, known) {
                Some(closest) => format!("unknown field; did you mean `{closest}`?"),
                None => "unknown field".to_owned(),
            };
            self.report_error(key, &to_plain_string(value), message);
        }
    }
}

impl ProblemReporter<'_> {
    fn resolve_variable(&self, path: &str, value: Value) -> ConfigVar {
        let Value::Object(map) = value else {
            return to_plain_string(&value).into();
        };
        let text = |map: &Map<String, Value>, name: &str| {
            let found = map.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
            found.and_then(|(_, value)| value.as_str()).unwrap_or_default().to_owned()
        };
        for (field, kind) in [("secretKeyRef", "Secret"), ("configMapKeyRef", "ConfigMap")] {
            let found = map.iter().find(|(key, _)| key.eq_ignore_ascii_case(field));
            let Some(Value::Object(reference_fields)) = found.map(|(_, value)| value) else {
                continue;
            };
            let reference = EntryReference {
                kind,
                namespace: text(reference_fields, "namespace"),
                name: text(reference_fields, "name"),
                key: text(reference_fields, "key"),
            };
            // Like machine-controller, Berth ignores references without namespace, name or key.
            if [&reference.namespace, &reference.name, &reference.key].iter().any(|t| t.is_empty())
            {
                continue;
            }
            let reference_path = format!("{path}.{field}");
            if !self.scope.is_permitted(&reference.namespace, &reference.name) {
                let referenced_object = format!("{}/{}", reference.namespace, reference.name);
                self.report_error(
                    &reference_path,
                    &referenced_object,
                    self.scope.not_permitted_message(),
                );
                return ConfigVar::default();
            }
            return match self.resolver.resolve(&reference) {
                Ok(value) if kind == "Secret" => {
                    self.has_secrets.set(true);
                    ConfigVar::from_secret(value)
                }
                Ok(value) => value.into(),
                Err(error) => {
                    self.report_error(&reference_path, "", error.to_string());
                    ConfigVar::default()
                }
            };
        }
        let found = map.iter().find(|(key, _)| key.eq_ignore_ascii_case("value"));
        found.map_or_else(ConfigVar::default, |(_, value)| match value {
            Value::Null => ConfigVar::default(),
            other => to_plain_string(other).into(),
        })
    }
}

/// Returns the name in `known` with the smallest edit distance to `key`, if this distance is at most 2.
fn closest_name<'k>(key: &str, known: &[&'k str]) -> Option<&'k str> {
    let lower = key.to_lowercase();
    let distance = |name: &str| {
        let name: Vec<char> = name.to_lowercase().chars().collect();
        let mut row: Vec<usize> = (0..=name.len()).collect();
        for (row_index, letter) in lower.chars().enumerate() {
            let mut diagonal = std::mem::replace(&mut row[0], row_index + 1);
            for column in 0..name.len() {
                let above = row[column + 1];
                let substitution = diagonal + usize::from(name[column] != letter);
                row[column + 1] = substitution.min(above + 1).min(row[column] + 1);
                diagonal = above;
            }
        }
        row[name.len()]
    };
    // A string of 40 or more characters is not compared: it is hardly a misspelled field name.
    (lower.len() < 40).then_some(())?;
    let closest = known.iter().map(|name| (distance(name), *name)).min()?;
    (closest.0 <= 2).then_some(closest.1)
}
