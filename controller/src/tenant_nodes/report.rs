//! Report about the labels of a tenant's Nodes, for a condition of the TenantCluster.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::ConditionReason;

use super::keys::FieldKind;
use super::plan::TenantPlan;
use crate::tenants::fault::{Fault, join_names_limited};
use crate::tenants::status::{PartResult, ReadyPart};

/// Returns the state of the labels. `omitted` is the number of Nodes that are not stored because of their names or the
/// limits.
///
/// # Errors
/// Returns a fault if some labels could not be copied.
pub fn report(plan: &TenantPlan, omitted: usize) -> PartResult {
    let mut faults = Vec::new();
    let mut reason = ConditionReason::LabelsReplicated;
    if omitted > 0 {
        reason = ConditionReason::TooManyNodes;
        faults.push(format!(
            "{omitted} Nodes get no labels, because they have an invalid name or exceed the limits (5,000 Nodes, \
             16 MiB, 64 KiB for each Node; less while the Nodes of all tenants exceed the memory of the controller \
             for them)"
        ));
    }
    if !plan.ambiguous.is_empty() {
        reason = ConditionReason::AmbiguousNodes;
        let machines = plan.ambiguous.iter();
        let machines: Vec<String> =
            machines.map(|(name, count)| format!("{name} ({count} Nodes)")).collect();
        faults.push(format!(
            "Nodes get no labels, because several Nodes have the spec.providerID of the same machine: {}",
            join_names_limited(&machines)
        ));
    }
    if !plan.conflicts.is_empty() {
        reason = ConditionReason::FieldsOwnedByOthers;
        faults.push(conflict_text(plan));
    }
    if faults.is_empty() {
        let (nodes, pending) = (plan.node_count, plan.pending_count);
        let message = format!(
            "{nodes} Nodes have the labels of their hosts; {pending} machines have no Node or no host"
        );
        return Ok(ReadyPart { reason, message });
    }
    Err(Fault::new(reason, faults.join("; ")))
}

/// Returns the message about the keys that other managers own, with the managers and the number of Nodes for each key.
fn conflict_text(plan: &TenantPlan) -> String {
    let mut keys: BTreeMap<(FieldKind, &str), (BTreeSet<&str>, usize, &str)> = BTreeMap::new();
    for (node, conflict) in &plan.conflicts {
        let entry = keys
            .entry((conflict.kind, &conflict.key))
            .or_insert_with(|| (BTreeSet::new(), 0, node.as_str()));
        entry.0.insert(&conflict.manager);
        entry.1 = entry.1.saturating_add(1);
    }
    let keys: Vec<String> = keys
        .into_iter()
        .map(|((kind, key), (managers, count, node))| {
            let managers: Vec<String> = managers.into_iter().map(str::to_owned).collect();
            let managers = join_names_limited(&managers);
            let kind = kind.as_str();
            format!("{kind} {key} by {managers} on {count} Nodes such as {node}")
        })
        .collect();
    format!(
        "other managers own these fields with other values, so they are not changed: {}",
        join_names_limited(&keys)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tenant_nodes::fields::FieldConflict;

    fn conflict(node: &str, key: &str, manager: &str) -> (String, FieldConflict) {
        let (key, manager) = (key.to_owned(), manager.to_owned());
        (node.to_owned(), FieldConflict { kind: FieldKind::Label, key, manager })
    }

    #[test]
    fn each_problem_is_named() {
        let plan = TenantPlan { node_count: 3, pending_count: 1, ..TenantPlan::default() };
        let ready = report(&plan, 0).unwrap();
        assert_eq!(ready.reason, ConditionReason::LabelsReplicated);
        assert!(ready.message.starts_with("3 Nodes have"), "{}", ready.message);
        let plan = TenantPlan {
            conflicts: vec![
                conflict("web-1", "zone", "kubelet"),
                conflict("web-2", "zone", "kubectl-label"),
                conflict("web-2", "rack", "kubelet"),
            ],
            ambiguous: vec![("web-3".to_owned(), 2)],
            ..TenantPlan::default()
        };
        let fault = report(&plan, 7).unwrap_err();
        assert_eq!(fault.reason, ConditionReason::FieldsOwnedByOthers);
        for words in [
            "7 Nodes get no labels, because they have an invalid name",
            "web-3 (2 Nodes)",
            "label rack by kubelet on 1 Nodes such as web-2",
            "zone by kubectl-label, kubelet on 2 Nodes such as web-1",
        ] {
            assert!(fault.message.contains(words), "{}: {words}", fault.message);
        }
    }
}
