//! Paths of fields of the spec, as they appear in faults.

use std::fmt::Display;

use crate::manifest::Fault;

/// Path of a field, as in the field errors of the API server: `spec.networks[tenant-trunk].uplink.name`.
#[derive(Debug, Clone)]
pub(super) struct FieldPath(String);

impl FieldPath {
    /// Returns the path of a field of the spec.
    pub(super) fn spec(field: &str) -> Self {
        Self(format!("spec.{field}"))
    }

    /// Returns the path of a field of this object.
    pub(super) fn child(&self, field: &str) -> Self {
        Self(format!("{}.{field}", self.0))
    }

    /// Returns the path of an element of this list, by its key or its index.
    pub(super) fn item(&self, key: impl Display) -> Self {
        Self(format!("{}[{key}]", self.0))
    }

    /// Returns a fault of this field with this value.
    pub(super) fn fault(&self, value: impl Display, message: impl Into<String>) -> Fault {
        Fault::new(self.0.as_str(), value, message)
    }
}
