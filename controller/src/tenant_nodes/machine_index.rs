//! Index of the hosts on which tenants' machines run, and of the machines on each host: a change of a host affects only
//! the tenants with a VM on this host.

use std::collections::{BTreeMap, BTreeSet};

/// Index of the hosts on which the machines of all tenants run.
#[derive(Clone, Debug, Default)]
pub struct MachineIndex {
    /// Host of each machine, by namespace and name of the machine. `None` while the machine is on no host.
    machines: BTreeMap<String, BTreeMap<String, Option<String>>>,
    /// Number of machines on each host, by host and namespace.
    namespaces: BTreeMap<String, BTreeMap<String, usize>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MachineState<'h> {
    /// The machine does not exist.
    Deleted,
    /// The machine is on no host yet.
    Pending,
    /// The machine runs on this host.
    On(&'h str),
}

impl MachineIndex {
    /// Sets the state of a machine. Returns true if the state has changed.
    pub fn set(&mut self, namespace: &str, name: &str, state: MachineState<'_>) -> bool {
        let before = self.machines.get(namespace).and_then(|all| all.get(name)).cloned();
        let after = match state {
            MachineState::Deleted => None,
            MachineState::Pending => Some(None),
            MachineState::On(host) => Some(Some(host.to_owned())),
        };
        if before == after {
            return false;
        }
        if let Some(host) = before.flatten() {
            self.remove_from_host(&host, namespace);
        }
        if let Some(Some(host)) = &after {
            let counts = self.namespaces.entry(host.clone()).or_default();
            let count = counts.entry(namespace.to_owned()).or_default();
            *count = count.saturating_add(1);
        }
        match after {
            Some(host) => {
                let machines = self.machines.entry(namespace.to_owned()).or_default();
                machines.insert(name.to_owned(), host);
            }
            None => self.remove_machine(namespace, name),
        }
        true
    }

    /// Returns the machines in a namespace, each with its host.
    #[must_use]
    pub fn machines_in(&self, namespace: &str) -> BTreeMap<String, Option<String>> {
        self.machines.get(namespace).cloned().unwrap_or_default()
    }

    /// Returns the namespaces with a machine on a host.
    #[must_use]
    pub fn namespaces_on(&self, host: &str) -> BTreeSet<String> {
        self.namespaces.get(host).into_iter().flat_map(|counts| counts.keys().cloned()).collect()
    }

    fn remove_machine(&mut self, namespace: &str, name: &str) {
        if let Some(machines) = self.machines.get_mut(namespace) {
            machines.remove(name);
            if machines.is_empty() {
                self.machines.remove(namespace);
            }
        }
    }

    fn remove_from_host(&mut self, host: &str, namespace: &str) {
        let Some(counts) = self.namespaces.get_mut(host) else { return };
        if let Some(count) = counts.get_mut(namespace) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                counts.remove(namespace);
            }
        }
        if counts.is_empty() {
            self.namespaces.remove(host);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::MachineState::{Deleted, On, Pending};
    use super::*;

    #[test]
    fn machines_are_found_by_namespace_and_by_host() {
        let mut index = MachineIndex::default();
        let on = |index: &MachineIndex, host: &str| {
            index.namespaces_on(host).into_iter().collect::<Vec<_>>()
        };
        assert!(index.set("cluster-a", "web-1", Pending));
        assert!(index.set("cluster-a", "web-1", On("rack1-a")));
        assert!(!index.set("cluster-a", "web-1", On("rack1-a")));
        assert!(index.set("cluster-a", "web-2", On("rack1-a")));
        assert!(index.set("cluster-b", "web-1", On("rack1-a")));
        assert_eq!(on(&index, "rack1-a"), ["cluster-a", "cluster-b"]);
        // The machine migrates.
        assert!(index.set("cluster-a", "web-1", On("rack1-b")));
        assert_eq!(on(&index, "rack1-b"), ["cluster-a"]);
        assert_eq!(on(&index, "rack1-a"), ["cluster-a", "cluster-b"], "web-2 is still there");
        assert!(index.set("cluster-a", "web-2", Deleted));
        assert_eq!(on(&index, "rack1-a"), ["cluster-b"]);
        let expected = BTreeMap::from([("web-1".to_owned(), Some("rack1-b".to_owned()))]);
        assert_eq!(index.machines_in("cluster-a"), expected);
        index.set("cluster-a", "web-1", Deleted);
        index.set("cluster-b", "web-1", Deleted);
        assert!(!index.set("cluster-b", "web-1", Deleted));
        assert!(index.machines.is_empty() && index.namespaces.is_empty());
    }
}
