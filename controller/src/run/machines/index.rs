//! Indexes of the objects in the stores. With the indexes, a reconcile of one of a thousand MachineDeployments does not
//! iterate over ten thousand machines, and an event of a machine does not trigger all deployments with the same name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{PoisonError, RwLock};

use berth_api::names;
use kube::ResourceExt as _;
use kube::api::DynamicObject;

use berth_kubevirt_render::machines::MACHINE_DEPLOYMENT_KIND;

/// Namespace and name of an object.
pub(super) type ObjectKey = (String, String);

/// Objects by a key. The caller must check that an object is in the store, because a deleted object may stay in the
/// index for a while.
#[derive(Debug)]
pub(super) struct Index<K>(RwLock<BTreeMap<K, BTreeSet<ObjectKey>>>);

impl<K> Default for Index<K> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<K: Ord> Index<K> {
    /// Adds an object under a key if `exists` is true, and removes it otherwise.
    pub(super) fn update(&self, key: K, object: ObjectKey, exists: bool) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if exists {
            all.entry(key).or_default().insert(object);
        } else if let Some(objects) = all.get_mut(&key) {
            objects.remove(&object);
            if objects.is_empty() {
                all.remove(&key);
            }
        }
    }

    /// Returns namespace and name of the objects with this key.
    pub(super) fn objects_with_key(&self, key: &K) -> Vec<ObjectKey> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        all.get(key).into_iter().flatten().cloned().collect()
    }

    /// Returns namespace and name of the objects for whose key `matches` returns true.
    pub(super) fn objects_matching(&self, matches: impl Fn(&K) -> bool) -> Vec<ObjectKey> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        all.iter()
            .filter(|(key, _)| matches(key))
            .flat_map(|(_, objects)| objects)
            .cloned()
            .collect()
    }

    /// Returns namespace and name of one object for each key for which `matches` returns true.
    pub(super) fn one_object_per_key(&self, matches: impl Fn(&K) -> bool) -> Vec<ObjectKey> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let matching = all.iter().filter(|(key, _)| matches(key));
        matching.filter_map(|(_, objects)| objects.first().cloned()).collect()
    }
}

/// Returns namespace and name of an object.
pub(super) fn object_key(object: &DynamicObject) -> ObjectKey {
    (object.namespace().unwrap_or_default(), object.name_any())
}

/// Returns the name of a machine's MachineDeployment, from the label `md`.
pub(super) fn deployment_name(machine: &DynamicObject) -> Option<&String> {
    machine.labels().get("md")
}

/// Owner of a machine, according to the machine's metadata.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ownership {
    /// A MachineDeployment in the namespace of the machine.
    Deployment(ObjectKey),
    /// A MachineDeployment in another namespace, which is known by its UID only.
    Uid(String),
    /// Any MachineDeployment whose name is in the label of the machine.
    Unknown,
}

impl Ownership {
    pub(super) fn from_metadata(machine: &DynamicObject) -> Self {
        let controller =
            machine.owner_references().iter().find(|owner| owner.controller == Some(true));
        match (controller, machine.annotations().get(names::MACHINE_DEPLOYMENT_UID_ANNOTATION)) {
            (Some(owner), _) if owner.kind == MACHINE_DEPLOYMENT_KIND => {
                Self::Deployment((machine.namespace().unwrap_or_default(), owner.name.clone()))
            }
            (_, Some(uid)) => Self::Uid(uid.clone()),
            _ => Self::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn machine(metadata: Value) -> DynamicObject {
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    }

    #[test]
    fn metadata_identifies_the_owner_of_a_machine() {
        let owned = machine(json!({"name": "web-1", "namespace": "cluster-a", "ownerReferences": [
            {"apiVersion": "cluster.k8s.io/v1alpha1", "kind": "MachineDeployment", "name": "web", "uid": "u", "controller": true},
        ]}));
        assert_eq!(
            Ownership::from_metadata(&owned),
            Ownership::Deployment(("cluster-a".to_owned(), "web".to_owned()))
        );
        let noted =
            machine(json!({"annotations": {names::MACHINE_DEPLOYMENT_UID_ANNOTATION: "u"}}));
        assert_eq!(Ownership::from_metadata(&noted), Ownership::Uid("u".to_owned()));
        assert_eq!(
            Ownership::from_metadata(&machine(json!({"labels": {"md": "web"}}))),
            Ownership::Unknown
        );
    }

    #[test]
    fn a_removed_object_is_not_found() {
        let index = Index::default();
        let key = |name: &str| ("cluster-a".to_owned(), name.to_owned());
        index.update("web", key("web-1"), true);
        index.update("web", key("web-2"), true);
        index.update("web", key("web-1"), false);
        index.update("other", key("other-1"), false);
        assert_eq!(index.objects_with_key(&"web"), [key("web-2")]);
        assert!(index.objects_matching(|key| *key != "web").is_empty());
        index.update("web", key("web-3"), true);
        assert_eq!(index.one_object_per_key(|_| true), [key("web-2")]);
    }
}
