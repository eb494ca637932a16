//! Permissions that Berth needs in a tenant's cluster, as objects for that cluster.

use serde_json::{Value, json};

/// Name of all objects.
const NAME: &str = "berth-controller";
/// Namespace of the ServiceAccount in the tenant's cluster.
const NAMESPACE: &str = "kube-system";

/// API groups, resources and verbs. All other requests of the controller to a tenant's API server are refused.
const RULES: [(&str, &str, &[&str]); 4] = [
    // Labels of hosts; cordoning; the Nodes of machines that are removed.
    ("", "nodes", &["get", "list", "watch", "patch", "delete"]),
    // Draining.
    ("", "pods", &["list"]),
    ("", "pods/eviction", &["create"]),
    ("storage.k8s.io", "volumeattachments", &["list"]),
];

/// Returns ServiceAccount, ClusterRole and ClusterRoleBinding.
#[must_use]
pub fn tenant_rbac() -> [Value; 3] {
    let labels = json!({"app.kubernetes.io/name": NAME, "app.kubernetes.io/part-of": "berth"});
    let rules: Vec<Value> = RULES
        .iter()
        .map(|(group, resource, verbs)| {
            json!({"apiGroups": [group], "resources": [resource], "verbs": verbs})
        })
        .collect();
    [
        json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": NAME, "namespace": NAMESPACE, "labels": labels},
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": NAME, "labels": labels}, "rules": rules,
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": NAME, "labels": labels},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": NAME},
            "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}],
        }),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_role_permits_no_more_than_needed() {
        let [_, role, _] = tenant_rbac();
        let mut all: Vec<String> = Vec::new();
        for rule in role["rules"].as_array().unwrap() {
            for verb in rule["verbs"].as_array().unwrap() {
                let resource = rule["resources"][0].as_str().unwrap();
                all.push(format!("{} {resource}", verb.as_str().unwrap()));
            }
        }
        let expected = [
            "get nodes",
            "list nodes",
            "watch nodes",
            "patch nodes",
            "delete nodes",
            "list pods",
            "create pods/eviction",
            "list volumeattachments",
        ];
        assert_eq!(all, expected);
    }
}
