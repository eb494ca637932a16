//! Report about the StorageClasses in a tenant's cluster, for a condition of the TenantCluster.

use berth_api::ConditionReason;

use super::desired::DesiredClasses;
use super::plan::{ClassPlan, DefaultConflict};
use crate::tenants::fault::{Fault, join_names_limited};
use crate::tenants::status::{PartResult, ReadyPart, join_faults};

/// Returns the state of the classes. `omitted` is the number of classes that are not stored because of their names or
/// the limits.
///
/// # Errors
/// Returns a fault if classes are not as desired, or may not be used any more.
pub fn report(desired: &DesiredClasses, plan: &ClassPlan, omitted: usize) -> PartResult {
    let mut faults = Vec::new();
    let mut add = |reason, message| faults.push(Fault::new(reason, message));
    if !plan.immutable.is_empty() {
        let classes = plan.immutable.iter();
        let classes: Vec<String> =
            classes.map(|(name, fields)| format!("{name} ({})", fields.join(", "))).collect();
        add(
            ConditionReason::ImmutableFieldsDiffer,
            format!(
                "StorageClasses in the tenant's cluster have other values of immutable fields than desired: {}; to \
                 replace a class: kubectl delete storageclass NAME in the tenant's cluster; existing volumes and \
                 PersistentVolumeClaims stay",
                join_names_limited(&classes)
            ),
        );
    }
    if !plan.not_owned.is_empty() {
        add(
            ConditionReason::NotOwned,
            format!(
                "StorageClasses in the tenant's cluster have another provisioner or infraStorageClassName, and were not \
                 created by Berth: {}; rename or delete them",
                join_names_limited(&plan.not_owned)
            ),
        );
    }
    if !desired.missing.is_empty() {
        add(
            ConditionReason::StorageClassesMissing,
            format!(
                "InfraConfig default spec.infraStorageClasses: StorageClasses that do not exist in the infra cluster: {}; \
                 create them, or remove them from the list",
                join_names_limited(&desired.missing)
            ),
        );
    }
    if !desired.too_long.is_empty() {
        add(
            ConditionReason::InvalidSpec,
            format!(
                "InfraConfig default spec.infraStorageClasses: names of more than 244 characters: {}; tenants do not get \
                 these StorageClasses",
                join_names_limited(&desired.too_long)
            ),
        );
    }
    if omitted > 0 {
        add(
            ConditionReason::TooManyStorageClasses,
            format!(
                "{omitted} StorageClasses in the tenant's cluster have an invalid name, or exceed the limits (128 named \
                 kubevirt-*, 16 KiB each)"
            ),
        );
    }
    if !plan.retained.is_empty() {
        add(
            ConditionReason::StorageClassesRetained,
            format!(
                "StorageClasses are no longer in spec.infraStorageClasses of the InfraConfig, but stay in the tenant's \
                 cluster, because PersistentVolumeClaims may use them: {}; when no claim uses a class any more: \
                 kubectl delete storageclass NAME in the tenant's cluster",
                join_names_limited(&plan.retained)
            ),
        );
    }
    join_faults(&faults, ready_part(plan))
}

fn ready_part(plan: &ClassPlan) -> ReadyPart {
    let count = plan.class_count;
    let mut message = format!("{count} StorageClasses exist in the tenant's cluster");
    if let Some(DefaultConflict { desired, existing }) = &plan.default_conflict {
        message = format!(
            "{message}; {desired} is not the default class, because the tenant's own class {existing} is"
        );
    }
    if plan.conflicts.is_empty() {
        return ReadyPart { reason: ConditionReason::StorageClassesApplied, message };
    }
    let fields = plan.conflicts.iter();
    let fields: Vec<String> = fields
        .map(|one| format!("{} of {} by {}", one.field.as_str(), one.class, one.manager))
        .collect();
    let fields = join_names_limited(&fields);
    let message = format!(
        "{message}; other managers own these fields with other values, so they are not changed: {fields}"
    );
    ReadyPart { reason: ConditionReason::FieldsOwnedByOthers, message }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tenant_storage::class::ClassField;
    use crate::tenant_storage::plan::ClassFieldConflict;

    #[test]
    fn each_problem_is_named() {
        let plan = ClassPlan { class_count: 2, ..ClassPlan::default() };
        let desired = DesiredClasses::default();
        let ready = report(&desired, &plan, 0).unwrap();
        assert_eq!(ready.reason, ConditionReason::StorageClassesApplied);
        let foreign = ClassFieldConflict {
            class: "kubevirt-fast".to_owned(),
            field: ClassField::AllowVolumeExpansion,
            manager: "kubectl-edit".to_owned(),
        };
        let default_conflict = Some(DefaultConflict {
            desired: "kubevirt-fast".to_owned(),
            existing: "gp3".to_owned(),
        });
        let plan = ClassPlan { conflicts: vec![foreign], default_conflict, ..plan };
        let ready = report(&desired, &plan, 0).unwrap();
        assert_eq!(ready.reason, ConditionReason::FieldsOwnedByOthers);
        for words in [
            "because the tenant's own class gp3 is",
            "allowVolumeExpansion of kubevirt-fast by kubectl-edit",
        ] {
            assert!(ready.message.contains(words), "{}", ready.message);
        }
        let plan = ClassPlan {
            immutable: vec![("kubevirt-a".to_owned(), vec!["parameters", "reclaimPolicy"])],
            not_owned: vec!["kubevirt-b".to_owned()],
            retained: vec!["kubevirt-c".to_owned()],
            ..plan
        };
        let desired = DesiredClasses {
            missing: vec!["d".to_owned()],
            too_long: vec!["e".to_owned()],
            ..DesiredClasses::default()
        };
        let fault = report(&desired, &plan, 3).unwrap_err();
        assert_eq!(fault.reason, ConditionReason::ImmutableFieldsDiffer);
        for words in [
            "kubevirt-a (parameters, reclaimPolicy)",
            "not created by Berth: kubevirt-b",
            "may use them: kubevirt-c",
            "infra cluster: d",
            "244 characters: e",
            "3 StorageClasses",
        ] {
            assert!(fault.message.contains(words), "{}: {words}", fault.message);
        }
    }
}
