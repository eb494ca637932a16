//! Evaluates RBAC: the permissions of the controller's ServiceAccount, and those of the manifests in `deploy/`.

use std::fmt;

use berth_api::names::{CONTROLLER_SERVICE_ACCOUNT, NAMESPACE};
use serde_json::Value;

use super::input::Input;
use super::kind::Kind;
use super::read::Unread;
use super::values::{items, name, text, texts};

/// Namespaces in which RoleBindings of the manifests grant permissions to the controller. ClusterRoleBindings grant the
/// permissions that apply in all namespaces.
const NAMESPACES: [&str; 3] = [NAMESPACE, "default", "kube-system"];

/// Permission for one verb of one resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Permission<'v> {
    verb: &'v str,
    group: &'v str,
    resource: &'v str,
    /// Name of the only object to which the permission applies (`resourceNames`); `None` if it applies to all objects.
    name: Option<&'v str>,
    /// Namespace in which the permission applies; empty if it applies in all namespaces.
    namespace: &'v str,
}

impl fmt::Display for Permission<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { verb, group, resource, name, namespace } = self;
        write!(f, "{verb} {resource}")?;
        if !group.is_empty() {
            write!(f, ".{group}")?;
        }
        if let Some(name) = name {
            write!(f, " {name}")?;
        }
        if namespace.is_empty() { Ok(()) } else { write!(f, " in {namespace}") }
    }
}

/// Returns the permissions that the rules of a role grant in a namespace.
pub(super) fn permissions_of<'v>(role: &'v Value, namespace: &'v str) -> Vec<Permission<'v>> {
    let mut all = Vec::new();
    for rule in items(role, "/rules") {
        let names = texts(rule, "/resourceNames");
        let names: Vec<Option<&str>> = match names.is_empty() {
            true => vec![None],
            false => names.into_iter().map(Some).collect(),
        };
        for group in texts(rule, "/apiGroups") {
            for resource in texts(rule, "/resources") {
                for verb in texts(rule, "/verbs") {
                    all.extend(names.iter().map(|name| Permission {
                        verb,
                        group,
                        resource,
                        name: *name,
                        namespace,
                    }));
                }
            }
        }
    }
    all
}

/// A rule of a role, and the namespace in which the role is bound. The namespace is empty if a ClusterRoleBinding binds
/// the role in all namespaces.
#[derive(Clone, Copy, Debug)]
pub(super) struct BoundRule<'v> {
    rule: &'v Value,
    namespace: &'static str,
}

impl<'v> BoundRule<'v> {
    /// Returns the rules of a role.
    pub(super) fn all_of(role: &'v Value, namespace: &'static str) -> impl Iterator<Item = Self> {
        items(role, "/rules").map(move |rule| Self { rule, namespace })
    }

    /// Returns true if the rule grants the permission.
    pub(super) fn grants(&self, permission: &Permission<'_>) -> bool {
        let contains = |field: &str, value: &str| {
            texts(self.rule, field).iter().any(|one| *one == value || *one == "*")
        };
        // In a rule, `*/status` stands for the subresource `status` of all resources.
        let subresource = permission.resource.split_once('/').map(|(_, name)| format!("*/{name}"));
        let has_resource = contains("/resources", permission.resource)
            || subresource.is_some_and(|any| contains("/resources", &any));
        let names = texts(self.rule, "/resourceNames");
        let has_name =
            names.is_empty() || permission.name.is_some_and(|name| names.contains(&name));
        let has_namespace = self.namespace.is_empty() || self.namespace == permission.namespace;
        has_namespace
            && has_name
            && has_resource
            && contains("/apiGroups", permission.group)
            && contains("/verbs", permission.verb)
    }
}

/// Returns the rules that are bound to the controller's ServiceAccount.
pub(super) fn rules_of_controller(input: &Input) -> Result<Vec<BoundRule<'_>>, Unread> {
    let cluster_roles = input.objects(Kind::ClusterRole)?;
    let mut all = Vec::new();
    let bindings = input.objects(Kind::ClusterRoleBinding)?;
    for binding in bindings.iter().filter(|one| is_bound(one, "")) {
        all.extend(bound_rules(cluster_roles, binding, ""));
    }
    for namespace in NAMESPACES {
        let roles = input.objects_in(Kind::Role, namespace)?;
        let bindings = input.objects_in(Kind::RoleBinding, namespace)?;
        for binding in bindings.iter().filter(|one| is_bound(one, namespace)) {
            let is_role = text(binding, "/roleRef/kind") == "Role";
            let roles = if is_role { roles } else { cluster_roles };
            all.extend(bound_rules(roles, binding, namespace));
        }
    }
    Ok(all)
}

/// Returns the rules of the role that a binding names.
fn bound_rules<'v>(
    roles: &'v [Value],
    binding: &Value,
    namespace: &'static str,
) -> Vec<BoundRule<'v>> {
    let role = text(binding, "/roleRef/name");
    let named = roles.iter().filter(|one| name(one) == role);
    named.flat_map(|role| BoundRule::all_of(role, namespace)).collect()
}

/// Returns true if the controller's ServiceAccount, or a group to which it belongs, is a subject of the binding.
/// `binding_namespace` is empty for a ClusterRoleBinding.
fn is_bound(binding: &Value, binding_namespace: &str) -> bool {
    let (namespace, account) = CONTROLLER_SERVICE_ACCOUNT;
    items(binding, "/subjects").any(|subject| {
        let name = text(subject, "/name");
        match text(subject, "/kind") {
            "ServiceAccount" => {
                // For a subject without a namespace, RBAC assumes the namespace of the binding. Current API servers
                // refuse such a subject.
                let own = match text(subject, "/namespace") {
                    "" => binding_namespace,
                    own => own,
                };
                name == account && own == namespace
            }
            "User" => name == format!("system:serviceaccount:{namespace}:{account}"),
            "Group" => {
                ["system:authenticated", "system:serviceaccounts"].contains(&name)
                    || name == format!("system:serviceaccounts:{namespace}")
            }
            _ => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rules_grant_permissions_as_in_kubernetes() {
        let permission = Permission {
            verb: "get",
            group: "",
            resource: "pods/status",
            name: None,
            namespace: "a",
        };
        let rule = |groups: &[&str], resources: &[&str], verbs: &[&str]| json!({"rules": [{"apiGroups": groups, "resources": resources, "verbs": verbs}]});
        let grants = |role: &Value, namespace, permission: &Permission<'_>| {
            BoundRule::all_of(role, namespace).any(|rule| rule.grants(permission))
        };
        for (role, is_granted) in [
            (rule(&[""], &["pods/status"], &["list", "get"]), true),
            (rule(&["*"], &["*"], &["*"]), true),
            (rule(&[""], &["*/status"], &["get"]), true),
            (rule(&[""], &["pods"], &["get"]), false),
            (rule(&["apps"], &["pods/status"], &["get"]), false),
            (rule(&[""], &["pods/status"], &["list"]), false),
            (json!({"rules": {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}}), false),
        ] {
            assert_eq!(grants(&role, "", &permission), is_granted, "{role}");
            assert_eq!(grants(&role, "a", &permission), is_granted, "{role}");
            assert!(!grants(&role, "default", &permission), "{role}");
        }
        let mut named = rule(&[""], &["pods/status"], &["get"]);
        named["rules"][0]["resourceNames"] = json!(["web", "db"]);
        assert!(!grants(&named, "", &permission), "all objects");
        assert!(grants(&named, "", &Permission { name: Some("db"), ..permission }));
        assert!(!grants(&named, "", &Permission { name: Some("x"), ..permission }));
        let all = permissions_of(&named, "a");
        let all: Vec<String> = all.iter().map(ToString::to_string).collect();
        assert_eq!(all, ["get pods/status web in a", "get pods/status db in a"]);
    }

    #[test]
    fn bindings_name_the_account_or_its_groups() {
        let is_bound_in = |namespace: &str, subject: Value| {
            is_bound(&json!({"subjects": [null, subject]}), namespace)
        };
        let is_bound_to = |subject: Value| is_bound_in("", subject);
        let account = |namespace: &str| json!({"kind": "ServiceAccount", "name": "berth-controller", "namespace": namespace});
        assert!(is_bound_to(account("berth-system")));
        assert!(!is_bound_to(account("default")));
        assert!(!is_bound_in("berth-system", account("default")));
        assert!(is_bound_in("berth-system", account("")));
        assert!(!is_bound_in("kube-system", account("")));
        assert!(!is_bound_to(account("")));
        let user = "system:serviceaccount:berth-system:berth-controller";
        assert!(is_bound_to(json!({"kind": "User", "name": user})));
        assert!(is_bound_to(
            json!({"kind": "Group", "name": "system:serviceaccounts:berth-system"})
        ));
        assert!(!is_bound_to(json!({"kind": "Group", "name": "system:masters"})));
        assert!(!is_bound(&json!({"subjects": "berth-controller"}), ""));
    }
}
