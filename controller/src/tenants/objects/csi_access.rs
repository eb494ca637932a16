//! RBAC permissions of the tenant's KubeVirt CSI driver in the tenant's namespace. Names and rules are those of KKP
//! (`pkg/provider/cloud/kubevirt/csi.go` of kubermatic/kubermatic).

use berth_api::TenantCluster;
use berth_api::names::{
    ACCESS_REVOKED_ANNOTATION, CONTROLLER_SERVICE_ACCOUNT, CONTROLLER_TENANT_CLUSTER_ROLE,
    MANAGED_BY_LABEL, TENANT_LABEL,
};
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
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

/// Returns ServiceAccount, Role and RoleBinding of the CSI driver, and the RoleBinding of the controller. While the tenant of a
/// request is being deleted, the driver has no RoleBinding, so that it creates no volumes.
#[must_use]
pub fn csi_access_objects(tenant: &TenantCluster) -> Vec<DesiredObject> {
    let is_revoked = tenant.annotations().contains_key(ACCESS_REVOKED_ANNOTATION);
    let tenant = tenant.name_any();
    let tenant = tenant.as_str();
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
    let mut objects = vec![
        DesiredObject::new(ObjectKind::ServiceAccount, tenant, CSI_NAME, json!({})),
        DesiredObject::new(ObjectKind::Role, tenant, CSI_NAME, json!({"rules": rules})),
        controller_role_binding(tenant),
    ];
    if !is_revoked {
        let content = json!({"roleRef": role_ref, "subjects": subjects});
        let binding = DesiredObject::new(ObjectKind::RoleBinding, tenant, CSI_NAME, content);
        objects.push(binding);
    }
    objects
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csi_driver_of_a_closing_tenant_has_no_permissions() {
        let has_binding = |annotations: serde_json::Value| {
            let tenant = json!({
                "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster",
                "metadata": {"name": "shop", "annotations": annotations}, "spec": {},
            });
            let objects = csi_access_objects(&serde_json::from_value(tenant).unwrap());
            objects.iter().any(|one| one.kind == ObjectKind::RoleBinding && one.name() == CSI_NAME)
        };
        assert!(has_binding(json!({})));
        assert!(!has_binding(json!({ACCESS_REVOKED_ANNOTATION: "2026-11-28T00:00:00Z"})));
    }
}
