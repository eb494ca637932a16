//! Pods and VirtualMachines that are attached to a tenant's network by their own definition, without a MachineDeployment.

use std::collections::BTreeSet;

use berth_api::{NetworkBinding, TenantCluster};
use serde_json::Value;

use super::deletion::NamespaceState;

/// Annotations of Multus with the networks that a pod requests.
const REQUEST_ANNOTATIONS: [&str; 2] =
    ["k8s.v1.cni.cncf.io/networks", "v1.multus-cni.io/default-network"];
/// Annotation in which Multus records the networks to which it has attached a pod.
const STATUS_ANNOTATION: &str = "k8s.v1.cni.cncf.io/network-status";

/// Network of a tenant that is being deleted.
#[derive(Clone, Copy, Debug)]
pub struct DeletedNetwork<'a> {
    /// Name of the tenant.
    pub tenant: &'a str,
    /// State of the tenant's namespace.
    pub namespace: NamespaceState,
    /// Namespaces and names of the NetworkAttachmentDefinitions that Berth created.
    pub definitions: &'a BTreeSet<(String, String)>,
}

impl DeletedNetwork<'_> {
    /// Returns kind, namespace and name of a pod or VirtualMachine that uses the network; `None` if the object does not use
    /// it, or is deleted with the namespace of the tenant. `kind` is the kind of the object.
    ///
    /// A request counts only if Berth created the NetworkAttachmentDefinition, so that the annotation of a pod that is never
    /// attached does not delay the deletion. An attached pod counts in any case, because its port stays when the definition
    /// is deleted.
    #[must_use]
    pub fn find_user(&self, kind: &str, object: &Value) -> Option<String> {
        let text =
            |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let (namespace, name) = (text("/metadata/namespace"), text("/metadata/name"));
        let is_deleted_with_tenant =
            matches!(self.namespace, NamespaceState::Owned | NamespaceState::Terminating)
                && namespace == TenantCluster::namespace_of(self.tenant);
        let has_ended = ["Succeeded", "Failed"].contains(&text("/status/phase"));
        if is_deleted_with_tenant || has_ended {
            return None;
        }
        let with_namespace =
            |(stated, name): Reference| (stated.unwrap_or_else(|| namespace.to_owned()), name);
        let mut requested = requested_networks(object).into_iter().map(with_namespace);
        let mut attached = attached_networks(kind, object).into_iter().map(with_namespace);
        let is_used = requested
            .any(|reference| self.has(&reference) && self.definitions.contains(&reference))
            || attached.any(|reference| self.has(&reference));
        is_used.then(|| format!("{kind} {namespace}/{name}"))
    }

    /// Returns true if a NetworkAttachmentDefinition is one of those that Berth creates for the network: in the namespace of
    /// the tenant, or in that of another tenant.
    fn has(&self, (namespace, name): &(String, String)) -> bool {
        const BINDINGS: [NetworkBinding; 3] =
            [NetworkBinding::Bridge, NetworkBinding::Sriov, NetworkBinding::Macvtap];
        if *namespace == TenantCluster::namespace_of(self.tenant) {
            BINDINGS.iter().any(|binding| binding.definition_name(self.tenant) == *name)
        } else {
            TenantCluster::additional_definition_name(self.tenant) == *name
        }
    }
}

/// Namespace of a NetworkAttachmentDefinition, if it is stated, and its name. The default is the namespace of the object that
/// refers to it.
type Reference = (Option<String>, String);

/// Returns the NetworkAttachmentDefinitions that a pod or VirtualMachine requests.
fn requested_networks(object: &Value) -> Vec<Reference> {
    let networks = object.pointer("/spec/template/spec/networks").and_then(Value::as_array);
    let names = networks.into_iter().flatten();
    let names = names.filter_map(|network| network.pointer("/multus/networkName")?.as_str());
    let mut found: Vec<Reference> = names.map(parse_reference).collect();
    for annotation in REQUEST_ANNOTATIONS {
        let text = object["metadata"]["annotations"][annotation].as_str().unwrap_or_default();
        match serde_json::from_str::<Vec<Value>>(text) {
            Ok(elements) => {
                let field =
                    |element: &Value, field: &str| element[field].as_str().map(str::to_owned);
                found.extend(elements.iter().filter_map(|element| {
                    Some((field(element, "namespace"), field(element, "name")?))
                }));
            }
            Err(_) => found.extend(text.split(',').map(str::trim).map(parse_reference)),
        }
    }
    found
}

/// Returns the NetworkAttachmentDefinitions to which Multus has attached a pod.
fn attached_networks(kind: &str, object: &Value) -> Vec<Reference> {
    let status = object["metadata"]["annotations"][STATUS_ANNOTATION].as_str();
    let status = status.filter(|_| kind == "Pod").unwrap_or_default();
    let elements: Vec<Value> = serde_json::from_str(status).unwrap_or_default();
    let names = elements.iter().filter_map(|element| element["name"].as_str());
    names.map(parse_reference).collect()
}

/// Parses `[NAMESPACE/]NAME[@INTERFACE]`.
fn parse_reference(text: &str) -> Reference {
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

    /// Returns the user of the network of the tenant `store`.
    fn user(namespace: NamespaceState, kind: &str, object: &Value) -> Option<String> {
        let definitions = [
            ("cluster-store", "tenant-store"),
            ("cluster-store", "tenant-store-sriov"),
            ("cluster-store", "berth-network-bank"),
            ("cluster-bank", "berth-network-store"),
        ];
        let definitions: BTreeSet<(String, String)> =
            definitions.map(|(namespace, name)| (namespace.to_owned(), name.to_owned())).into();
        DeletedNetwork { tenant: "store", namespace, definitions: &definitions }
            .find_user(kind, object)
    }

    fn pod_with(namespace: &str, annotation: &str, text: &str) -> Value {
        json!({"metadata": {
            "name": "p", "namespace": namespace, "annotations": {annotation: text},
        }})
    }

    fn pod(namespace: &str, networks: &str) -> Value {
        pod_with(namespace, "k8s.v1.cni.cncf.io/networks", networks)
    }

    #[test]
    fn pods_that_use_the_network_are_found() {
        let user = |object: &Value| user(NamespaceState::Owned, "Pod", object);
        for (networks, is_user) in [
            ("berth-network-store", true),
            ("net-a, cluster-bank/berth-network-store@eth1", true),
            ("cluster-store/tenant-store", true),
            ("cluster-store/tenant-store-sriov", true),
            (r#"[{"name": "berth-network-store"}]"#, true),
            (r#"[{"name": "tenant-store", "namespace": "cluster-store"}]"#, true),
            ("cluster-storage/tenant-store", false),
            // This definition is of the network of another tenant.
            ("cluster-store/berth-network-bank", false),
            ("berth-network-store2", false),
            ("tenant-store", false),
            (r#"[{"name": 7}, 7]"#, false),
            ("", false),
        ] {
            for annotation in REQUEST_ANNOTATIONS {
                let found = user(&pod_with("cluster-bank", annotation, networks));
                assert_eq!(found.as_deref(), is_user.then_some("Pod cluster-bank/p"), "{networks}");
            }
        }
        let mut ended = pod("cluster-bank", "berth-network-store");
        ended["status"] = json!({"phase": "Succeeded"});
        assert_eq!(user(&ended), None);
        assert_eq!(user(&json!(7)), None);
    }

    #[test]
    fn pods_in_a_namespace_that_stays_are_users() {
        let own = pod("cluster-store", "tenant-store");
        for (state, expected) in [
            (NamespaceState::Owned, None),
            (NamespaceState::Terminating, None),
            (NamespaceState::NotOwned, Some("Pod cluster-store/p")),
        ] {
            assert_eq!(user(state, "Pod", &own).as_deref(), expected, "{state:?}");
        }
        let foreign = pod("cluster-store", "berth-network-bank");
        assert_eq!(user(NamespaceState::NotOwned, "Pod", &foreign), None);
    }

    #[test]
    fn a_request_for_a_definition_of_another_creator_is_no_use() {
        // No object of this name exists in the namespace, or Berth did not create it.
        let hostile = pod("cluster-evil", "berth-network-store");
        assert_eq!(user(NamespaceState::Owned, "Pod", &hostile), None);
        let status = |name: &str| {
            let text = json!([{"name": "cbr0"}, {"name": name, "interface": "net1"}]).to_string();
            pod_with("cluster-evil", STATUS_ANNOTATION, &text)
        };
        let user = |kind: &str, object: &Value| user(NamespaceState::Owned, kind, object);
        // The port of an attached pod stays when its definition is deleted.
        let attached = status("cluster-evil/berth-network-store");
        assert_eq!(user("Pod", &attached).as_deref(), Some("Pod cluster-evil/p"));
        assert_eq!(user("VirtualMachine", &attached), None);
        assert_eq!(user("Pod", &status("cluster-evil/net-a")), None);
        assert_eq!(user("Pod", &pod_with("cluster-evil", STATUS_ANNOTATION, "{")), None);
    }

    #[test]
    fn virtual_machines_that_use_the_network_are_found() {
        let vm = |networks: Value| {
            json!({"metadata": {"name": "vm", "namespace": "cluster-bank"},
                "spec": {"template": {"spec": {"networks": networks}}}})
        };
        let user = |networks: Value| user(NamespaceState::Owned, "VirtualMachine", &vm(networks));
        let used = json!([{"name": "a", "pod": {}}, {"name": "b", "multus": {"networkName": "berth-network-store"}}]);
        assert_eq!(user(used).as_deref(), Some("VirtualMachine cluster-bank/vm"));
        assert_eq!(user(json!([{"name": "b", "multus": {"networkName": "other"}}])), None);
        assert_eq!(user(json!({"name": "b"})), None);
    }
}
