//! Permission to clone golden images of a shared namespace.
//!
//! KubeVirt creates a DataVolume of a VM only if the ServiceAccount of the VM may clone from the namespace of the source:
//! the verb `create` for `datavolumes/source` (`authorizeDataVolume` in kubevirt/kubevirt, `AuthorizeSA` in CDI). For a VM
//! without a ServiceAccount, such as a machine, this is the ServiceAccount `default` of the VM's namespace.

use berth_api::TenantCluster;
use berth_api::names::{
    IMAGE_CLONE_CLUSTER_ROLE, IMAGE_GRANT_LABEL, MANAGED_BY_LABEL, TENANT_LABEL,
};
use serde_json::{Value, json};

const RBAC_GROUP: &str = "rbac.authorization.k8s.io";
/// ServiceAccount of VMs that name none.
const DEFAULT_SERVICE_ACCOUNT: &str = "default";

/// Returns the ClusterRole to which [`clone_role_binding`] refers. The controller needs only the verb `bind` for it.
/// To create a Role in the namespace, the controller would need the permission to clone from every namespace.
#[must_use]
pub fn clone_cluster_role() -> Value {
    json!({
        "apiVersion": format!("{RBAC_GROUP}/v1"),
        "kind": "ClusterRole",
        "metadata": {"name": IMAGE_CLONE_CLUSTER_ROLE},
        "rules": [{
            "apiGroups": ["cdi.kubevirt.io"], "resources": ["datavolumes/source"], "verbs": ["create"],
        }],
    })
}

/// Returns the RoleBinding in the namespace of golden images that permits the machines of a tenant to be cloned from
/// them. The permission includes every volume of the namespace: the names of the volumes of a DataImportCron change with
/// each import.
#[must_use]
pub fn clone_role_binding(image_namespace: &str, tenant: &str) -> Value {
    json!({
        "apiVersion": format!("{RBAC_GROUP}/v1"),
        "kind": "RoleBinding",
        "metadata": {
            "namespace": image_namespace,
            "name": format!("{IMAGE_CLONE_CLUSTER_ROLE}-{tenant}"),
            "labels": {
                MANAGED_BY_LABEL.0: MANAGED_BY_LABEL.1, TENANT_LABEL: tenant, IMAGE_GRANT_LABEL: "true",
            },
        },
        "roleRef": {"apiGroup": RBAC_GROUP, "kind": "ClusterRole", "name": IMAGE_CLONE_CLUSTER_ROLE},
        "subjects": [{
            "kind": "ServiceAccount", "name": DEFAULT_SERVICE_ACCOUNT,
            "namespace": TenantCluster::namespace_of(tenant),
        }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_machines_of_the_tenant_get_the_permission() {
        let binding = clone_role_binding("images", "abc");
        assert_eq!(binding["metadata"]["namespace"], "images");
        assert_eq!(binding["metadata"]["name"], "berth-image-clone-abc");
        assert_eq!(
            binding["subjects"],
            json!([{"kind": "ServiceAccount", "name": "default", "namespace": "cluster-abc"}])
        );
        assert_eq!(binding["roleRef"]["name"], clone_cluster_role()["metadata"]["name"]);
    }
}
