//! A desired object of a tenant, and the comparison with the actual object.

use berth_api::TenantCluster;
use berth_api::names::{MANAGED_BY_LABEL, TENANT_LABEL};
use kube::api::DynamicObject;
use serde_json::{Value, json};

use super::kind::ObjectKind;
use crate::tenants::claims::hash_strings;

/// Annotation with the hash of the last applied content.
const CONTENT_HASH_ANNOTATION: &str = "berth.dev/applied";

/// An object for server-side apply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredObject {
    pub kind: ObjectKind,
    /// Manifest of the object, which contains only the fields that Berth applies.
    pub body: Value,
}

impl DesiredObject {
    #[must_use]
    pub fn name(&self) -> &str {
        self.body["metadata"]["name"].as_str().unwrap_or_default()
    }

    /// Adds an annotation with the hash of the content. [`differs`] ignores fields that only the actual object has, so
    /// without the hash, a field that is no longer desired would stay. With the hash, the object differs, is applied,
    /// and the apply removes the field.
    #[must_use]
    pub fn with_content_hash(mut self) -> Self {
        add_content_hash(&mut self.body);
        self
    }

    /// Returns true if the actual object must be applied again: see [`differs`].
    #[must_use]
    pub fn differs_from(&self, actual: &DynamicObject) -> bool {
        let mut actual = serde_json::to_value(actual).unwrap_or(Value::Null);
        // In the list of a built-in kind, the items have no `apiVersion` and no `kind`, so both fields are set for the
        // comparison.
        for field in ["apiVersion", "kind"] {
            actual[field] = self.body[field].clone();
        }
        if self.kind == ObjectKind::Service {
            sort_service_ports(&self.body, &mut actual);
        }
        differs(&self.body, &actual)
    }

    /// Returns an object in a tenant's namespace, with Berth's labels.
    pub(super) fn new(kind: ObjectKind, tenant: &str, name: &str, content: Value) -> Self {
        let mut body = json!({
            "apiVersion": kind.api_version(),
            "kind": kind.name(),
            "metadata": {
                "name": name,
                "namespace": TenantCluster::namespace_of(tenant),
                "labels": { MANAGED_BY_LABEL.0: MANAGED_BY_LABEL.1, TENANT_LABEL: tenant },
            },
        });
        if let (Some(body), Value::Object(content)) = (body.as_object_mut(), content) {
            body.extend(content);
        }
        Self { kind, body }
    }
}

/// Adds the annotation with the hash of the content to a manifest: see [`DesiredObject::with_content_hash`].
pub fn add_content_hash(body: &mut Value) {
    let hash = format!("{:016x}", hash_strings(&[&body.to_string()]));
    body["metadata"]["annotations"][CONTENT_HASH_ANNOTATION] = hash.into();
}

/// Sorts the ports of the actual Service like those of the desired Service. The order of the ports has no meaning: the
/// list map keys of `spec.ports` are `port` and `protocol`. An apply on Kubernetes 1.20 keeps the order of the existing
/// ports, and appends new ports.
fn sort_service_ports(desired: &Value, actual: &mut Value) {
    const PORTS: &str = "/spec/ports";
    let desired = desired.pointer(PORTS).and_then(Value::as_array);
    let actual = actual.pointer_mut(PORTS).and_then(Value::as_array_mut);
    if let (Some(desired), Some(actual)) = (desired, actual) {
        actual.sort_by_key(|port| {
            let has_same_key = |other: &Value| {
                other["port"] == port["port"] && other["protocol"] == port["protocol"]
            };
            desired.iter().position(has_same_key)
        });
    }
}

/// Returns true if a desired field is absent from the actual object, or has another value there. Fields that only the
/// actual object has are ignored. A list is compared as one value: additional or missing entries are a difference. An
/// empty desired list equals an absent one, because API servers omit empty lists.
#[must_use]
pub fn differs(desired: &Value, actual: &Value) -> bool {
    match (desired, actual) {
        (Value::Object(desired), Value::Object(actual)) => {
            desired.iter().any(|(key, value)| match actual.get(key) {
                Some(actual) => differs(value, actual),
                // An absent map differs from an empty one: in a NetworkPolicy, a peer with `podSelector: {}` permits
                // less than a peer without `podSelector`.
                None => value.as_array().is_none_or(|list| !list.is_empty()),
            })
        }
        // A null in the actual object equals an empty desired map.
        (Value::Object(desired), Value::Null) => !desired.is_empty(),
        (Value::Array(desired), Value::Null) => !desired.is_empty(),
        (Value::Array(desired), Value::Array(actual)) => {
            desired.len() != actual.len()
                || desired.iter().zip(actual).any(|(desired, actual)| differs(desired, actual))
        }
        _ => desired != actual,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn added_fields_are_no_difference_but_added_entries_are() {
        let desired = json!({"a": {"b": 1}, "l": [{"x": 1}]});
        assert!(!differs(
            &desired,
            &json!({"a": {"b": 1, "c": 2}, "l": [{"x": 1, "y": 2}], "z": 3})
        ));
        assert!(differs(&desired, &json!({"a": {"b": 2}, "l": [{"x": 1}]})));
        assert!(differs(&desired, &json!({"a": {"b": 1}, "l": [{"x": 1}, {"x": 2}]})));
        assert!(differs(&desired, &json!({"a": {"b": 1}, "l": []})));
        assert!(differs(&desired, &json!({"a": {"b": 1}})));
    }

    #[test]
    fn an_absent_list_equals_an_empty_one_but_an_absent_map_does_not() {
        let desired = json!({"ingress": []});
        assert!(!differs(&desired, &json!({})));
        assert!(!differs(&desired, &json!({"ingress": null})));
        assert!(differs(&desired, &json!({"ingress": [{}]})));
        let desired = json!({"from": [{"podSelector": {}}]});
        assert!(differs(&desired, &json!({"from": [{"namespaceSelector": {}}]})));
    }

    #[test]
    fn the_order_of_service_ports_is_no_difference() {
        let port = |number: u16, protocol: &str| json!({"port": number, "protocol": protocol, "targetPort": number});
        let (ssh, api, dns) = (port(22, "TCP"), port(6443, "TCP"), port(22, "UDP"));
        let service = |ports: &[&Value]| {
            DesiredObject::new(
                ObjectKind::Service,
                "shop",
                "access-web-1",
                json!({"spec": {"ports": ports}}),
            )
        };
        let differs = |desired: &[&Value], actual: &[&Value]| {
            let actual: DynamicObject = serde_json::from_value(service(actual).body).unwrap();
            service(desired).differs_from(&actual)
        };
        assert!(!differs(&[&ssh, &api], &[&api, &ssh]));
        assert!(!differs(&[&ssh, &dns, &api], &[&api, &dns, &ssh]));
        for actual in [vec![&api, &dns], vec![&api], vec![&api, &ssh, &dns]] {
            assert!(differs(&[&ssh, &api], &actual), "{actual:?}");
        }
        let mut other_target = ssh.clone();
        other_target["targetPort"] = 2222.into();
        assert!(differs(&[&ssh, &api], &[&api, &other_target]));
    }

    #[test]
    fn a_removed_field_is_a_difference() {
        let desired = |labels: Value| {
            DesiredObject {
                kind: ObjectKind::Namespace,
                body: json!({"metadata": {"labels": labels}}),
            }
            .with_content_hash()
        };
        let (more, less) = (desired(json!({"a": "1", "b": "2"})), desired(json!({"a": "1"})));
        assert!(!differs(&more.body, &more.body));
        assert!(differs(&less.body, &more.body));
    }
}
