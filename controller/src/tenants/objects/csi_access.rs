//! RBAC permissions of the tenant's KubeVirt CSI driver in the tenant's namespace. Names and rules are those of KKP
//! (`pkg/provider/cloud/kubevirt/csi.go` of kubermatic/kubermatic).

use berth_api::TenantCluster;
use berth_api::names::{
    CONTROLLER_SERVICE_ACCOUNT, CONTROLLER_TENANT_CLUSTER_ROLE, MANAGED_BY_LABEL, TENANT_LABEL,
};
use k8s_openapi::api::core::v1::Secret;
use kube::api::ObjectMeta;
use serde_json::json;

use super::desired_object::DesiredObject;
use super::kind::ObjectKind;

/// Name of all objects of the CSI driver.
pub const CSI_NAME: &str = "kubevirt-csi";

/// API groups, resources and verbs of the driver's Role. A user who creates the Role must have all these permissions,
/// or the verb `escalate`.
const CSI_ROLE_RULES: [(&str, &[&str], &[&str]); 6] = [
    ("cdi.kubevirt.io", &["datavolumes"], &["get", "create", "delete"]),
    ("kubevirt.io", &["virtualmachineinstances", "virtualmachines"], &["get", "list"]),
    (
        "subresources.kubevirt.io",
        &["virtualmachineinstances/addvolume", "virtualmachineinstances/removevolume"],
        &["update"],
    ),
    (
        "subresources.kubevirt.io",
        &["virtualmachines/addvolume", "virtualmachines/removevolume"],
        &["update"],
    ),
    ("snapshot.storage.k8s.io", &["volumesnapshots"], &["get", "create", "delete"]),
    ("", &["persistentvolumeclaims"], &["get", "list", "watch", "update", "patch"]),
];

/// Returns the Secret for the token of the driver's ServiceAccount, as KKP creates it.
#[must_use]
pub fn csi_token_secret(tenant: &str) -> Secret {
    let labels = [(MANAGED_BY_LABEL.0, MANAGED_BY_LABEL.1), (TENANT_LABEL, tenant)];
    let text = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
    Secret {
        metadata: ObjectMeta {
            name: Some(CSI_NAME.to_owned()),
            namespace: Some(TenantCluster::namespace_of(tenant)),
            labels: Some(labels.map(text).into()),
            annotations: Some([("kubernetes.io/service-account.name", CSI_NAME)].map(text).into()),
            ..ObjectMeta::default()
        },
        type_: Some("kubernetes.io/service-account-token".to_owned()),
        ..Secret::default()
    }
}

/// Returns the RoleBinding that permits the controller to read Secrets and ConfigMaps in the tenant's namespace, and to
/// create the Secrets of the tenant's machines. The controller has this permission only in namespaces of tenants. The
/// RoleBinding refers to a ClusterRole, so the controller needs only the verb `bind` for this ClusterRole. To create a
/// Role in the namespace, the controller would need the verb `escalate`, with which it could grant any permission.
#[must_use]
pub fn controller_role_binding(tenant: &str) -> DesiredObject {
    let (namespace, name) = CONTROLLER_SERVICE_ACCOUNT;
    let role_ref = json!({
        "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": CONTROLLER_TENANT_CLUSTER_ROLE,
    });
    let subjects = json!([{"kind": "ServiceAccount", "name": name, "namespace": namespace}]);
    let content = json!({"roleRef": role_ref, "subjects": subjects});
    DesiredObject::new(ObjectKind::RoleBinding, tenant, CONTROLLER_TENANT_CLUSTER_ROLE, content)
}

/// Returns ServiceAccount, Role and RoleBinding of the CSI driver, and the RoleBinding of the controller.
#[must_use]
pub fn csi_access_objects(tenant: &str) -> Vec<DesiredObject> {
    let rules: Vec<_> = CSI_ROLE_RULES
        .iter()
        .map(|(group, resources, verbs)| {
            json!({"apiGroups": [group], "resources": resources, "verbs": verbs})
        })
        .collect();
    let role_ref =
        json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": CSI_NAME});
    let namespace = TenantCluster::namespace_of(tenant);
    let subjects = json!([{"kind": "ServiceAccount", "name": CSI_NAME, "namespace": namespace}]);
    vec![
        DesiredObject::new(ObjectKind::ServiceAccount, tenant, CSI_NAME, json!({})),
        DesiredObject::new(ObjectKind::Role, tenant, CSI_NAME, json!({"rules": rules})),
        DesiredObject::new(
            ObjectKind::RoleBinding,
            tenant,
            CSI_NAME,
            json!({"roleRef": role_ref, "subjects": subjects}),
        ),
        controller_role_binding(tenant),
    ]
}
