//! The objects that a tenant is to have, as server-side apply takes them: what Berth says, and nothing else.

pub mod access;
pub mod attachment;
mod flavours;
mod kind;
mod peers;
pub mod policies;
mod workloads;

use berth_api::TenantCluster;
use berth_api::names::{MANAGED_BY, TENANT};
use kube::ResourceExt as _;
use serde_json::{Value, json};

use super::claims::hash_of;
pub use flavours::flavours;
pub use kind::Kind;

/// Annotation: hash of the content that was applied.
const MARK: &str = "berth.dev/applied";

/// An object that is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// What it is.
    pub kind: Kind,
    /// All of it.
    pub body: Value,
}

impl Wanted {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.body["metadata"]["name"].as_str().unwrap_or_default()
    }

    /// With a mark of its content, so that a field that is no longer wanted is a difference too: what is there has another
    /// mark then, and the apply takes the field away.
    #[must_use]
    pub fn marked(mut self) -> Self {
        let mark = format!("{:016x}", hash_of(&[&self.body.to_string()]));
        self.body["metadata"]["annotations"][MARK] = mark.into();
        self
    }

    /// An object in a tenant's namespace, with Berth's labels.
    fn new(kind: Kind, tenant: &str, name: &str, content: Value) -> Self {
        let mut body = json!({
            "apiVersion": kind.api_version(),
            "kind": kind.name(),
            "metadata": {
                "name": name,
                "namespace": TenantCluster::namespace_of(tenant),
                "labels": { MANAGED_BY.0: MANAGED_BY.1, TENANT: tenant },
            },
        });
        if let (Some(body), Value::Object(content)) = (body.as_object_mut(), content) {
            body.extend(content);
        }
        Self { kind, body }
    }
}

/// A tenant's namespace. Its labels are what Cluster API's tools and KKP look for; that Berth made it is told by the label
/// that all its objects have, so a namespace that was there before is taken without it, and never deleted.
#[must_use]
pub fn namespace(tenant: &TenantCluster, made_by_berth: bool) -> Wanted {
    let id = tenant.name_any();
    let mut labels = json!({ TENANT: id, "cluster.x-k8s.io/cluster-name": id });
    if made_by_berth {
        labels[MANAGED_BY.0] = MANAGED_BY.1.into();
    }
    if let Some(project) = &tenant.spec.project_id {
        labels["kubermatic.k8c.io/project-id"] = project.as_str().into();
    }
    let body = json!({
        "apiVersion": Kind::Namespace.api_version(),
        "kind": Kind::Namespace.name(),
        "metadata": { "name": TenantCluster::namespace_of(&id), "labels": labels },
    });
    Wanted { kind: Kind::Namespace, body }
}

/// Whether an object that is there is not as wanted: a field that is wanted is absent or another. What others added is
/// theirs, but a list is one value: more or fewer entries make another.
#[must_use]
pub fn differs(wanted: &Value, there: &Value) -> bool {
    match (wanted, there) {
        (Value::Object(wanted), Value::Object(there)) => wanted
            .iter()
            .any(|(key, value)| there.get(key).is_none_or(|there| differs(value, there))),
        // A server leaves an empty list or map out.
        (Value::Object(wanted), Value::Null) => !wanted.is_empty(),
        (Value::Array(wanted), Value::Array(there)) => {
            wanted.len() != there.len()
                || wanted.iter().zip(there).any(|(wanted, there)| differs(wanted, there))
        }
        _ => wanted != there,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_add_is_no_difference_but_lists_are_whole() {
        let wanted = json!({"a": {"b": 1}, "l": [{"x": 1}]});
        assert!(!differs(
            &wanted,
            &json!({"a": {"b": 1, "c": 2}, "l": [{"x": 1, "y": 2}], "z": 3})
        ));
        assert!(differs(&wanted, &json!({"a": {"b": 2}, "l": [{"x": 1}]})));
        assert!(differs(&wanted, &json!({"a": {"b": 1}, "l": [{"x": 1}, {"x": 2}]})));
        assert!(differs(&wanted, &json!({"a": {"b": 1}, "l": []})));
        assert!(differs(&wanted, &json!({"a": {"b": 1}})));
    }

    #[test]
    fn what_is_no_longer_wanted_is_a_difference() {
        let wanted = |labels: Value| {
            Wanted { kind: Kind::Namespace, body: json!({"metadata": {"labels": labels}}) }.marked()
        };
        let (more, less) = (wanted(json!({"a": "1", "b": "2"})), wanted(json!({"a": "1"})));
        assert!(!differs(&more.body, &more.body));
        assert!(differs(&less.body, &more.body));
    }

    #[test]
    fn a_namespace_says_whose_it_is() {
        let spec = serde_json::from_value(json!({"projectID": "p1"})).unwrap();
        let tenant = TenantCluster::new("abc", spec);
        let ours = namespace(&tenant, true);
        assert_eq!(ours.name(), "cluster-abc");
        assert_eq!(
            ours.body["metadata"]["labels"],
            json!({
                "app.kubernetes.io/managed-by": "berth", "berth.dev/tenant": "abc",
                "cluster.x-k8s.io/cluster-name": "abc", "kubermatic.k8c.io/project-id": "p1",
            })
        );
        let others = namespace(&tenant, false);
        assert!(others.body["metadata"]["labels"].get("app.kubernetes.io/managed-by").is_none());
    }
}
