//! Plan for the StorageClasses in a tenant's cluster: the changes, and the classes and fields that are not changed.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::names::MANAGED_BY_LABEL;
use serde_json::{Value, json};

use super::class::{ClassField, DEFAULT_ANNOTATION, TenantClass};
use super::desired::{
    DesiredClass, DesiredClasses, INFRA_CLASS_PARAMETER, ImmutableFields, MutableFields,
};

/// Server-side apply of a StorageClass, which creates or changes the class. There are no other changes: Berth deletes
/// no class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassChange {
    pub name: String,
    /// UID of the class: the apply must not affect a later class of the same name. `None` if the class does not exist.
    pub uid: Option<String>,
    immutable: ImmutableFields,
    mutable: MutableFields,
    /// Those fields of `mutable` that Berth owns after the apply.
    fields: BTreeSet<ClassField>,
}

/// A field that Berth does not set, because another manager owns it with another value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassFieldConflict {
    /// Name of the class.
    pub class: String,
    pub field: ClassField,
    /// Manager that owns the field.
    pub manager: String,
}

/// Plan for the StorageClasses of a tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassPlan {
    /// Changes that are needed.
    pub changes: Vec<ClassChange>,
    /// Number of desired classes that exist, or will exist after the changes.
    pub class_count: usize,
    /// Classes whose immutable fields differ from the desired ones, with the names of these fields.
    pub immutable: Vec<(String, Vec<&'static str>)>,
    /// Classes with the name of a desired class that Berth did not create, and that use another driver or another class
    /// of the infra cluster.
    pub not_owned: Vec<String>,
    /// Classes that Berth created, but that tenants may not use any more.
    pub retained: Vec<String>,
    /// Fields that are not changed, because other managers own them.
    pub conflicts: Vec<ClassFieldConflict>,
    /// Conflict between a desired default class and the tenant's own default class.
    pub default_conflict: Option<DefaultConflict>,
}

/// A desired class that is not the default class, because the tenant has its own default class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefaultConflict {
    /// Name of the class that should be the default class.
    pub desired: String,
    /// Name of the tenant's own default class, which stays the default class.
    pub existing: String,
}

/// Computes the changes to the classes in a tenant's cluster.
///
/// If the tenant has its own default class, Berth makes no other class the default: with two default classes, API
/// servers before 1.26 refuse PersistentVolumeClaims without a class.
#[must_use]
pub fn plan_classes(desired: &DesiredClasses, actual: &BTreeMap<String, TenantClass>) -> ClassPlan {
    let mut plan = ClassPlan::default();
    let is_foreign_default = |class: &&TenantClass| !class.is_managed && class.is_any_default;
    let foreign_default = actual.values().find(is_foreign_default).map(|class| &class.name);
    for (name, class) in &desired.classes {
        let mut class = class.clone();
        if let Some(other) = foreign_default.filter(|_| class.mutable.is_default) {
            class.mutable.is_default = false;
            if other != name {
                let (desired, existing) = (name.clone(), other.clone());
                plan.default_conflict = Some(DefaultConflict { desired, existing });
            }
        }
        match actual.get(name) {
            None => plan.create(name, class),
            Some(known) if known.is_managed => plan.update(&class, known),
            Some(known) if is_same_storage(&class.immutable, &known.immutable) => {
                plan.class_count = plan.class_count.saturating_add(1);
            }
            Some(_) => plan.not_owned.push(name.clone()),
        }
    }
    for (name, known) in actual {
        if known.is_managed && !desired.is_permitted(name) {
            plan.retained.push(name.clone());
            // New PersistentVolumeClaims without a class must not use this class.
            let mutable = MutableFields { is_default: false, ..known.mutable.clone() };
            plan.apply_fields(&mutable, known);
        }
    }
    plan
}

impl ClassPlan {
    fn create(&mut self, name: &str, class: DesiredClass) {
        self.class_count = self.class_count.saturating_add(1);
        let DesiredClass { immutable, mutable } = class;
        let fields = ClassField::ALL.into_iter().filter(|field| is_set(&mutable, *field)).collect();
        let name = name.to_owned();
        self.changes.push(ClassChange { name, uid: None, immutable, mutable, fields });
    }

    fn update(&mut self, desired: &DesiredClass, known: &TenantClass) {
        let different = different_fields(&desired.immutable, &known.immutable);
        if different.is_empty() {
            self.class_count = self.class_count.saturating_add(1);
        } else {
            self.immutable.push((known.name.clone(), different));
        }
        self.apply_fields(&desired.mutable, known);
    }

    /// Adds an apply of an existing class if a mutable field or its owner differs. The immutable fields are not
    /// changed.
    fn apply_fields(&mut self, desired: &MutableFields, known: &TenantClass) {
        let (mut fields, mut is_different) = (BTreeSet::new(), false);
        for field in ClassField::ALL {
            let owners = known.owners.get(&field).cloned().unwrap_or_default();
            let is_equal = is_field_equal(desired, &known.mutable, field);
            match owners.other_manager {
                // A field of another manager is not applied even if its value is equal: with two owners, the next
                // change of the value would fail with a conflict.
                Some(_) if is_equal => {}
                Some(manager) => {
                    let class = known.name.clone();
                    self.conflicts.push(ClassFieldConflict { class, field, manager });
                }
                None if is_set(desired, field) => {
                    fields.insert(field);
                }
                None => {}
            }
            let is_applied = fields.contains(&field);
            is_different |= is_applied != owners.is_own || (is_applied && !is_equal);
        }
        if is_different {
            self.changes.push(ClassChange {
                name: known.name.clone(),
                uid: Some(known.uid.clone()),
                immutable: known.immutable.clone(),
                mutable: desired.clone(),
                fields,
            });
        }
    }
}

impl ClassChange {
    /// Returns the body of the apply request, with all fields that Berth owns.
    #[must_use]
    pub fn body(&self) -> Value {
        let immutable = &self.immutable;
        let labels = json!({MANAGED_BY_LABEL.0: MANAGED_BY_LABEL.1});
        let mut body = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": {"name": self.name, "labels": labels},
            "provisioner": immutable.provisioner, "parameters": immutable.parameters,
        });
        if let Some(uid) = &self.uid {
            body["metadata"]["uid"] = json!(uid);
        }
        for (name, value) in [
            ("reclaimPolicy", &immutable.reclaim_policy),
            ("volumeBindingMode", &immutable.volume_binding_mode),
        ] {
            if !value.is_empty() {
                body[name] = json!(value);
            }
        }
        for field in &self.fields {
            match field {
                ClassField::DefaultAnnotation => {
                    let value = self.mutable.is_default.to_string();
                    body["metadata"]["annotations"] = json!({DEFAULT_ANNOTATION: value});
                }
                ClassField::AllowVolumeExpansion => {
                    body["allowVolumeExpansion"] = json!(self.mutable.allow_volume_expansion);
                }
                ClassField::AllowedTopologies => {
                    body["allowedTopologies"] = self.mutable.topologies.to_json();
                }
            }
        }
        body
    }
}

/// Returns true if an apply sets the field. An empty list of topologies is not set.
fn is_set(fields: &MutableFields, field: ClassField) -> bool {
    field != ClassField::AllowedTopologies || !fields.topologies.is_empty()
}

fn is_field_equal(a: &MutableFields, b: &MutableFields, field: ClassField) -> bool {
    match field {
        ClassField::DefaultAnnotation => a.is_default == b.is_default,
        ClassField::AllowVolumeExpansion => a.allow_volume_expansion == b.allow_volume_expansion,
        ClassField::AllowedTopologies => a.topologies == b.topologies,
    }
}

/// Returns true if two classes have the same driver and the same class of the infra cluster.
fn is_same_storage(a: &ImmutableFields, b: &ImmutableFields) -> bool {
    let infra = |fields: &ImmutableFields| fields.parameters.get(INFRA_CLASS_PARAMETER).cloned();
    a.provisioner == b.provisioner && infra(a) == infra(b)
}

fn different_fields(a: &ImmutableFields, b: &ImmutableFields) -> Vec<&'static str> {
    let fields = [
        ("provisioner", a.provisioner == b.provisioner),
        ("parameters", a.parameters == b.parameters),
        ("reclaimPolicy", a.reclaim_policy == b.reclaim_policy),
        ("volumeBindingMode", a.volume_binding_mode == b.volume_binding_mode),
    ];
    fields.into_iter().filter(|(_, is_equal)| !is_equal).map(|(name, _)| name).collect()
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
