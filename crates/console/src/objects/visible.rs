//! The part of the objects that a user may see.

use std::collections::{BTreeMap, BTreeSet};

use berth_views::{Kind, ObjectName, Snapshot};

/// Objects of a kind that a user may see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    All,
    /// Objects in these namespaces, or cluster-scoped objects with these names.
    Some(BTreeSet<String>),
}

impl Scope {
    fn contains(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Some(names) => names.contains(name),
        }
    }

    fn is_empty(&self) -> bool {
        matches!(self, Self::Some(names) if names.is_empty())
    }

    /// Returns the name or namespace if there is only one.
    fn only_name(&self) -> Option<&str> {
        match self {
            Self::Some(names) if names.len() == 1 => names.first().map(String::as_str),
            Self::All | Self::Some(_) => None,
        }
    }
}

/// Objects that a user may see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Visible(BTreeMap<Kind, Scope>);

/// Scope of kinds that are missing in a [`Visible`].
static NOTHING: Scope = Scope::Some(BTreeSet::new());

impl Visible {
    pub(crate) const fn new(scopes: BTreeMap<Kind, Scope>) -> Self {
        Self(scopes)
    }

    pub(crate) fn scope(&self, kind: Kind) -> &Scope {
        self.0.get(&kind).unwrap_or(&NOTHING)
    }

    /// Returns true if the user may see all objects of all kinds.
    pub(crate) fn is_everything(&self) -> bool {
        Kind::ALL.iter().all(|kind| *self.scope(*kind) == Scope::All)
    }

    /// Returns true if the user may see an object.
    pub(crate) fn permits(&self, kind: Kind, name: &ObjectName) -> bool {
        let key = if kind.is_namespaced() { &name.namespace } else { &name.name };
        self.scope(kind).contains(key)
    }

    /// Returns a copy of the objects that the user may see, and of the problems of malformed ones. Kinds of which the user
    /// sees nothing, or only a part, are listed as unread.
    pub(crate) fn select(&self, all: &Snapshot) -> Snapshot {
        let mut selected = Snapshot::default();
        selected.nodes = self.by_name(Kind::Node, &all.nodes);
        selected.infra_nodes = self.by_name(Kind::InfraNode, &all.infra_nodes);
        selected.tenants = self.by_name(Kind::TenantCluster, &all.tenants);
        selected.vlan_claims = self.by_name(Kind::VlanClaim, &all.vlan_claims);
        selected.address_claims = self.by_name(Kind::AddressClaim, &all.address_claims);
        selected.deployments = self.by_namespace(Kind::MachineDeployment, &all.deployments);
        selected.machines = self.by_namespace(Kind::VirtualMachine, &all.machines);
        selected.instances = self.by_namespace(Kind::VirtualMachineInstance, &all.instances);
        selected.pods = self.by_namespace(Kind::LauncherPod, &all.pods);
        selected.services = self.by_namespace(Kind::MachineService, &all.services);
        selected.storage_classes = self.by_name(Kind::StorageClass, &all.storage_classes);
        selected.unread.clone_from(&all.unread);
        let outdated = all.outdated.iter().filter(|(kind, _)| !self.scope(**kind).is_empty());
        selected.outdated = outdated.map(|(kind, since)| (*kind, *since)).collect();
        if *self.scope(Kind::InfraConfig) == Scope::All {
            selected.config.clone_from(&all.config);
        }
        for kind in Kind::ALL {
            let scope = self.scope(kind);
            if *scope == Scope::All {
                continue;
            }
            let only_namespace = scope.only_name().filter(|_| kind.is_namespaced());
            let reason = if scope.is_empty() || only_namespace.is_some() {
                "you have no permission to list them"
            } else if kind.is_namespaced() {
                "you have permission to list them in some namespaces only"
            } else {
                "you have permission to read some of them only"
            };
            selected.set_unread(kind, only_namespace, reason);
        }
        selected.copy_problems(all, |kind, name| self.permits(kind, name));
        selected
    }

    fn by_name<T: Clone>(&self, kind: Kind, all: &BTreeMap<String, T>) -> BTreeMap<String, T> {
        match self.scope(kind) {
            Scope::All => all.clone(),
            Scope::Some(names) => {
                let found = names.iter().filter_map(|name| all.get_key_value(name));
                found.map(|(name, object)| (name.clone(), object.clone())).collect()
            }
        }
    }

    fn by_namespace<T: Clone>(
        &self,
        kind: Kind,
        all: &BTreeMap<ObjectName, T>,
    ) -> BTreeMap<ObjectName, T> {
        match self.scope(kind) {
            Scope::All => all.clone(),
            Scope::Some(namespaces) => {
                let found = namespaces.iter().flat_map(|namespace| {
                    let first = ObjectName::new(namespace.as_str(), "");
                    all.range(first..).take_while(move |(name, _)| name.namespace == *namespace)
                });
                found.map(|(name, object)| (name.clone(), object.clone())).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn object(kind: Kind, namespace: &str, name: &str) -> Value {
        let [group, version, kind, _] = kind.resource();
        let metadata = json!({"namespace": namespace, "name": name});
        json!({"apiVersion": format!("{group}/{version}"), "kind": kind, "metadata": metadata, "spec": {}})
    }

    /// Returns a snapshot with an object of each namespaced kind in each of three namespaces, and two objects of each
    /// cluster-scoped kind.
    fn test_snapshot() -> Snapshot {
        let mut snapshot = Snapshot::default();
        for kind in Kind::ALL {
            if kind.is_namespaced() {
                for namespace in ["a", "ab", "b"] {
                    snapshot.add(kind, &object(kind, namespace, "x"));
                }
            } else if matches!(kind, Kind::Node | Kind::StorageClass | Kind::TenantCluster) {
                for name in ["one", "two"] {
                    snapshot.add(kind, &object(kind, "", name));
                }
            }
        }
        snapshot
    }

    #[test]
    fn other_namespaces_and_names_are_left_out() {
        let all = test_snapshot();
        let some = |name: &str| Scope::Some(BTreeSet::from([name.to_owned()]));
        let scopes = BTreeMap::from([
            (Kind::VirtualMachine, some("a")),
            (Kind::VirtualMachineInstance, Scope::All),
            (Kind::TenantCluster, some("two")),
        ]);
        let visible = Visible::new(scopes);
        let selected = visible.select(&all);
        let names = |map: &BTreeMap<ObjectName, _>| map.keys().map(ToString::to_string).collect();
        let machines: Vec<String> = names(&selected.machines);
        assert_eq!(machines, ["a/x"]);
        assert_eq!(selected.instances.len(), 3);
        let tenants: Vec<&String> = selected.tenants.keys().collect();
        assert_eq!(tenants, ["two"]);
        assert!(selected.pods.is_empty() && selected.nodes.is_empty());
        assert!(selected.services.is_empty() && selected.storage_classes.is_empty());
        assert!(selected.deployments.is_empty() && selected.infra_nodes.is_empty());
        assert!(!visible.is_everything());
        assert!(visible.permits(Kind::VirtualMachine, &ObjectName::new("a", "other")));
        assert!(!visible.permits(Kind::VirtualMachine, &ObjectName::new("ab", "x")));
        assert!(!visible.permits(Kind::Node, &ObjectName::new("", "one")));
        let unread = |kind: Kind| selected.unread.iter().find(|one| one.kind == kind);
        let machines = unread(Kind::VirtualMachine).unwrap().to_string();
        let refused = "you have no permission to list them";
        assert_eq!(machines, format!("virtualmachines outside namespace a: {refused}"));
        assert_eq!(unread(Kind::Node).unwrap().to_string(), format!("nodes: {refused}"));
        assert!(unread(Kind::VirtualMachineInstance).is_none());
    }

    #[test]
    fn problems_of_objects_that_the_user_may_not_see_are_left_out() {
        let mut all = Snapshot::default();
        for name in ["one", "two"] {
            all.add(Kind::InfraNode, &json!({"metadata": {"name": name}, "spec": 1}));
            all.add(Kind::TenantCluster, &json!({"metadata": {"name": name}, "spec": 1}));
        }
        let own = Scope::Some(BTreeSet::from(["two".to_owned()]));
        let scopes = BTreeMap::from([(Kind::InfraNode, Scope::All), (Kind::TenantCluster, own)]);
        let selected = Visible::new(scopes).select(&all);
        let problems: Vec<String> = selected.problems().map(ToString::to_string).collect();
        assert_eq!(problems.len(), 3, "{problems:?}");
        let is_malformed = |kind, name| selected.is_malformed(kind, &ObjectName::new("", name));
        assert!(is_malformed(Kind::InfraNode, "one") && is_malformed(Kind::TenantCluster, "two"));
        assert!(!is_malformed(Kind::TenantCluster, "one"));
    }
}
