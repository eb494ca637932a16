//! Namespace of a tenant.

use berth_api::TenantCluster;
use berth_api::names::{MANAGED_BY_LABEL, TENANT_LABEL};
use kube::ResourceExt as _;
use serde_json::json;

use super::desired_object::DesiredObject;
use super::kind::ObjectKind;

/// Returns the Namespace object of a tenant, with the labels by which the tools of Cluster API and KKP select it. If
/// Berth did not create the namespace, the label [`MANAGED_BY_LABEL`] is omitted, so that Berth never deletes the
/// namespace.
#[must_use]
pub fn namespace_object(tenant: &TenantCluster, created_by_berth: bool) -> DesiredObject {
    let id = tenant.name_any();
    let mut labels = json!({ TENANT_LABEL: id, "cluster.x-k8s.io/cluster-name": id });
    if created_by_berth {
        labels[MANAGED_BY_LABEL.0] = MANAGED_BY_LABEL.1.into();
    }
    if let Some(project) = &tenant.spec.project_id {
        labels["kubermatic.k8c.io/project-id"] = project.as_str().into();
    }
    let body = json!({
        "apiVersion": ObjectKind::Namespace.api_version(),
        "kind": ObjectKind::Namespace.name(),
        "metadata": { "name": TenantCluster::namespace_of(&id), "labels": labels },
    });
    DesiredObject { kind: ObjectKind::Namespace, body }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_has_the_labels_of_its_tenant() {
        let spec = serde_json::from_value(json!({"projectID": "p1"})).unwrap();
        let tenant = TenantCluster::new("abc", spec);
        let owned = namespace_object(&tenant, true);
        assert_eq!(owned.name(), "cluster-abc");
        assert_eq!(
            owned.body["metadata"]["labels"],
            json!({
                "app.kubernetes.io/managed-by": "berth", "berth.dev/tenant": "abc",
                "cluster.x-k8s.io/cluster-name": "abc", "kubermatic.k8c.io/project-id": "p1",
            })
        );
        let others = namespace_object(&tenant, false);
        assert!(others.body["metadata"]["labels"].get("app.kubernetes.io/managed-by").is_none());
    }
}
