//! Store of those StorageClasses in a tenant's cluster that concern Berth, with limited memory.

use std::collections::{BTreeMap, BTreeSet};

use berth_runtime::untrusted::CollectionEvent;

use super::class::{ClassObject, IgnoredClassReason, TenantClass};
use crate::tenant_object::name_hash;

/// Maximum number of stored classes of a tenant. Each class has at most 16 KiB.
const MAX_CLASSES: usize = 128;
/// Maximum number of omitted classes that are counted.
const MAX_OMITTED: usize = 1_000;

/// The StorageClasses in a tenant's cluster that concern Berth.
#[derive(Clone, Debug, Default)]
pub struct ClassStore {
    current: LimitedClasses,
    /// Classes of a list that is not complete yet.
    listed: LimitedClasses,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct LimitedClasses {
    classes: BTreeMap<String, TenantClass>,
    /// Hashes of the names of omitted classes.
    omitted: BTreeSet<u64>,
}

impl ClassStore {
    /// Returns the classes, by name.
    #[must_use]
    pub const fn classes(&self) -> &BTreeMap<String, TenantClass> {
        &self.current.classes
    }

    /// Returns the number of classes that concern Berth but are omitted because of a limit, at most 1,000.
    #[must_use]
    pub fn omitted(&self) -> usize {
        self.current.omitted.len()
    }

    /// Handles an event of a list or a watch. Returns true if the classes have changed.
    pub fn handle(&mut self, event: CollectionEvent<ClassObject>, own_manager: &str) -> bool {
        match event {
            CollectionEvent::ListStarted => {
                self.listed = LimitedClasses::default();
                false
            }
            CollectionEvent::Listed(object) => {
                self.listed.insert(object, own_manager);
                false
            }
            CollectionEvent::ListCompleted => {
                let listed = std::mem::take(&mut self.listed);
                std::mem::replace(&mut self.current, listed) != self.current
            }
            CollectionEvent::Applied(object) => self.current.insert(object, own_manager),
            CollectionEvent::Deleted(object) => self.current.remove(object.name()),
        }
    }
}

impl LimitedClasses {
    fn remove(&mut self, name: &str) -> bool {
        let was_omitted = self.omitted.remove(&name_hash(name));
        self.classes.remove(name).is_some() || was_omitted
    }

    /// Inserts a class if the limits permit it. An earlier version of a class that does not fit any more is removed.
    /// Returns true if a class has changed.
    fn insert(&mut self, object: ClassObject, own_manager: &str) -> bool {
        let name = object.name().to_owned();
        let before = self.classes.get(&name).cloned();
        let is_full = before.is_none() && self.classes.len() >= MAX_CLASSES;
        match TenantClass::from_object(object, own_manager) {
            Ok(class) if !is_full => {
                let is_changed = self.remove(&name) && before.as_ref() != Some(&class);
                self.classes.insert(name, class);
                is_changed || before.is_none()
            }
            Err(IgnoredClassReason::Irrelevant) => self.remove(&name),
            Ok(_) | Err(IgnoredClassReason::InvalidName | IgnoredClassReason::TooLarge) => {
                let hash = name_hash(&name);
                let is_removed = self.classes.remove(&name).is_some();
                let is_new = self.omitted.len() < MAX_OMITTED && self.omitted.insert(hash);
                is_new || is_removed
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn object(name: &str, provisioner: &str) -> ClassObject {
        let object = json!({"metadata": {"name": name}, "provisioner": provisioner});
        serde_json::from_value::<ClassObject>(object).unwrap()
    }

    fn handle(store: &mut ClassStore, event: CollectionEvent<ClassObject>) -> bool {
        store.handle(event, "berth-controller")
    }

    #[test]
    fn a_list_replaces_the_classes_when_it_is_complete() {
        let mut store = ClassStore::default();
        assert!(handle(&mut store, CollectionEvent::Applied(object("kubevirt-old", "a"))));
        handle(&mut store, CollectionEvent::ListStarted);
        handle(&mut store, CollectionEvent::Listed(object("kubevirt-new", "a")));
        handle(&mut store, CollectionEvent::Listed(object("gp3", "a")));
        assert!(store.classes().contains_key("kubevirt-old"), "the list is not complete");
        assert!(handle(&mut store, CollectionEvent::ListCompleted));
        assert_eq!(store.classes().keys().collect::<Vec<_>>(), ["kubevirt-new"]);
        let applied = |provisioner| CollectionEvent::Applied(object("kubevirt-new", provisioner));
        assert!(!handle(&mut store, applied("a")), "nothing has changed");
        assert!(handle(&mut store, applied("b")));
        assert!(!handle(&mut store, CollectionEvent::Applied(object("gp3", "b"))));
        let deleted = || CollectionEvent::Deleted(object("kubevirt-new", "b"));
        assert!(handle(&mut store, deleted()));
        assert!(!handle(&mut store, deleted()));
    }

    #[test]
    fn a_flood_of_classes_is_limited() {
        let mut store = ClassStore::default();
        for number in 0..MAX_CLASSES + 10 {
            let class = object(&format!("kubevirt-{number:04}"), "a");
            handle(&mut store, CollectionEvent::Applied(class));
        }
        assert_eq!((store.classes().len(), store.omitted()), (MAX_CLASSES, 10));
        let large = || -> ClassObject {
            let metadata = json!({"name": "kubevirt-0000"});
            let value: Value = json!({"metadata": metadata, "provisioner": "x".repeat(20_000)});
            serde_json::from_value(value).unwrap()
        };
        assert!(handle(&mut store, CollectionEvent::Applied(large())));
        assert!(!handle(&mut store, CollectionEvent::Applied(large())), "the same event again");
        assert_eq!((store.classes().len(), store.omitted()), (MAX_CLASSES - 1, 11));
        assert!(handle(&mut store, CollectionEvent::Applied(object("kubevirt-0000", "a"))));
        assert_eq!((store.classes().len(), store.omitted()), (MAX_CLASSES, 10));
    }
}
