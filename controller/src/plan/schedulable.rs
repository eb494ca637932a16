//! Nodes that accept pods again.

use k8s_openapi::api::core::v1::Node;

/// Prefix of the taints that Kubernetes sets because of the state of a Node, such as that of a cordoned one.
const STATE_TAINTS: &str = "node.kubernetes.io/";

/// Makes a Node schedulable, as it is after its kubelet has started and it was uncordoned. Taints of users stay.
pub(super) fn make_schedulable(node: &mut Node) {
    let spec = node.spec.get_or_insert_default();
    spec.unschedulable = None;
    if let Some(taints) = &mut spec.taints {
        taints.retain(|taint| !taint.key.starts_with(STATE_TAINTS));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn taints_of_users_stay() {
        let taint = |key: &str| json!({"key": key, "effect": "NoSchedule"});
        let taints = [taint("node.kubernetes.io/unschedulable"), taint("pool")];
        let node = json!({"spec": {"unschedulable": true, "taints": taints}});
        let mut node: Node = serde_json::from_value(node).unwrap();
        make_schedulable(&mut node);
        assert_eq!(serde_json::to_value(node.spec).unwrap(), json!({"taints": [taint("pool")]}));
    }
}
