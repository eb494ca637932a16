//! Strict reader of a providerSpec, as machine-controller reads it: fields that nobody knows are errors, names match
//! without regard to case (encoding/json of Go), values may be references to Secrets and ConfigMaps.
//!
//! All that is wrong is gathered, each with its path; reader goes on with what is right. What comes from a Secret is a
//! [`ConfigVar`] that no message shows.

use std::cell::{Cell, RefCell};

use berth_api::Problem;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::config_var::{ConfigVar, Redacted};
use super::references::{Reference, Resolve, Scope};
use super::unsupported::is_set;

/// What all fields of one object share.
pub(super) struct Reader<'a> {
    /// How the object is called in messages.
    pub(super) object: String,
    pub(super) values: &'a dyn Resolve,
    /// What it may refer to.
    pub(super) scope: Scope<'a>,
    /// Whether a value came from a Secret.
    pub(super) has_secrets: Cell<bool>,
    pub(super) problems: RefCell<Vec<Problem>>,
}

impl Reader<'_> {
    /// Something is wrong with a field.
    pub(super) fn error(
        &self,
        path: &str,
        value: &(impl Redacted + ?Sized),
        message: impl Into<String>,
    ) {
        let problem = Problem::new(&self.object, path, value.redacted(), message);
        self.problems.borrow_mut().push(problem.leaves_out("nothing is made of it"));
    }

    /// Something that is worth a word, and no more.
    pub(super) fn warn(
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

/// The fields of one JSON object.
pub(super) struct Fields<'a> {
    reader: &'a Reader<'a>,
    path: String,
    map: Map<String, Value>,
}

impl<'a> Fields<'a> {
    /// Of a value that should be an object; `null` has no fields.
    pub(super) fn new(value: Value, path: &str, reader: &'a Reader<'a>) -> Self {
        let map = match value {
            Value::Object(map) => map,
            Value::Null => Map::new(),
            other => {
                reader.error(path, &plain(&other), "is not an object");
                Map::new()
            }
        };
        Self { reader, path: path.to_owned(), map }
    }

    /// The path of one of them.
    pub(super) fn at(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// Something is wrong with one of them.
    pub(super) fn error(
        &self,
        name: &str,
        value: &(impl Redacted + ?Sized),
        message: impl Into<String>,
    ) {
        self.reader.error(&self.at(name), value, message);
    }

    /// Takes a field that is known and not carried out, and names it if it says anything.
    pub(super) fn ignore(&mut self, name: &str, why: &str) {
        if let Some(value) = self.take(name).filter(is_set) {
            self.reader.warn(&self.at(name), &plain(&value), format!("is not carried out{why}"));
        }
    }

    /// Takes a field: by its name, else by its name in other cases. `null` is absent.
    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        let key = if self.map.contains_key(name) {
            name.to_owned()
        } else {
            self.map.keys().find(|key| key.eq_ignore_ascii_case(name))?.clone()
        };
        self.map.remove(&key).filter(|value| !value.is_null())
    }

    /// The path of all of them.
    pub(super) fn path(&self) -> String {
        self.path.clone()
    }

    /// Takes some of them as they stand.
    pub(super) fn subset(&mut self, names: &[&str]) -> Map<String, Value> {
        let each = names.iter().map(|name| ((*name).to_owned(), self.take(name)));
        each.filter_map(|(name, value)| Some((name, value?))).collect()
    }

    /// Whether it is there, with anything but `null`.
    pub(super) fn has(&self, name: &str) -> bool {
        let is_it =
            |(key, value): (&String, &Value)| key.eq_ignore_ascii_case(name) && !value.is_null();
        self.map.iter().any(is_it)
    }

    /// A field that is an object; without fields if it is absent.
    pub(super) fn object(&mut self, name: &str) -> Self {
        let path = self.at(name);
        Self::new(self.take(name).unwrap_or_default(), &path, self.reader)
    }

    /// A field that is a list of objects.
    pub(super) fn objects(&mut self, name: &str) -> Vec<Self> {
        let values = self.list(name);
        let each = values.into_iter().map(|(path, value)| Self::new(value, &path, self.reader));
        each.collect()
    }

    fn list(&mut self, name: &str) -> Vec<(String, Value)> {
        let path = self.at(name);
        match self.take(name) {
            None => Vec::new(),
            Some(Value::Array(items)) => {
                let each = items.into_iter().enumerate();
                each.map(|(at, value)| (format!("{path}[{at}]"), value)).collect()
            }
            Some(other) => {
                self.reader.error(&path, &plain(&other), "is not a list");
                Vec::new()
            }
        }
    }

    /// A plain text.
    pub(super) fn text(&mut self, name: &str) -> String {
        match self.take(name) {
            None => String::new(),
            Some(Value::String(text)) => text,
            Some(other) => {
                self.error(name, &plain(&other), "is not a text: put it in quotes");
                String::new()
            }
        }
    }

    /// Plain texts.
    pub(super) fn texts(&mut self, name: &str) -> Vec<String> {
        let mut texts = Vec::new();
        for (path, value) in self.list(name) {
            match value {
                Value::String(text) => texts.push(text),
                other => self.reader.error(&path, &plain(&other), "is not a text"),
            }
        }
        texts
    }

    /// A whole number that is not negative.
    pub(super) fn number(&mut self, name: &str) -> u32 {
        let Some(value) = self.take(name) else { return 0 };
        let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
        number.unwrap_or_else(|| {
            self.error(name, &plain(&value), "is not a whole number from 0 to 4294967295");
            0
        })
    }

    /// Any type that Kubernetes reads with its own names, copied as it stands if it makes sense.
    pub(super) fn typed<T: DeserializeOwned>(&mut self, name: &str) -> Option<Value> {
        let value = self.take(name)?;
        match serde_path_to_error::deserialize::<_, T>(value.clone()) {
            Ok(_) => Some(value),
            Err(error) => {
                let path = format!("{}.{}", self.at(name), error.path());
                self.reader.error(&path, "", error.inner().to_string());
                None
            }
        }
    }

    /// A `ConfigVarString`: a scalar, or an object with a value or a reference. Empty if it is absent.
    pub(super) fn variable(&mut self, name: &str) -> ConfigVar {
        let path = self.at(name);
        self.take(name).map_or_else(ConfigVar::default, |value| self.reader.variable(&path, value))
    }

    /// Several of them.
    pub(super) fn variables(&mut self, name: &str) -> Vec<ConfigVar> {
        let values = self.list(name);
        values.into_iter().map(|(path, value)| self.reader.variable(&path, value)).collect()
    }

    /// A `ConfigVarBool`.
    pub(super) fn flag(&mut self, name: &str) -> Option<bool> {
        let text = self.variable(name);
        match &*text {
            "" | "null" => None,
            "true" | "True" | "TRUE" | "t" | "T" | "1" => Some(true),
            "false" | "False" | "FALSE" | "f" | "F" | "0" => Some(false),
            _ => {
                self.error(name, &text, "is neither true nor false");
                None
            }
        }
    }

    /// Whatever has not been taken is unknown. `known` are the names that would have been right.
    pub(super) fn finish(self, known: &[&str]) {
        for (key, value) in &self.map {
            let message = match nearest(key, known) {
                Some(near) => format!("there is no such field; is `{near}` meant?"),
                None => "there is no such field".to_owned(),
            };
            self.error(key, &plain(value), message);
        }
    }
}

impl Reader<'_> {
    fn variable(&self, path: &str, value: Value) -> ConfigVar {
        let Value::Object(map) = value else {
            return plain(&value).into();
        };
        let text = |map: &Map<String, Value>, name: &str| {
            let found = map.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
            found.and_then(|(_, value)| value.as_str()).unwrap_or_default().to_owned()
        };
        for (field, kind) in [("secretKeyRef", "Secret"), ("configMapKeyRef", "ConfigMap")] {
            let found = map.iter().find(|(key, _)| key.eq_ignore_ascii_case(field));
            let Some(Value::Object(refers)) = found.map(|(_, value)| value) else { continue };
            let reference = Reference {
                kind,
                namespace: text(refers, "namespace"),
                name: text(refers, "name"),
                key: text(refers, "key"),
            };
            // One that is not whole does not count, as in machine-controller.
            if [&reference.namespace, &reference.name, &reference.key].iter().any(|t| t.is_empty())
            {
                continue;
            }
            let at = format!("{path}.{field}");
            if !self.scope.permits(&reference.namespace, &reference.name) {
                let place = format!("{}/{}", reference.namespace, reference.name);
                self.error(&at, &place, self.scope.refusal());
                return ConfigVar::default();
            }
            return match self.values.resolve(&reference) {
                Ok(value) if kind == "Secret" => {
                    self.has_secrets.set(true);
                    ConfigVar::secret(value)
                }
                Ok(value) => value.into(),
                Err(why) => {
                    self.error(&at, "", why);
                    ConfigVar::default()
                }
            };
        }
        let found = map.iter().find(|(key, _)| key.eq_ignore_ascii_case("value"));
        found.map_or_else(ConfigVar::default, |(_, value)| match value {
            Value::Null => ConfigVar::default(),
            other => plain(other).into(),
        })
    }
}

/// A scalar as its text; anything else as JSON.
pub(super) fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// A known name that differs by two letters at most.
fn nearest<'k>(key: &str, known: &[&'k str]) -> Option<&'k str> {
    let lower = key.to_lowercase();
    let distance = |name: &str| {
        let name: Vec<char> = name.to_lowercase().chars().collect();
        let mut row: Vec<usize> = (0..=name.len()).collect();
        for (at, letter) in lower.chars().enumerate() {
            let mut before = std::mem::replace(&mut row[0], at + 1);
            for column in 0..name.len() {
                let here = row[column + 1];
                let other = before + usize::from(name[column] != letter);
                row[column + 1] = other.min(here + 1).min(row[column] + 1);
                before = here;
            }
        }
        row[name.len()]
    };
    // A long text is no misspelling of anything.
    (lower.len() < 40).then_some(())?;
    let near = known.iter().map(|name| (distance(name), *name)).min()?;
    (near.0 <= 2).then_some(near.1)
}
