//! Configuration of MetalLB for a tenant: the address pool, and its announcement.
//!
//! Both objects are outside of the tenant's namespace. The TenantCluster owns them, so they are deleted after the
//! TenantCluster.

use berth_api::{Advertisement, InfraConfigSpec, LoadBalancers, TenantCluster};
use kube::{Resource as _, ResourceExt as _};
use serde_json::{Value, json};

use super::desired_object::DesiredObject;
use super::kind::ObjectKind;

/// Namespace of MetalLB if the InfraConfig does not specify one.
const METALLB_NAMESPACE: &str = "metallb-system";

/// Returns the name of a tenant's address pool.
#[must_use]
pub(super) fn pool_name(tenant: &str) -> String {
    format!("tenant-{tenant}")
}

/// Returns the IPAddressPool of a tenant, and its L2Advertisement if the spec requests that Berth announces the
/// addresses.
#[must_use]
pub fn load_balancer_pool_objects(
    tenant: &TenantCluster,
    requested: &LoadBalancers,
    config: &InfraConfigSpec,
) -> Vec<DesiredObject> {
    let id = tenant.name_any();
    let name = pool_name(&id);
    // MetalLB accepts networks and ranges, but no single addresses.
    let addresses: Vec<String> = requested
        .addresses
        .iter()
        .map(|range| format!("{}-{}", range.first(), range.last()))
        .collect();
    let namespace = config.metallb_namespace.as_deref().unwrap_or(METALLB_NAMESPACE);
    let object = |kind: ObjectKind, spec: Value| {
        let mut object = DesiredObject::new(kind, &id, &name, json!({"spec": spec}));
        object.body["metadata"]["namespace"] = namespace.into();
        object.body["metadata"]["ownerReferences"] = json!([{
            "apiVersion": TenantCluster::api_version(&()), "kind": TenantCluster::kind(&()),
            "name": id, "uid": tenant.uid().unwrap_or_default(),
        }]);
        object
    };
    let pool = json!({
        "addresses": addresses,
        "autoAssign": requested.auto_assign.unwrap_or(true),
        "serviceAllocation": {"namespaces": [TenantCluster::namespace_of(&id)]},
    });
    let mut objects = vec![object(ObjectKind::IpAddressPool, pool)];
    if requested.advertise.unwrap_or_default() == Advertisement::L2 {
        let spec = json!({"ipAddressPools": [name], "interfaces": requested.interfaces});
        objects.push(object(ObjectKind::L2Advertisement, spec));
    }
    objects
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(load_balancers: Value, config: Value) -> Vec<DesiredObject> {
        let tenant: TenantCluster = serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster",
            "metadata": {"name": "shop", "uid": "u"}, "spec": {},
        }))
        .unwrap();
        load_balancer_pool_objects(
            &tenant,
            &serde_json::from_value(load_balancers).unwrap(),
            &serde_json::from_value(config).unwrap(),
        )
    }

    #[test]
    fn the_pool_serves_only_the_namespace_of_the_tenant() {
        let addresses = json!(["192.0.2.10", "192.0.2.64/30", "2001:db8::10-2001:db8::1f"]);
        let all = render(json!({"addresses": addresses, "interfaces": ["bond0"]}), json!({}));
        assert_eq!(
            all[0].body,
            json!({
                "apiVersion": "metallb.io/v1beta1", "kind": "IPAddressPool",
                "metadata": {
                    "name": "tenant-shop", "namespace": "metallb-system",
                    "labels": {"app.kubernetes.io/managed-by": "berth", "berth.dev/tenant": "shop"},
                    "ownerReferences": [{
                        "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "name": "shop", "uid": "u",
                    }],
                },
                "spec": {
                    "addresses": [
                        "192.0.2.10-192.0.2.10", "192.0.2.64-192.0.2.67", "2001:db8::10-2001:db8::1f",
                    ],
                    "autoAssign": true, "serviceAllocation": {"namespaces": ["cluster-shop"]},
                },
            })
        );
        assert_eq!(
            all[1].body["spec"],
            json!({"ipAddressPools": ["tenant-shop"], "interfaces": ["bond0"]})
        );
    }

    #[test]
    fn the_advertisement_is_optional_and_the_namespace_is_configured() {
        let requested =
            json!({"addresses": ["192.0.2.0/24"], "advertise": "None", "autoAssign": false});
        let all = render(requested, json!({"metallbNamespace": "load-balancers"}));
        let kinds: Vec<ObjectKind> = all.iter().map(|one| one.kind).collect();
        assert_eq!(kinds, [ObjectKind::IpAddressPool]);
        assert_eq!(all[0].body["metadata"]["namespace"], "load-balancers");
        assert_eq!(all[0].body["spec"]["autoAssign"], false);
    }
}
