//! Names of tenants to which the configuration of administrators refers. A requested tenant of such a name would get what was
//! configured for another one: devices, connections to networks and pods, or Secrets and images that others use.

use std::collections::BTreeSet;

use berth_api::names::{TENANT_LABEL, TENANT_PREFIX};
use berth_api::{InfraConfigSpec, TenantCluster};
use serde_json::Value;

/// Returns the names to which the InfraConfig or a TenantCluster refers: as a tenant, or by the tenant's namespace.
#[must_use]
pub fn reserved_names<'t>(
    config: &InfraConfigSpec,
    tenants: impl IntoIterator<Item = &'t TenantCluster>,
) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let devices = config.host_devices.iter().flat_map(|devices| &devices.allowed);
    names.extend(devices.flat_map(|device| &device.tenants).cloned());
    let networks = config.additional_networks.iter().filter(|name| !name.contains('/'));
    names.extend(networks.cloned());
    collect_names(&serde_json::to_value(config).unwrap_or_default(), "", &mut names);
    for tenant in tenants {
        names.extend(tenant.additional_tenants().map(str::to_owned));
        collect_names(&serde_json::to_value(&tenant.spec).unwrap_or_default(), "", &mut names);
    }
    names
}

/// Collects the tenants whose namespaces or labels a value contains: `cluster-NAME`, `cluster-NAME/OBJECT`, and the label of a
/// tenant in selectors. `key` is the key of the value.
fn collect_names(value: &Value, key: &str, names: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            // An expression of a label selector has the key of its values in a field.
            let selected = fields.get("key").and_then(Value::as_str);
            for (key, value) in fields {
                let key = selected.filter(|_| key == "values").unwrap_or(key);
                collect_names(value, key, names);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| collect_names(value, key, names)),
        Value::String(text) => {
            if key == TENANT_LABEL {
                names.insert(text.clone());
            }
            if let Some(name) = text.strip_prefix(TENANT_PREFIX) {
                let end = name.find('/').unwrap_or(name.len());
                names.extend(name.get(..end).map(str::to_owned));
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config(spec: Value) -> InfraConfigSpec {
        serde_json::from_value(spec).unwrap()
    }

    fn names(config: &InfraConfigSpec, tenants: &[TenantCluster]) -> Vec<String> {
        reserved_names(config, tenants).into_iter().collect()
    }

    #[test]
    fn names_in_the_configuration_are_reserved() {
        let config = config(json!({
            "hostDevices": {"allowed": [{"resourceName": "example.com/gpu", "tenants": ["gpu"]}]},
            "additionalNetworks": ["shared", "cluster-storage/backup", "storage/ceph"],
            "secretReferences": [{"namespace": "cluster-registry", "name": "pull"}],
            "selfService": {"flavorsNamespace": "cluster-flavors", "server": "https://cluster-api:6443"},
        }));
        assert_eq!(names(&config, &[]), ["flavors", "gpu", "registry", "shared", "storage"]);
    }

    #[test]
    fn names_in_tenants_are_reserved() {
        let policy = json!({
            "podSelector": {},
            "ingress": [{"from": [
                {"namespaceSelector": {"matchLabels": {"berth.dev/tenant": "partner"}}},
                {"namespaceSelector": {"matchExpressions": [{
                    "key": "kubernetes.io/metadata.name", "operator": "In", "values": ["cluster-audit", "monitoring"],
                }]}},
                {"namespaceSelector": {"matchExpressions": [{
                    "key": "berth.dev/tenant", "operator": "In", "values": ["supplier"],
                }]}},
            ]}],
        });
        let tenant: TenantCluster = serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": "bank"},
            "spec": {
                "network": {"name": "trunk", "additional": ["backup", "storage/ceph"]},
                "networkPolicies": {"custom": [{"name": "partner", "spec": policy}]},
                "machineNamespaces": ["cluster-legacy", "kube-system"],
            },
        }))
        .unwrap();
        let found = names(&InfraConfigSpec::default(), &[tenant]);
        assert_eq!(found, ["audit", "backup", "legacy", "partner", "supplier"]);
    }
}
