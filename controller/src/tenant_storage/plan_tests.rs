//! Tests of the plan for the StorageClasses of a tenant.

use proptest::prelude::*;

use super::*;
use crate::tenant_storage::class::ClassObject;
use crate::tenant_storage::topology::Topologies;

const MANAGER: &str = "berth-controller";

fn desired_class(infra_name: &str, mutable: MutableFields) -> DesiredClass {
    let parameters = [(INFRA_CLASS_PARAMETER, infra_name), ("bus", "scsi")];
    let parameters = parameters.map(|(key, value)| (key.to_owned(), value.to_owned()));
    DesiredClass {
        immutable: ImmutableFields {
            provisioner: "csi.kubevirt.io".to_owned(),
            parameters: parameters.into(),
            reclaim_policy: "Delete".to_owned(),
            volume_binding_mode: "Immediate".to_owned(),
        },
        mutable,
    }
}

fn desired(classes: &[(&str, MutableFields)]) -> DesiredClasses {
    let class = |(name, mutable): &(&str, MutableFields)| {
        (format!("kubevirt-{name}"), desired_class(name, mutable.clone()))
    };
    let classes = classes.iter().map(class).collect();
    DesiredClasses { classes, ..DesiredClasses::default() }
}

fn default_class() -> MutableFields {
    MutableFields { is_default: true, ..MutableFields::default() }
}

/// Applies a change as an API server does: afterwards, Berth owns exactly the fields in the body.
fn apply(classes: &mut BTreeMap<String, TenantClass>, change: &ClassChange) {
    let known = classes.get(&change.name);
    assert_eq!(known.map(|class| class.uid.clone()), change.uid);
    let body = change.body();
    let mut object = body.clone();
    object["metadata"]["uid"] = json!("u");
    let mut class = read(object);
    if let Some(known) = known {
        assert_eq!(class.immutable, known.immutable, "an immutable field was changed");
        class.owners.clone_from(&known.owners);
        for field in ClassField::ALL {
            let owners = known.owners.get(&field).cloned().unwrap_or_default();
            if owners.other_manager.is_some() {
                assert!(!change.fields.contains(&field), "a field of another manager is applied");
                set_field(&mut class.mutable, &known.mutable, field);
            } else if !change.fields.contains(&field) && !owners.is_own {
                set_field(&mut class.mutable, &known.mutable, field);
            }
        }
        class.is_any_default = class.mutable.is_default;
    }
    for field in ClassField::ALL {
        class.owners.entry(field).or_default().is_own = change.fields.contains(&field);
    }
    classes.insert(change.name.clone(), class);
}

fn set_field(target: &mut MutableFields, source: &MutableFields, field: ClassField) {
    match field {
        ClassField::DefaultAnnotation => target.is_default = source.is_default,
        ClassField::AllowVolumeExpansion => {
            target.allow_volume_expansion = source.allow_volume_expansion;
        }
        ClassField::AllowedTopologies => target.topologies = source.topologies.clone(),
    }
}

fn read(object: Value) -> TenantClass {
    let object: ClassObject = serde_json::from_value(object).unwrap();
    TenantClass::from_object(object, MANAGER).unwrap()
}

/// Plans and applies changes until a plan has none. Returns this plan.
fn converge(desired: &DesiredClasses, classes: &mut BTreeMap<String, TenantClass>) -> ClassPlan {
    for change in plan_classes(desired, classes).changes {
        apply(classes, &change);
    }
    let second = plan_classes(desired, classes);
    assert_eq!(second.changes, [], "the second plan is not empty");
    second
}

#[test]
fn classes_are_created_as_the_driver_needs_them() {
    let mutable = MutableFields {
        is_default: true,
        allow_volume_expansion: true,
        topologies: Topologies::of_zones(&["a".to_owned()], &[]),
    };
    let plan = plan_classes(&desired(&[("fast", mutable)]), &BTreeMap::new());
    let expected = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": {
            "name": "kubevirt-fast", "labels": {"app.kubernetes.io/managed-by": "berth"},
            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
        },
        "provisioner": "csi.kubevirt.io", "parameters": {"infraStorageClassName": "fast", "bus": "scsi"},
        "reclaimPolicy": "Delete", "volumeBindingMode": "Immediate", "allowVolumeExpansion": true,
        "allowedTopologies": [{"matchLabelExpressions": [{"key": "topology.kubernetes.io/zone", "values": ["a"]}]}],
    });
    assert_eq!(plan.changes.len(), 1);
    assert_eq!(plan.changes[0].body(), expected);
    assert_eq!(plan.class_count, 1);
}

#[test]
fn changes_of_the_list_are_applied() {
    let mut classes = BTreeMap::new();
    let before = desired(&[("fast", default_class()), ("slow", MutableFields::default())]);
    converge(&before, &mut classes);
    let expandable = MutableFields { allow_volume_expansion: true, ..default_class() };
    let after = desired(&[("fast", MutableFields::default()), ("slow", expandable)]);
    let plan = converge(&after, &mut classes);
    assert_eq!((plan.class_count, plan.retained.len()), (2, 0));
    assert!(!classes["kubevirt-fast"].mutable.is_default);
    let slow = &classes["kubevirt-slow"].mutable;
    assert!(slow.is_default && slow.allow_volume_expansion);
}

#[test]
fn removed_classes_stay_and_are_not_the_default() {
    let mut classes = BTreeMap::new();
    let expandable = MutableFields { allow_volume_expansion: true, ..default_class() };
    converge(&desired(&[("fast", expandable)]), &mut classes);
    let plan = converge(&desired(&[]), &mut classes);
    assert_eq!(plan.retained, ["kubevirt-fast"]);
    let mutable = &classes["kubevirt-fast"].mutable;
    assert!(!mutable.is_default && mutable.allow_volume_expansion);
    // The InfraConfig still lists the class, which only the infra cluster lacks.
    let missing = DesiredClasses { missing: vec!["fast".to_owned()], ..DesiredClasses::default() };
    assert_eq!(plan_classes(&missing, &classes), ClassPlan::default());
}

#[test]
fn immutable_fields_are_reported_and_the_others_applied() {
    let mut classes = BTreeMap::new();
    converge(&desired(&[("fast", MutableFields::default())]), &mut classes);
    let mut other = desired(&[("fast", default_class())]);
    for class in other.classes.values_mut() {
        class.immutable.volume_binding_mode = "WaitForFirstConsumer".to_owned();
    }
    let plan = converge(&other, &mut classes);
    assert_eq!(plan.immutable, [("kubevirt-fast".to_owned(), vec!["volumeBindingMode"])]);
    assert!(classes["kubevirt-fast"].mutable.is_default);
    assert_eq!(classes["kubevirt-fast"].immutable.volume_binding_mode, "Immediate");
}

#[test]
fn classes_of_other_owners_are_not_changed() {
    let class = |infra: &str| {
        read(json!({
            "metadata": {"name": "kubevirt-fast", "uid": "theirs"},
            "provisioner": "csi.kubevirt.io", "parameters": {"infraStorageClassName": infra, "bus": "virtio"},
        }))
    };
    let wanted = desired(&[("fast", default_class())]);
    let same = BTreeMap::from([("kubevirt-fast".to_owned(), class("fast"))]);
    let plan = plan_classes(&wanted, &same);
    assert_eq!((plan.changes.len(), plan.class_count, plan.not_owned.len()), (0, 1, 0));
    let different = BTreeMap::from([("kubevirt-fast".to_owned(), class("secret"))]);
    let plan = plan_classes(&wanted, &different);
    assert_eq!(plan.changes, []);
    assert_eq!(plan.not_owned, ["kubevirt-fast"]);
    assert!(plan_classes(&desired(&[]), &same).retained.is_empty());
}

#[test]
fn the_default_class_of_the_tenant_stays_the_only_one() {
    let annotations = json!({"storageclass.beta.kubernetes.io/is-default-class": "true"});
    let theirs = read(json!({"metadata": {"name": "gp3", "annotations": annotations}}));
    let mut classes = BTreeMap::from([("gp3".to_owned(), theirs)]);
    let wanted = desired(&[("fast", default_class())]);
    let plan = converge(&wanted, &mut classes);
    let (desired, existing) = ("kubevirt-fast".to_owned(), "gp3".to_owned());
    assert_eq!(plan.default_conflict, Some(DefaultConflict { desired, existing }));
    assert!(!classes["kubevirt-fast"].mutable.is_default);
    classes.remove("gp3");
    assert_eq!(converge(&wanted, &mut classes).default_conflict, None);
    assert!(classes["kubevirt-fast"].mutable.is_default);
}

fn mutable_fields() -> impl Strategy<Value = MutableFields> {
    (any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(is_default, expansion, has_zone)| {
        let zones: &[String] = if has_zone { &["a".to_owned()] } else { &[] };
        let topologies = Topologies::of_zones(zones, &[]);
        MutableFields { is_default, allow_volume_expansion: expansion, topologies }
    })
}

fn tenant_class() -> impl Strategy<Value = TenantClass> {
    let owner = (any::<bool>(), any::<bool>());
    let facts = (any::<bool>(), any::<bool>());
    (mutable_fields(), [owner, owner, owner], facts, 0..3_u8).prop_map(
        |(mutable, owners, (is_managed, is_same), storage)| {
            let infra = if storage == 0 { "other" } else { "a" };
            let mut class = desired_class(infra, mutable);
            if !is_same {
                class.immutable.reclaim_policy = "Retain".to_owned();
            }
            let owners = ClassField::ALL.into_iter().zip(owners);
            let owners = owners.map(|(field, (is_own, is_foreign))| {
                let other_manager = is_foreign.then(|| "kubectl".to_owned());
                (field, crate::tenant_storage::class::FieldOwners { is_own, other_manager })
            });
            TenantClass {
                uid: "u".to_owned(),
                is_managed,
                is_any_default: class.mutable.is_default,
                owners: owners.collect(),
                immutable: class.immutable,
                mutable: class.mutable,
                name: String::new(),
            }
        },
    )
}

proptest! {
    /// After the changes, a second plan is empty. No class of another owner has changed, and no class was deleted.
    #[test]
    fn a_second_plan_is_empty(
        wanted in proptest::collection::btree_map("[a-c]", mutable_fields(), 0..3),
        actual in proptest::collection::btree_map("[a-d]", tenant_class(), 0..4),
    ) {
        let list: Vec<(&str, MutableFields)> = wanted.iter().map(|(name, mutable)| (name.as_str(), mutable.clone())).collect();
        let wanted = desired(&list);
        let named = actual.into_iter().map(|(name, class)| {
            let name = format!("kubevirt-{name}");
            (name.clone(), TenantClass { name, ..class })
        });
        let before: BTreeMap<String, TenantClass> = named.collect();
        let mut classes = before.clone();
        let plan = converge(&wanted, &mut classes);
        let first = plan_classes(&wanted, &before);
        prop_assert_eq!((&first.retained, &first.not_owned, &first.immutable), (&plan.retained, &plan.not_owned, &plan.immutable));
        for (name, class) in &before {
            if class.is_managed {
                prop_assert_eq!(&classes[name].immutable, &class.immutable);
            } else {
                prop_assert_eq!(&classes[name], class);
            }
        }
        for name in wanted.classes.keys() {
            prop_assert!(classes.contains_key(name));
        }
        let managed = classes.values().filter(|class| class.is_managed && class.mutable.is_default);
        let is_foreign_default = before.values().any(|class| !class.is_managed && class.is_any_default);
        for class in managed {
            let owner = class.owners.get(&ClassField::DefaultAnnotation).and_then(|owners| owners.other_manager.as_ref());
            let is_wanted = wanted.classes.get(&class.name).is_some_and(|class| class.mutable.is_default);
            prop_assert!(owner.is_some() || (is_wanted && !is_foreign_default), "{:?}", class);
        }
    }
}
