//! A StorageClass in a tenant's cluster, reduced to the fields that Berth sets or compares.

use std::collections::BTreeMap;

use berth_api::names::MANAGED_BY_LABEL;
use berth_runtime::object_name::is_valid_name;
use berth_runtime::untrusted::{BoundedMap, Versioned};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::desired::{ImmutableFields, MutableFields, NAME_PREFIX};
use super::topology::{Topologies, TopologyObjects};
use crate::tenant_object::{FieldsEntry, MAX_FIELDS, TenantMetadata, printable_manager};

/// Annotation that marks the default class.
pub const DEFAULT_ANNOTATION: &str = "storageclass.kubernetes.io/is-default-class";
/// Old name of [`DEFAULT_ANNOTATION`], which Kubernetes still respects.
const BETA_DEFAULT_ANNOTATION: &str = "storageclass.beta.kubernetes.io/is-default-class";
/// Maximum size of a stored class in bytes. A class that Berth creates has less than 1 KiB.
const MAX_CLASS_BYTES: usize = 1 << 14;
/// Maximum number of parameters of a class that are read. The API server permits 512.
const MAX_PARAMETERS: usize = 1024;

/// A StorageClass in an answer of a tenant's API server. Only the fields that are needed are parsed.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClassObject {
    metadata: TenantMetadata<Fields>,
    provisioner: String,
    parameters: Option<BoundedMap<String, MAX_PARAMETERS>>,
    reclaim_policy: Option<String>,
    volume_binding_mode: Option<String>,
    allow_volume_expansion: Option<bool>,
    allowed_topologies: Option<TopologyObjects>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Fields {
    #[serde(rename = "f:metadata")]
    metadata: Option<MetadataFields>,
    #[serde(rename = "f:allowVolumeExpansion")]
    allow_volume_expansion: Option<IgnoredAny>,
    #[serde(rename = "f:allowedTopologies")]
    allowed_topologies: Option<IgnoredAny>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct MetadataFields {
    #[serde(rename = "f:annotations")]
    annotations: Option<BoundedMap<IgnoredAny, MAX_FIELDS>>,
}

impl Versioned for ClassObject {
    fn resource_version(&self) -> &str {
        &self.metadata.resource_version
    }
}

/// A mutable field of a StorageClass that Berth sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClassField {
    /// The annotation that marks the default class.
    DefaultAnnotation,
    AllowVolumeExpansion,
    AllowedTopologies,
}

impl ClassField {
    /// All variants.
    pub const ALL: [Self; 3] =
        [Self::DefaultAnnotation, Self::AllowVolumeExpansion, Self::AllowedTopologies];

    /// Returns the name of the field in messages.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::DefaultAnnotation => DEFAULT_ANNOTATION,
            Self::AllowVolumeExpansion => "allowVolumeExpansion",
            Self::AllowedTopologies => "allowedTopologies",
        }
    }
}

/// Owners of a field, according to `managedFields`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldOwners {
    /// True if Berth owns the field through an apply.
    pub is_own: bool,
    /// Another manager that owns the field; `None` if there is none.
    pub other_manager: Option<String>,
}

/// A StorageClass in a tenant's cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantClass {
    /// Name of the class, which is valid as a path segment of a URL.
    pub name: String,
    pub uid: String,
    /// True if Berth created the class, according to its label.
    pub is_managed: bool,
    /// True if the class is the default class for PersistentVolumeClaims without a class, according to
    /// [`DEFAULT_ANNOTATION`] or its old name.
    pub is_any_default: bool,
    /// Fields that cannot change.
    pub immutable: ImmutableFields,
    /// Fields that can change.
    pub mutable: MutableFields,
    /// Owners of the fields that can change.
    pub owners: BTreeMap<ClassField, FieldOwners>,
}

/// Reason why a StorageClass is not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IgnoredClassReason {
    /// The class does not concern Berth: its name is not one of Berth's, and it is not a default class.
    Irrelevant,
    /// The name is not a valid object name.
    InvalidName,
    /// The class has too many bytes.
    TooLarge,
}

impl ClassObject {
    #[must_use]
    pub fn name(&self) -> &str {
        &self.metadata.name
    }

    fn has_annotation(&self, key: &str) -> bool {
        self.metadata.annotation(key) == Some("true")
    }
}

impl TenantClass {
    /// Reads a class. `own_manager` is the field manager of Berth.
    ///
    /// # Errors
    /// Returns an error if the class is not to be stored.
    pub fn from_object(object: ClassObject, own_manager: &str) -> Result<Self, IgnoredClassReason> {
        let is_default = object.has_annotation(DEFAULT_ANNOTATION);
        let is_any_default = is_default || object.has_annotation(BETA_DEFAULT_ANNOTATION);
        let metadata = object.metadata;
        let has_prefix = metadata.name.starts_with(NAME_PREFIX);
        if !has_prefix && !is_any_default {
            return Err(IgnoredClassReason::Irrelevant);
        }
        if !is_valid_name(&metadata.name) {
            return Err(IgnoredClassReason::InvalidName);
        }
        let parameters = object.parameters.unwrap_or_default();
        let is_truncated = metadata.is_truncated() || parameters.is_truncated;
        let labels = metadata.labels.unwrap_or_default();
        let topologies = Topologies::from_objects(object.allowed_topologies.unwrap_or_default());
        let Some(topologies) = topologies.filter(|_| !is_truncated) else {
            return Err(IgnoredClassReason::TooLarge);
        };
        let label = labels.entries.get(MANAGED_BY_LABEL.0);
        let mut class = Self {
            is_managed: has_prefix && label.is_some_and(|by| by == MANAGED_BY_LABEL.1),
            name: metadata.name,
            uid: metadata.uid,
            is_any_default,
            immutable: ImmutableFields {
                provisioner: object.provisioner,
                parameters: parameters.entries,
                reclaim_policy: object.reclaim_policy.unwrap_or_default(),
                volume_binding_mode: object.volume_binding_mode.unwrap_or_default(),
            },
            mutable: MutableFields {
                is_default,
                allow_volume_expansion: object.allow_volume_expansion.unwrap_or(false),
                topologies,
            },
            owners: BTreeMap::new(),
        };
        for entry in metadata.managed_fields.unwrap_or_default().items {
            class.add_owner(&entry, own_manager);
        }
        if class.byte_count() > MAX_CLASS_BYTES {
            return Err(IgnoredClassReason::TooLarge);
        }
        Ok(class)
    }

    fn add_owner(&mut self, entry: &FieldsEntry<Fields>, own_manager: &str) {
        let Some(fields) = &entry.fields else { return };
        let annotations =
            fields.metadata.as_ref().and_then(|metadata| metadata.annotations.as_ref());
        let path = format!("f:{DEFAULT_ANNOTATION}");
        let has_annotation = annotations.is_some_and(|all| all.entries.contains_key(&path));
        let is_own = entry.is_applied_by(own_manager);
        for (field, is_owned) in [
            (ClassField::DefaultAnnotation, has_annotation),
            (ClassField::AllowVolumeExpansion, fields.allow_volume_expansion.is_some()),
            (ClassField::AllowedTopologies, fields.allowed_topologies.is_some()),
        ] {
            if !is_owned {
                continue;
            }
            let owners = self.owners.entry(field).or_default();
            if is_own {
                owners.is_own = true;
            } else if owners.other_manager.is_none() {
                owners.other_manager = Some(printable_manager(&entry.manager));
            }
        }
    }

    /// Returns the approximate size of the class in memory, in bytes.
    fn byte_count(&self) -> usize {
        let fields = &self.immutable;
        let texts = [&self.name, &self.uid, &fields.provisioner, &fields.reclaim_policy];
        let parameters = fields.parameters.iter().flat_map(|(key, value)| [key, value]);
        let texts = texts.into_iter().chain([&fields.volume_binding_mode]).chain(parameters);
        let topologies = self.mutable.topologies.byte_count();
        texts.fold(topologies, |sum, text| sum.saturating_add(text.len()).saturating_add(32))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn read(object: Value) -> Result<TenantClass, IgnoredClassReason> {
        TenantClass::from_object(serde_json::from_value(object).unwrap(), "berth-controller")
    }

    #[test]
    fn fields_have_their_owners() {
        let entry = |manager: &str, operation: &str, fields: Value| json!({"manager": manager, "operation": operation, "fieldsV1": fields});
        let annotations = json!({"f:annotations": {format!("f:{DEFAULT_ANNOTATION}"): {}}});
        let class = read(json!({
            "metadata": {
                "name": "kubevirt-fast", "uid": "u", "labels": {"app.kubernetes.io/managed-by": "berth"},
                "annotations": {DEFAULT_ANNOTATION: "true"},
                "managedFields": [
                    entry("berth-controller", "Apply", json!({"f:allowVolumeExpansion": {}, "f:metadata": {}})),
                    entry("kubectl-annotate", "Update", json!({"f:metadata": annotations})),
                ],
            },
            "provisioner": "csi.kubevirt.io", "parameters": {"infraStorageClassName": "fast"},
            "reclaimPolicy": "Delete", "volumeBindingMode": "Immediate", "allowVolumeExpansion": true,
        }))
        .unwrap();
        assert!(class.is_managed && class.is_any_default && class.mutable.is_default);
        assert!(class.mutable.allow_volume_expansion && class.mutable.topologies.is_empty());
        assert_eq!(class.immutable.parameters["infraStorageClassName"], "fast");
        let owners = |field| class.owners.get(&field).cloned().unwrap_or_default();
        let other = owners(ClassField::DefaultAnnotation);
        assert_eq!(
            (other.is_own, other.other_manager.as_deref()),
            (false, Some("kubectl-annotate"))
        );
        assert!(owners(ClassField::AllowVolumeExpansion).is_own);
        assert_eq!(owners(ClassField::AllowedTopologies), FieldOwners::default());
    }

    #[test]
    fn ignored_classes_have_a_reason() {
        let name = |name: &str| json!({"metadata": {"name": name}});
        assert_eq!(read(name("gp3")), Err(IgnoredClassReason::Irrelevant));
        assert_eq!(read(name("kubevirt-/../x")), Err(IgnoredClassReason::InvalidName));
        let default =
            json!({"metadata": {"name": "gp3", "annotations": {BETA_DEFAULT_ANNOTATION: "true"}}});
        let class = read(default).unwrap();
        assert!(class.is_any_default && !class.mutable.is_default && !class.is_managed);
        let mut large = name("kubevirt-a");
        large["parameters"] = json!({"a": "x".repeat(20_000)});
        assert_eq!(read(large), Err(IgnoredClassReason::TooLarge));
        let many: serde_json::Map<String, Value> =
            (0..2000).map(|number| (number.to_string(), json!("x"))).collect();
        let mut labelled = name("kubevirt-a");
        labelled["metadata"]["labels"] = many.into();
        assert_eq!(read(labelled), Err(IgnoredClassReason::TooLarge));
    }

    proptest! {
        #[test]
        fn any_text_gives_a_class_or_an_error(
            name in "(kubevirt-)?[a-z./-]{0,8}", manager in "\\PC{0,40}", value in "\\PC{0,20}",
        ) {
            let fields = json!({"f:allowedTopologies": value.clone()});
            drop(read(json!({
                "metadata": {"name": name, "managedFields": [{"manager": manager, "operation": "Apply", "fieldsV1": fields}]},
                "provisioner": value,
            })));
        }
    }
}
