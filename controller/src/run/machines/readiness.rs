//! Sets the readiness of the tenant's Nodes in machines.

use berth_kubevirt_render::machines::reconcile_steps::{ExistingVm, NodeReadiness, ReconcileSteps};
use kube::api::DynamicObject;
use serde_json::Value;

use super::context::MachineContext;
use crate::run::node_readiness::find_node_readiness;

impl MachineContext {
    /// Sets the Node readiness of machines of a namespace, if the tenant's machines count as ready only with a ready
    /// Node. While the tenant's API server does not answer, uses the last known Nodes.
    pub(super) fn add_node_readiness(&self, namespace: &str, vms: &mut [ExistingVm]) {
        let names = vms.iter().map(|vm| vm.name.as_str());
        let nodes = find_node_readiness(
            &self.tenants,
            &self.connections,
            namespace,
            names,
            // With `Unknown`, a machine whose Node exceeds the limits of the store would stop the rollout.
            NodeReadiness::NotReady,
        );
        for (vm, node) in vms.iter_mut().zip(nodes) {
            vm.node = node;
        }
    }
}

/// Replaces the numbers of ready and available machines by the last known numbers, from the status.
pub(super) fn restore_counts(object: &DynamicObject, steps: &mut ReconcileSteps) {
    let number = |field: &str| {
        let number = object.data.pointer(&format!("/status/{field}")).and_then(Value::as_u64);
        number.and_then(|number| u32::try_from(number).ok()).unwrap_or(0)
    };
    let counts = &mut steps.counts;
    counts.ready = number("readyReplicas").min(counts.replicas);
    counts.available = number("availableReplicas").min(counts.ready);
    // `unavailable` was computed with no available machine, so it is the desired number of machines.
    let desired = counts.unavailable;
    counts.unavailable = desired.saturating_sub(counts.available);
    steps.is_complete =
        counts.updated == desired && counts.replicas == desired && counts.available == desired;
}

#[cfg(test)]
mod tests {
    use berth_kubevirt_render::machines::rollout::ReplicaCounts;
    use serde_json::json;

    use super::*;

    #[test]
    fn unknown_readiness_keeps_the_last_numbers() {
        let object = |ready: Value| -> DynamicObject {
            let status = json!({"readyReplicas": ready, "availableReplicas": 2});
            serde_json::from_value(json!({"metadata": {"name": "web"}, "status": status})).unwrap()
        };
        let counts =
            ReplicaCounts { replicas: 2, updated: 2, unavailable: 2, ..Default::default() };
        let mut steps = ReconcileSteps { counts, ..ReconcileSteps::default() };
        restore_counts(&object(json!(2)), &mut steps);
        assert!(steps.is_complete && steps.counts.unavailable == 0, "{steps:?}");
        let mut steps = ReconcileSteps { counts, ..ReconcileSteps::default() };
        restore_counts(&object(json!("x")), &mut steps);
        assert_eq!((steps.counts.available, steps.counts.unavailable), (0, 2));
    }
}
