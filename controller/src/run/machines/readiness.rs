//! Sets the readiness of the tenant's Nodes in machines.

use berth_kubevirt_render::machines::MachineDeployment;
use berth_kubevirt_render::machines::reconcile_steps::{
    DeploymentOwner, ExistingVm, NodeReadiness, ReconcileSteps, compute_steps,
};
use berth_kubevirt_render::machines::rollout::ReplicaCounts;
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
            // The store omits Nodes that exceed its limits. With `Unknown`, the machine of such a Node would stop the
            // rollout.
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

/// Returns the numbers of the machines of a tenant whose TenantCluster cannot be parsed; `None` if the strategy of the
/// MachineDeployment is invalid. A field of the TenantCluster determines when a machine is ready, so the numbers of
/// ready and available machines are the last known numbers.
pub(super) fn counts_of_unknown_tenant(
    object: &DynamicObject,
    deployment: &MachineDeployment,
    owner: &DeploymentOwner,
    mut vms: Vec<ExistingVm>,
) -> Option<ReplicaCounts> {
    for vm in &mut vms {
        vm.node = NodeReadiness::Unknown;
    }
    // The time is only compared with the time since which a machine is ready, which is not known.
    let mut steps = compute_steps(deployment, owner, &vms, 0, None).ok()?;
    if steps.is_readiness_unknown {
        restore_counts(object, &mut steps);
    }
    Some(steps.counts)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn machines_of_an_unknown_tenant_are_counted() {
        let value = json!({"metadata": {"name": "web", "namespace": "cluster-shop"},
            "spec": {"replicas": 3}, "status": {"readyReplicas": 3, "availableReplicas": 1}});
        let object: DynamicObject = serde_json::from_value(value.clone()).unwrap();
        let deployment = MachineDeployment::read("test", value).unwrap();
        let owner = DeploymentOwner { uid: "u".to_owned(), shares_namespace: true };
        let vm = |name: &str| ExistingVm {
            name: name.to_owned(),
            labels: [("md".to_owned(), "web".to_owned())].into(),
            controller_uid: Some("u".to_owned()),
            ready_since: Some(1),
            ..ExistingVm::default()
        };
        let counts = |vms| counts_of_unknown_tenant(&object, &deployment, &owner, vms).unwrap();
        let two = counts(vec![vm("web-1"), vm("web-2")]);
        assert_eq!((two.replicas, two.ready, two.available, two.unavailable), (2, 2, 1, 2));
        let none = counts(Vec::new());
        assert_eq!((none.replicas, none.ready, none.available, none.unavailable), (0, 0, 0, 3));
    }

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
