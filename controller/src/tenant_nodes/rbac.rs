//! RBAC permissions that Berth needs in a tenant's cluster, as objects to be created in that cluster.

use serde_json::{Value, json};

/// Name of the ServiceAccount, the ClusterRole and the ClusterRoleBinding.
const NAME: &str = "berth-controller";
/// Namespace of the ServiceAccount in the tenant's cluster.
const NAMESPACE: &str = "kube-system";

/// API groups, resources and verbs that each tenant grants. The controller sends no requests that need other
/// permissions, except for the optional [`STORAGE_RULES`].
const RULES: [(&str, &str, &[&str]); 4] = [
    // To copy labels, annotations and taints of hosts, to cordon Nodes, and to delete the Nodes of removed machines.
    ("", "nodes", &["get", "list", "watch", "patch", "delete"]),
    // To drain Nodes.
    ("", "pods", &["list"]),
    ("", "pods/eviction", &["create"]),
    ("storage.k8s.io", "volumeattachments", &["list"]),
];

/// Name of the ClusterRole and the ClusterRoleBinding for StorageClasses.
const STORAGE_NAME: &str = "berth-controller-storage";
/// Optional permissions, to create StorageClasses.
const STORAGE_RULES: [(&str, &str, &[&str]); 1] =
    [("storage.k8s.io", "storageclasses", &["get", "list", "watch", "create", "patch"])];

/// Returns ServiceAccount, ClusterRole and ClusterRoleBinding.
#[must_use]
pub fn tenant_rbac() -> Vec<Value> {
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"name": NAME, "namespace": NAMESPACE, "labels": labels()},
    });
    [account].into_iter().chain(role_and_binding(NAME, &RULES)).collect()
}

/// Returns ClusterRole and ClusterRoleBinding with the permissions for StorageClasses.
#[must_use]
pub fn storage_class_rbac() -> Vec<Value> {
    role_and_binding(STORAGE_NAME, &STORAGE_RULES).into()
}

fn labels() -> Value {
    json!({"app.kubernetes.io/name": NAME, "app.kubernetes.io/part-of": "berth"})
}

fn role_and_binding(name: &str, rules: &[(&str, &str, &[&str])]) -> [Value; 2] {
    let rules: Vec<Value> = rules
        .iter()
        .map(|(group, resource, verbs)| {
            json!({"apiGroups": [group], "resources": [resource], "verbs": verbs})
        })
        .collect();
    [
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": name, "labels": labels()}, "rules": rules,
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": name, "labels": labels()},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}],
        }),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns each verb and resource of the ClusterRole that is among these objects.
    fn permissions(objects: &[Value]) -> Vec<String> {
        let role = objects.iter().find(|object| object["kind"] == "ClusterRole").unwrap();
        let mut all: Vec<String> = Vec::new();
        for rule in role["rules"].as_array().unwrap() {
            for verb in rule["verbs"].as_array().unwrap() {
                let resource = rule["resources"][0].as_str().unwrap();
                all.push(format!("{} {resource}", verb.as_str().unwrap()));
            }
        }
        all
    }

    #[test]
    fn the_roles_permit_no_more_than_needed() {
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
        assert_eq!(permissions(&tenant_rbac()), expected);
        let of_classes = permissions(&storage_class_rbac());
        let expected = ["get", "list", "watch", "create", "patch"];
        assert_eq!(of_classes, expected.map(|verb| format!("{verb} storageclasses")));
    }
}
