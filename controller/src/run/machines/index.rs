//! Which objects belong together, kept beside the stores: a look at one of a thousand MachineDeployments must not go
//! through ten thousand machines, nor an event of one machine have all deployments of that name looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{PoisonError, RwLock};

use berth_api::names;
use kube::ResourceExt as _;
use kube::api::DynamicObject;

use berth_kubevirt_render::machines::KIND;

/// Namespace and name.
pub(super) type Place = (String, String);

/// Places by what they are looked up by. Who looks up also asks the store: one that is gone may stay here for a while.
#[derive(Debug)]
pub(super) struct Index<K>(RwLock<BTreeMap<K, BTreeSet<Place>>>);

impl<K> Default for Index<K> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<K: Ord> Index<K> {
    /// There is news of an object: whether it is there now.
    pub(super) fn note(&self, key: K, place: Place, is_there: bool) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if is_there {
            all.entry(key).or_default().insert(place);
        } else if let Some(places) = all.get_mut(&key) {
            places.remove(&place);
            if places.is_empty() {
                all.remove(&key);
            }
        }
    }

    /// All that have a key.
    pub(super) fn at(&self, key: &K) -> Vec<Place> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        all.get(key).into_iter().flatten().cloned().collect()
    }

    /// All that have a key of which this is so.
    pub(super) fn of(&self, is_so: impl Fn(&K) -> bool) -> Vec<Place> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter(|(key, _)| is_so(key)).flat_map(|(_, places)| places).cloned().collect()
    }
}

/// Where an object is.
pub(super) fn place(object: &DynamicObject) -> Place {
    (object.namespace().unwrap_or_default(), object.name_any())
}

/// The deployment's name that a machine carries.
pub(super) fn deployment_of(machine: &DynamicObject) -> Option<&String> {
    machine.labels().get("md")
}

/// Whose a machine is, as far as it says itself.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// A deployment of its own namespace.
    Of(Place),
    /// One of another namespace, with this uid.
    Uid(String),
    /// Nobody's yet: of any deployment of that name.
    Anybodys,
}

impl Whose {
    pub(super) fn of(machine: &DynamicObject) -> Self {
        let controller =
            machine.owner_references().iter().find(|owner| owner.controller == Some(true));
        match (controller, machine.annotations().get(names::MACHINE_DEPLOYMENT_UID)) {
            (Some(owner), _) if owner.kind == KIND => {
                Self::Of((machine.namespace().unwrap_or_default(), owner.name.clone()))
            }
            (_, Some(uid)) => Self::Uid(uid.clone()),
            _ => Self::Anybodys,
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
    fn a_machine_says_whose_it_is() {
        let owned = machine(json!({"name": "web-1", "namespace": "cluster-a", "ownerReferences": [
            {"apiVersion": "cluster.k8s.io/v1alpha1", "kind": "MachineDeployment", "name": "web", "uid": "u", "controller": true},
        ]}));
        assert_eq!(Whose::of(&owned), Whose::Of(("cluster-a".to_owned(), "web".to_owned())));
        let noted = machine(json!({"annotations": {names::MACHINE_DEPLOYMENT_UID: "u"}}));
        assert_eq!(Whose::of(&noted), Whose::Uid("u".to_owned()));
        assert_eq!(Whose::of(&machine(json!({"labels": {"md": "web"}}))), Whose::Anybodys);
    }

    #[test]
    fn what_is_gone_is_not_found() {
        let index = Index::default();
        let at = |name: &str| ("cluster-a".to_owned(), name.to_owned());
        index.note("web", at("web-1"), true);
        index.note("web", at("web-2"), true);
        index.note("web", at("web-1"), false);
        index.note("other", at("other-1"), false);
        assert_eq!(index.at(&"web"), [at("web-2")]);
        assert!(index.of(|key| *key != "web").is_empty());
    }
}
