//! Namespaces of all machines, counted while objects come and go, so that no page has to read all names.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_views::{Kind, ObjectName, Snapshot};

/// Namespaces with machines.
#[derive(Debug, Default)]
pub(super) struct Namespaces {
    /// Number of objects by namespace.
    counts: BTreeMap<String, usize>,
    /// Names of all namespaces; replaced when a namespace comes or goes.
    all: Arc<BTreeSet<String>>,
}

impl Namespaces {
    pub(super) fn all(&self) -> Arc<BTreeSet<String>> {
        Arc::clone(&self.all)
    }

    /// Changes an object of the snapshot with `change`, and counts it.
    pub(super) fn track<T>(
        &mut self,
        all: &mut Snapshot,
        kind: Kind,
        name: &ObjectName,
        change: impl FnOnce(&mut Snapshot) -> T,
    ) -> T {
        let before = has_machine(all, kind, name);
        let result = change(all);
        match (before, has_machine(all, kind, name)) {
            (false, true) => self.enter(&name.namespace),
            (true, false) => self.leave(&name.namespace),
            _ => {}
        }
        result
    }

    fn enter(&mut self, namespace: &str) {
        let count = self.counts.entry(namespace.to_owned()).or_default();
        *count += 1;
        if *count == 1 {
            Arc::make_mut(&mut self.all).insert(namespace.to_owned());
        }
    }

    fn leave(&mut self, namespace: &str) {
        let Some(count) = self.counts.get_mut(namespace) else { return };
        *count -= 1;
        if *count == 0 {
            self.counts.remove(namespace);
            Arc::make_mut(&mut self.all).remove(namespace);
        }
    }
}

/// Returns true if the snapshot has an object of machines with this kind and name.
fn has_machine(all: &Snapshot, kind: Kind, name: &ObjectName) -> bool {
    match kind {
        Kind::VirtualMachine => all.machines.contains_key(name),
        Kind::VirtualMachineInstance => all.instances.contains_key(name),
        Kind::MachineDeployment => all.deployments.contains_key(name),
        Kind::LauncherPod => all.pods.contains_key(name),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::objects::store::Store;

    #[test]
    fn namespaces_are_those_of_the_remaining_objects() {
        let store = Store::default();
        let add = |kind, namespace: &str| {
            store.add(kind, &json!({"metadata": {"namespace": namespace, "name": "x"}}));
        };
        let remove = |kind, namespace: &str| {
            store.remove(kind, &ObjectName::new(namespace, "x"));
        };
        let names = || store.namespaces().iter().cloned().collect::<Vec<_>>();
        add(Kind::VirtualMachine, "a");
        add(Kind::VirtualMachine, "a");
        add(Kind::LauncherPod, "a");
        add(Kind::MachineDeployment, "b");
        add(Kind::MachineService, "c");
        assert_eq!(names(), ["a", "b"]);
        remove(Kind::VirtualMachine, "a");
        remove(Kind::VirtualMachineInstance, "b");
        assert_eq!(names(), ["a", "b"]);
        remove(Kind::LauncherPod, "a");
        remove(Kind::LauncherPod, "a");
        remove(Kind::MachineDeployment, "b");
        assert!(names().is_empty());
    }
}
