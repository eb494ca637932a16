//! The KubeVirt cloud controller manager of a tenant, based on `config/` of kubevirt/cloud-provider-kubevirt.
//!
//! Differences from `config/`: the configuration is in an annotation of the pod, so that the cloud controller manager
//! needs no permission for ConfigMaps, and a change restarts the pod. The pod is not privileged. `zoneAndRegionEnabled`
//! is false, because it requires the permission to read the Nodes of the infra cluster.

use std::collections::BTreeSet;
use std::net::IpAddr;

use berth_api::{CloudControllerManager, TenantCluster};
use serde_json::{Value, json};

use super::desired_object::DesiredObject;
use super::kind::ObjectKind;
use super::peers::single_address_peer;
use crate::tenants::kubeconfig_secret::KubeconfigSecret;

/// Name of all objects in this module, and value of the label `k8s-app` of the pods.
pub const CLOUD_CONTROLLER_MANAGER: &str = "kubevirt-cloud-controller-manager";
/// Name of the NetworkPolicy for the pods of the cloud controller manager.
pub(super) const CLOUD_CONTROLLER_MANAGER_POLICY: &str = "berth-allow-cloud-controller-manager";
/// Annotation of the pods that contains the configuration.
const CONFIG_ANNOTATION: &str = "berth.dev/cloud-config";
/// UID of the user as which the container runs, and which owns no files.
const POD_USER_ID: u32 = 65_532;

/// API groups, resources and verbs of the Role, without those of the project's own Role that are not used. A user who
/// creates the Role must have all these permissions, or the verb `escalate`.
const ROLE_RULES: [(&str, &[&str], &[&str]); 3] = [
    ("kubevirt.io", &["virtualmachines", "virtualmachineinstances"], &["get", "list", "watch"]),
    ("", &["pods"], &["get", "list", "watch"]),
    ("", &["services"], &["get", "list", "watch", "create", "update", "patch", "delete"]),
];

/// Returns ServiceAccount, Role, RoleBinding and Deployment. `kubeconfig` refers to the Secret with the tenant's
/// kubeconfig, in the tenant's namespace.
#[must_use]
pub fn cloud_controller_manager_objects(
    tenant: &str,
    requested: &CloudControllerManager,
    kubeconfig: &KubeconfigSecret,
) -> Vec<DesiredObject> {
    let object =
        |kind, content| DesiredObject::new(kind, tenant, CLOUD_CONTROLLER_MANAGER, content);
    let rules: Vec<Value> = ROLE_RULES
        .iter()
        .map(|(group, resources, verbs)| {
            json!({"apiGroups": [group], "resources": resources, "verbs": verbs})
        })
        .collect();
    let role_ref = json!({
        "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": CLOUD_CONTROLLER_MANAGER,
    });
    let subjects = json!([{
        "kind": "ServiceAccount", "name": CLOUD_CONTROLLER_MANAGER,
        "namespace": TenantCluster::namespace_of(tenant),
    }]);
    vec![
        object(ObjectKind::ServiceAccount, json!({})),
        object(ObjectKind::Role, json!({"rules": rules})),
        object(ObjectKind::RoleBinding, json!({"roleRef": role_ref, "subjects": subjects})),
        object(
            ObjectKind::Deployment,
            json!({"spec": {
                "replicas": requested.replicas.unwrap_or(1),
                "selector": {"matchLabels": {"k8s-app": CLOUD_CONTROLLER_MANAGER}},
                "template": {
                    "metadata": {
                        "labels": {"k8s-app": CLOUD_CONTROLLER_MANAGER},
                        "annotations": {CONFIG_ANNOTATION: cloud_config(tenant, requested)},
                    },
                    "spec": pod_spec(tenant, requested, kubeconfig),
                },
            }}),
        ),
    ]
}

/// Returns the configuration of the cloud controller manager as JSON, which is valid YAML.
fn cloud_config(tenant: &str, requested: &CloudControllerManager) -> String {
    let config = json!({
        "namespace": TenantCluster::namespace_of(tenant),
        "loadBalancer": {"enabled": true},
        "instancesV2": {
            "enabled": requested.instances.unwrap_or(true), "zoneAndRegionEnabled": false,
        },
    });
    config.to_string()
}

fn pod_spec(
    tenant: &str,
    requested: &CloudControllerManager,
    kubeconfig: &KubeconfigSecret,
) -> Value {
    // The cloud controller manager writes the name of the cluster to the selectors of load balancer Services: they
    // select machines by the label `cluster.x-k8s.io/cluster-name`.
    let cluster_name = format!("--cluster-name={tenant}");
    json!({
        "serviceAccountName": CLOUD_CONTROLLER_MANAGER,
        "securityContext": {
            "runAsNonRoot": true, "runAsUser": POD_USER_ID, "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [{
            "name": CLOUD_CONTROLLER_MANAGER,
            "image": requested.image,
            "command": ["/bin/kubevirt-cloud-controller-manager"],
            "args": [
                "--cloud-provider=kubevirt", "--cloud-config=/etc/cloud/cloud-config",
                "--kubeconfig=/etc/kubernetes/kubeconfig/value", cluster_name,
                "--authentication-skip-lookup=true",
            ],
            "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
            "securityContext": {
                "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
                "readOnlyRootFilesystem": true,
            },
            "volumeMounts": [
                {"name": "kubeconfig", "mountPath": "/etc/kubernetes/kubeconfig", "readOnly": true},
                {"name": "cloud-config", "mountPath": "/etc/cloud", "readOnly": true},
            ],
        }],
        "volumes": [
            {"name": "kubeconfig", "secret": {
                "secretName": kubeconfig.name, "items": [{"key": kubeconfig.key, "path": "value"}],
            }},
            {"name": "cloud-config", "downwardAPI": {"items": [{
                "path": "cloud-config",
                "fieldRef": {
                    "apiVersion": "v1", "fieldPath": format!("metadata.annotations['{CONFIG_ANNOTATION}']"),
                },
            }]}},
        ],
    })
}

/// Returns the NetworkPolicy that permits the pods to connect to the API server of the infra cluster. A launcher pod
/// with the label of these pods gains no access: launcher pods are excluded by the label `kubevirt.io`, which KubeVirt
/// sets on every launcher pod.
pub(super) fn cloud_controller_manager_policy(
    tenant: &str,
    api_server: &BTreeSet<IpAddr>,
) -> DesiredObject {
    let peers: Vec<Value> = api_server.iter().copied().map(single_address_peer).collect();
    let rules: Vec<Value> = (!peers.is_empty())
        .then(|| json!({"to": peers, "ports": [{"protocol": "TCP"}]}))
        .into_iter()
        .collect();
    let selector = json!({
        "matchLabels": {"k8s-app": CLOUD_CONTROLLER_MANAGER},
        "matchExpressions": [{"key": "kubevirt.io", "operator": "DoesNotExist"}],
    });
    let spec = json!({"podSelector": selector, "policyTypes": ["Egress"], "egress": rules});
    let name = CLOUD_CONTROLLER_MANAGER_POLICY;
    DesiredObject::new(ObjectKind::NetworkPolicy, tenant, name, json!({"spec": spec}))
}

#[cfg(test)]
mod tests {
    use berth_api::SecretRef;

    use super::*;

    fn objects(requested: Value) -> Vec<DesiredObject> {
        let reference = SecretRef { name: "admin".to_owned(), namespace: None, key: None };
        let kubeconfig = KubeconfigSecret::resolve("shop", &reference);
        let requested = serde_json::from_value(requested).unwrap();
        cloud_controller_manager_objects("shop", &requested, &kubeconfig)
    }

    #[test]
    fn the_kubeconfig_of_the_tenant_is_mounted() {
        let all = objects(json!({"image": "ccm:1", "replicas": 2}));
        let deployment = &all[3].body["spec"];
        assert_eq!(deployment["replicas"], 2);
        let pod = &deployment["template"];
        assert_eq!(deployment["selector"]["matchLabels"], pod["metadata"]["labels"]);
        assert_eq!(
            pod["spec"]["volumes"][0]["secret"],
            json!({"secretName": "admin", "items": [{"key": "kubeconfig", "path": "value"}]})
        );
        assert_eq!(pod["spec"]["containers"][0]["image"], "ccm:1");
        let args = pod["spec"]["containers"][0]["args"].as_array().unwrap();
        assert!(args.contains(&json!("--cluster-name=shop")), "{args:?}");
    }

    #[test]
    fn the_configuration_names_the_namespace_of_the_tenant() {
        let all = objects(json!({"image": "ccm:1", "instances": false}));
        let annotations = &all[3].body["spec"]["template"]["metadata"]["annotations"];
        let config = annotations[CONFIG_ANNOTATION].as_str().unwrap();
        let config: Value = serde_json::from_str(config).unwrap();
        assert_eq!(config["namespace"], "cluster-shop");
        assert_eq!(config["instancesV2"]["enabled"], false);
    }

    #[test]
    fn machines_cannot_use_the_policy() {
        let policy = cloud_controller_manager_policy("shop", &["10.0.0.1".parse().unwrap()].into());
        let spec = &policy.body["spec"];
        assert_eq!(spec["egress"][0]["to"], json!([{"ipBlock": {"cidr": "10.0.0.1/32"}}]));
        let excluded = &spec["podSelector"]["matchExpressions"][0];
        assert_eq!(*excluded, json!({"key": "kubevirt.io", "operator": "DoesNotExist"}));
        let unknown = cloud_controller_manager_policy("shop", &BTreeSet::new());
        assert_eq!(unknown.body["spec"]["egress"], json!([]));
    }
}
