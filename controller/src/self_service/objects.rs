//! Objects of a granted request: the TenantCluster, and in the tenant's namespace the ServiceAccount of the requester, its
//! RoleBinding and the ResourceQuota.

use std::collections::BTreeMap;

use berth_api::names::{
    MANAGED_BY_LABEL, TENANT_GRANT_ANNOTATION, TENANT_REQUEST_ANNOTATION,
    TENANT_REQUEST_UID_ANNOTATION, TENANT_USER,
};
use berth_api::{Quantity, TenantCluster, TenantGrant};
use kube::ResourceExt as _;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::tenants::objects::{add_content_hash, differs};

/// Name of the ResourceQuota in a tenant's namespace.
pub const RESOURCE_QUOTA: &str = "berth-tenant-request";
/// Key of the number of machines in a ResourceQuota.
pub const MACHINE_COUNT: &str = "count/virtualmachines.kubevirt.io";
/// Key of the size of volumes in a ResourceQuota.
pub const STORAGE_SIZE: &str = "requests.storage";

/// Grant in the annotation of a TenantCluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantRecord {
    /// Name of the TenantQuota.
    pub quota: String,
    pub grant: TenantGrant,
}

/// Returns the UID of the TenantRequest for which a TenantCluster was created; `None` if it was not created for one.
#[must_use]
pub fn request_uid(tenant: &TenantCluster) -> Option<&str> {
    tenant.annotations().get(TENANT_REQUEST_UID_ANNOTATION).map(String::as_str)
}

/// Returns the grant that the controller recorded in a TenantCluster; `None` if there is none, or if it is not for this
/// TenantCluster. If an administrator has attached the TenantCluster to another request, the grant has the UID of this request, and
/// the generation 0, because no spec of this request has been granted.
#[must_use]
pub fn recorded_grant(tenant: &TenantCluster) -> Option<GrantRecord> {
    let text = tenant.annotations().get(TENANT_GRANT_ANNOTATION)?;
    let mut record: GrantRecord = serde_json::from_str(text).ok()?;
    let uid = request_uid(tenant).filter(|uid| !uid.is_empty())?;
    if record.grant.tenant != tenant.name_any() {
        return None;
    }
    if record.grant.uid != uid {
        uid.clone_into(&mut record.grant.uid);
        record.grant.generation = 0;
    }
    Some(record)
}

/// Returns the manifest of the TenantCluster of a grant.
#[must_use]
pub fn tenant_cluster(quota: &str, grant: &TenantGrant) -> Value {
    let resources = &grant.resources;
    let record = json!({"quota": quota, "grant": grant});
    let mut spec = json!({"allowedFlavors": resources.machines.flavors});
    if let Some(network) = &resources.network {
        spec["network"] = json!({"name": network.name});
        for (family, prefix) in [("ipv4", &network.ipv4), ("ipv6", &network.ipv6)] {
            if let Some(prefix) = prefix {
                spec["network"][family] = json!({"fromPool": prefix.pool});
            }
        }
    }
    if let Some(name) = &resources.kubeconfig_secret_name {
        // Without a namespace, the reference is to the namespace of the tenant, so it never reaches a Secret of another
        // tenant.
        spec["kubeconfigSecretRef"] = json!({ "name": name });
    }
    json!({
        "apiVersion": berth_api::names::API_VERSION,
        "kind": "TenantCluster",
        "metadata": {
            "name": grant.tenant,
            "labels": { MANAGED_BY_LABEL.0: MANAGED_BY_LABEL.1 },
            "annotations": {
                TENANT_REQUEST_ANNOTATION: format!("{}/{}", grant.namespace, grant.name),
                TENANT_REQUEST_UID_ANNOTATION: grant.uid,
                TENANT_GRANT_ANNOTATION: record.to_string(),
            },
        },
        "spec": spec,
    })
}

/// Returns true if the TenantCluster lacks fields of its manifest. The annotation with the grant shows changes of the grant, and
/// thus also removed fields.
#[must_use]
pub fn tenant_cluster_differs(desired: &Value, actual: &TenantCluster) -> bool {
    let actual = serde_json::to_value(actual).unwrap_or_default();
    ["metadata", "spec"].iter().any(|field| differs(&desired[*field], &actual[*field]))
}

/// Returns the ServiceAccount of the requester in the tenant's namespace.
#[must_use]
pub fn service_account(tenant: &str) -> Value {
    object("v1", "ServiceAccount", tenant, TENANT_USER, Value::Null)
}

/// Returns the RoleBinding of the requester to a ClusterRole, in the tenant's namespace. The permissions are those of a
/// ClusterRole, so that an administrator can change them for all tenants.
#[must_use]
pub fn role_binding(tenant: &str, role: &str) -> Value {
    let namespace = TenantCluster::namespace_of(tenant);
    let content = json!({
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": TENANT_USER, "namespace": namespace}],
    });
    object("rbac.authorization.k8s.io/v1", "RoleBinding", tenant, role, content)
}

/// Numbers of objects in a tenant's namespace, as the key of a ResourceQuota, the number for each machine, and a number for the
/// tenant's other objects. They are far above what a tenant needs, and protect the API server: a launcher pod and a migration, an
/// importer and a hotplug pod; disks, and the temporary volumes of CDI; snapshots of the tenant's CSI driver; Services of machines
/// and of the tenant's load balancers.
const OBJECT_COUNTS: [(&str, u64, u64); 7] = [
    ("pods", 8, 50),
    ("services", 2, 50),
    ("persistentvolumeclaims", 20, 200),
    ("count/volumesnapshots.snapshot.storage.k8s.io", 20, 200),
    ("count/datavolumes.cdi.kubevirt.io", 20, 200),
    ("count/secrets", 4, 100),
    ("count/machinedeployments.cluster.k8s.io", 1, 50),
];

/// Returns the ResourceQuota of the tenant's namespace: the numbers of machines and of other objects, and the size of volumes in
/// total and of each storage class of the cluster that is not granted.
#[must_use]
pub fn resource_quota(grant: &TenantGrant, storage_classes: &[String]) -> Value {
    let storage = grant.resources.storage.clone().unwrap_or_default();
    let mut hard = Map::new();
    let machines = grant.resources.machines.count;
    hard.insert(MACHINE_COUNT.to_owned(), machines.to_string().into());
    for (key, for_each_machine, for_tenant) in OBJECT_COUNTS {
        let count = u64::from(machines).saturating_mul(for_each_machine).saturating_add(for_tenant);
        hard.insert(key.to_owned(), count.to_string().into());
    }
    hard.insert(STORAGE_SIZE.to_owned(), storage.size.to_string().into());
    for class in storage_classes.iter().filter(|one| !storage.classes.contains(*one)) {
        let key = format!("{class}.storageclass.storage.k8s.io/requests.storage");
        hard.insert(key, "0".into());
    }
    object("v1", "ResourceQuota", &grant.tenant, RESOURCE_QUOTA, json!({"spec": {"hard": hard}}))
}

/// Returns the copy of a shared instance type or preference in a tenant's namespace.
#[must_use]
pub fn shared_copy(kind: &str, tenant: &str, shared_from: &str, name: &str, spec: &Value) -> Value {
    let version = "instancetype.kubevirt.io/v1beta1";
    let mut copy = object(version, kind, tenant, name, json!({ "spec": spec }));
    // Without the label of objects of a tenant, the reconciler of tenants does not delete the copy.
    copy["metadata"]["labels"][berth_api::names::SHARED_FROM_LABEL] = shared_from.into();
    add_content_hash(&mut copy);
    copy
}

/// Returns an object in a tenant's namespace. It has the label of the controller, but not that of the tenant: objects with both
/// labels belong to the reconciler of tenants, which deletes those that it does not create.
fn object(api_version: &str, kind: &str, tenant: &str, name: &str, content: Value) -> Value {
    let mut body = json!({
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": TenantCluster::namespace_of(tenant),
            "labels": { MANAGED_BY_LABEL.0: MANAGED_BY_LABEL.1 },
        },
    });
    if let (Some(body), Value::Object(content)) = (body.as_object_mut(), content) {
        body.extend(content);
    }
    add_content_hash(&mut body);
    body
}

/// Returns true if an object must be applied again.
#[must_use]
pub fn object_differs(desired: &Value, actual: &Value) -> bool {
    // The API server writes quantities in another form.
    if let (Some(desired_hard), Some(actual_hard)) = (hard_limits(desired), hard_limits(actual)) {
        return desired_hard != actual_hard || differs(&desired["metadata"], &actual["metadata"]);
    }
    differs(desired, actual)
}

fn hard_limits(object: &Value) -> Option<BTreeMap<&str, Option<Quantity>>> {
    let hard = object.pointer("/spec/hard")?.as_object()?;
    let parse = |value: &Value| serde_json::from_value::<Quantity>(value.clone()).ok();
    Some(hard.iter().map(|(key, value)| (key.as_str(), parse(value))).collect())
}

#[cfg(test)]
mod tests {
    use berth_api::{
        Bytes, RequestedMachines, RequestedNetwork, RequestedPrefix, RequestedStorage,
        TenantResources,
    };

    use super::*;

    fn grant() -> TenantGrant {
        let prefix = RequestedPrefix { pool: "corp".to_owned(), prefix_length: Some(24) };
        TenantGrant {
            uid: "u1".to_owned(),
            namespace: "team-a".to_owned(),
            name: "shop".to_owned(),
            tenant: "shop".to_owned(),
            generation: 1,
            resources: TenantResources {
                machines: RequestedMachines { count: 3, flavors: vec!["standard-2".to_owned()] },
                storage: Some(RequestedStorage {
                    size: Bytes(100 << 30),
                    classes: vec!["fast".to_owned()],
                }),
                network: Some(RequestedNetwork {
                    name: "trunk".to_owned(),
                    ipv4: Some(prefix),
                    ipv6: None,
                }),
                kubeconfig_secret_name: Some("kubeconfig".to_owned()),
            },
            ..TenantGrant::default()
        }
    }

    #[test]
    fn a_grant_becomes_a_tenant_cluster_with_its_record() {
        let manifest = tenant_cluster("small", &grant());
        assert_eq!(
            manifest["spec"],
            json!({
                "allowedFlavors": ["standard-2"],
                "network": {"name": "trunk", "ipv4": {"fromPool": "corp"}},
                "kubeconfigSecretRef": {"name": "kubeconfig"},
            })
        );
        let tenant: TenantCluster = serde_json::from_value(manifest.clone()).unwrap();
        assert_eq!(request_uid(&tenant), Some("u1"));
        let record = recorded_grant(&tenant).unwrap();
        assert_eq!(record, GrantRecord { quota: "small".to_owned(), grant: grant() });
        assert!(!tenant_cluster_differs(&manifest, &tenant));
        let mut other = grant();
        other.resources.machines.flavors.push("standard-4".to_owned());
        assert!(tenant_cluster_differs(&tenant_cluster("small", &other), &tenant));
    }

    #[test]
    fn a_record_of_another_tenant_is_ignored() {
        let mut manifest = tenant_cluster("small", &grant());
        manifest["metadata"]["name"] = "bank".into();
        let tenant: TenantCluster = serde_json::from_value(manifest).unwrap();
        assert_eq!(recorded_grant(&tenant), None);
    }

    #[test]
    fn a_record_of_an_attached_tenant_has_the_uid_of_the_later_request() {
        let mut manifest = tenant_cluster("small", &grant());
        let annotations = &mut manifest["metadata"]["annotations"];
        annotations["berth.dev/tenant-request-uid"] = "u2".into();
        let tenant: TenantCluster = serde_json::from_value(manifest).unwrap();
        let attached = TenantGrant { uid: "u2".to_owned(), generation: 0, ..grant() };
        let record = GrantRecord { quota: "small".to_owned(), grant: attached };
        assert_eq!(recorded_grant(&tenant), Some(record));
    }

    #[test]
    fn storage_classes_that_are_not_granted_have_no_quota() {
        let classes = ["fast".to_owned(), "slow".to_owned()];
        let mut quota = resource_quota(&grant(), &classes);
        assert_eq!(
            quota["spec"]["hard"],
            json!({
                "count/virtualmachines.kubevirt.io": "3",
                "count/datavolumes.cdi.kubevirt.io": "260",
                "count/machinedeployments.cluster.k8s.io": "53",
                "count/secrets": "112",
                "persistentvolumeclaims": "260",
                "count/volumesnapshots.snapshot.storage.k8s.io": "260",
                "pods": "74",
                "services": "56",
                "requests.storage": "100Gi",
                "slow.storageclass.storage.k8s.io/requests.storage": "0",
            })
        );
        let desired = quota.clone();
        quota["spec"]["hard"]["requests.storage"] = "102400Mi".into();
        assert!(!object_differs(&desired, &quota));
        quota["spec"]["hard"]["requests.storage"] = "101Gi".into();
        assert!(object_differs(&desired, &quota));
    }
}
