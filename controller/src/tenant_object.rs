//! Metadata of an object in a tenant's cluster. All its parts have limits, because a tenant controls its API server, so
//! that all texts may be hostile.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use berth_runtime::untrusted::{BoundedMap, BoundedVec};
use serde::Deserialize;

/// Maximum number of labels, and of annotations, of an object that are read.
pub(crate) const MAX_FIELDS: usize = 1024;
/// Maximum number of entries of `managedFields` that are read. The API server stores at most ten entries of the
/// operation `Update`.
pub(crate) const MAX_MANAGERS: usize = 128;
/// Maximum number of characters of a field manager's name in messages.
pub(crate) const MAX_MANAGER_LENGTH: usize = 64;
/// Text in messages for a field manager whose name is not known.
pub(crate) const UNKNOWN_MANAGER: &str = "an unknown manager";

/// Metadata of an object in an answer of a tenant's API server. `F`: the part of `fieldsV1` that Berth parses.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", bound(deserialize = "F: Deserialize<'de> + Default"))]
pub(crate) struct TenantMetadata<F> {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) resource_version: String,
    pub(crate) labels: Option<BoundedMap<String, MAX_FIELDS>>,
    pub(crate) annotations: Option<BoundedMap<String, MAX_FIELDS>>,
    pub(crate) managed_fields: Option<BoundedVec<FieldsEntry<F>, MAX_MANAGERS>>,
}

/// Fields that one manager owns.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, bound(deserialize = "F: Deserialize<'de> + Default"))]
pub(crate) struct FieldsEntry<F> {
    pub(crate) manager: String,
    operation: String,
    subresource: String,
    #[serde(rename = "fieldsV1")]
    pub(crate) fields: Option<F>,
}

impl<F> TenantMetadata<F> {
    /// Returns the value of an annotation.
    pub(crate) fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.as_ref()?.entries.get(key).map(String::as_str)
    }

    /// Returns true if the object has more labels, annotations or entries of `managedFields` than are read.
    pub(crate) fn is_truncated(&self) -> bool {
        let mut fields = [&self.labels, &self.annotations].into_iter().flatten();
        fields.any(|fields| fields.is_truncated)
            || self.managed_fields.as_ref().is_some_and(|managers| managers.is_truncated)
    }
}

impl<F> FieldsEntry<F> {
    /// Returns true if `manager` owns these fields through a server-side apply of the object itself, not of a
    /// subresource.
    pub(crate) fn is_applied_by(&self, manager: &str) -> bool {
        self.manager == manager && self.operation == "Apply" && self.subresource.is_empty()
    }
}

/// Returns the part of a field manager's name that can be shown in messages.
pub(crate) fn printable_manager(manager: &str) -> String {
    let shown = manager.chars().filter(char::is_ascii_graphic).take(MAX_MANAGER_LENGTH).collect();
    if manager.is_empty() { UNKNOWN_MANAGER.to_owned() } else { shown }
}

/// Returns the hash of a name. Omitted objects are counted by these hashes, so that their names need not be stored.
pub(crate) fn name_hash(name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}
