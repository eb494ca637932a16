//! Pods and VirtualMachines that are attached to a tenant's network by their own definition, without a MachineDeployment.

use berth_api::TenantCluster;
use serde_json::Value;

/// Annotation of Multus with the networks of a pod.
const NETWORKS_ANNOTATION: &str = "k8s.v1.cni.cncf.io/networks";

/// Returns namespace and name of a pod or VirtualMachine in another namespace that uses a NetworkAttachmentDefinition of the
/// tenant's network; `None` if the object does not use the network. `kind` is the kind of the object.
#[must_use]
pub fn network_user(kind: &str, object: &Value, tenant: &str) -> Option<String> {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (namespace, name) = (text("/metadata/namespace"), text("/metadata/name"));
    let own_namespace = TenantCluster::namespace_of(tenant);
    let has_ended = ["Succeeded", "Failed"].contains(&text("/status/phase"));
    // The objects in the tenant's namespace are deleted with the tenant.
    if namespace == own_namespace || has_ended {
        return None;
    }
    let definition = TenantCluster::additional_definition_name(tenant);
    let is_used = references(object).into_iter().any(|(of_namespace, name)| {
        name == definition || of_namespace.as_deref() == Some(own_namespace.as_str())
    });
    is_used.then(|| format!("{kind} {namespace}/{name}"))
}

/// Returns the NetworkAttachmentDefinitions that a pod or VirtualMachine refers to: their namespaces, if they are stated, and
/// names.
fn references(object: &Value) -> Vec<(Option<String>, String)> {
    let networks = object.pointer("/spec/template/spec/networks").and_then(Value::as_array);
    let names = networks.into_iter().flatten();
    let names = names.filter_map(|network| network.pointer("/multus/networkName")?.as_str());
    let mut found: Vec<_> = names.map(parse_reference).collect();
    let annotation = object["metadata"]["annotations"][NETWORKS_ANNOTATION].as_str();
    let Some(annotation) = annotation else { return found };
    match serde_json::from_str::<Vec<Value>>(annotation) {
        Ok(elements) => {
            let text = |element: &Value, field: &str| element[field].as_str().map(str::to_owned);
            found.extend(
                elements.iter().filter_map(|element| {
                    Some((text(element, "namespace"), text(element, "name")?))
                }),
            );
        }
        Err(_) => found.extend(annotation.split(',').map(str::trim).map(parse_reference)),
    }
    found
}

/// Parses `[NAMESPACE/]NAME[@INTERFACE]`.
fn parse_reference(text: &str) -> (Option<String>, String) {
    let text = text.split_once('@').map_or(text, |(definition, _)| definition);
    match text.split_once('/') {
        Some((namespace, name)) => (Some(namespace.to_owned()), name.to_owned()),
        None => (None, text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(namespace: &str, networks: &str) -> Value {
        json!({"metadata": {
            "name": "p", "namespace": namespace, "annotations": {NETWORKS_ANNOTATION: networks},
        }})
    }

    #[test]
    fn pods_that_use_the_network_are_found() {
        let user = |object: &Value| network_user("Pod", object, "store");
        for (networks, is_user) in [
            ("berth-network-store", true),
            ("net-a, cluster-bank/berth-network-store@eth1", true),
            ("cluster-store/tenant", true),
            (r#"[{"name": "berth-network-store"}]"#, true),
            (r#"[{"name": "tenant", "namespace": "cluster-store"}]"#, true),
            ("cluster-storage/tenant", false),
            ("berth-network-store2", false),
            (r#"[{"name": 7}, 7]"#, false),
            ("", false),
        ] {
            let found = user(&pod("cluster-bank", networks));
            assert_eq!(found.as_deref(), is_user.then_some("Pod cluster-bank/p"), "{networks}");
        }
        assert_eq!(user(&pod("cluster-store", "tenant")), None);
        let mut ended = pod("cluster-bank", "berth-network-store");
        ended["status"] = json!({"phase": "Succeeded"});
        assert_eq!(user(&ended), None);
        assert_eq!(user(&json!(7)), None);
    }

    #[test]
    fn virtual_machines_that_use_the_network_are_found() {
        let vm = |networks: Value| {
            json!({"metadata": {"name": "vm", "namespace": "office"},
                "spec": {"template": {"spec": {"networks": networks}}}})
        };
        let user = |networks: Value| network_user("VirtualMachine", &vm(networks), "store");
        let used = json!([{"name": "a", "pod": {}}, {"name": "b", "multus": {"networkName": "berth-network-store"}}]);
        assert_eq!(user(used).as_deref(), Some("VirtualMachine office/vm"));
        assert_eq!(user(json!([{"name": "b", "multus": {"networkName": "other"}}])), None);
        assert_eq!(user(json!({"name": "b"})), None);
    }
}
