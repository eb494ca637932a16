//! Addresses of leases that other machines use, as the cycle publishes them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use berth_api::infra_node::AddressConflictStatus;

type Wake = Box<dyn Fn() + Send + Sync>;

/// Conflicts of all networks. A clone shares the values.
#[derive(Clone, Default)]
pub(crate) struct AddressConflicts(Arc<Inner>);

#[derive(Default)]
struct Inner {
    networks: Mutex<BTreeMap<String, Vec<AddressConflictStatus>>>,
    /// Starts a cycle, which publishes the conflicts.
    wake: OnceLock<Wake>,
}

impl std::fmt::Debug for AddressConflicts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AddressConflicts")
            .field("networks", &self.0.networks)
            .finish_non_exhaustive()
    }
}

impl AddressConflicts {
    /// Sets the function that starts a cycle. Only the first function is used.
    pub(crate) fn set_wake(&self, wake: Wake) {
        drop(self.0.wake.set(wake));
    }

    /// Replaces the conflicts of a network.
    pub(super) fn set(&self, network: &str, conflicts: Vec<AddressConflictStatus>) {
        let mut networks = self.0.networks.lock().unwrap_or_else(PoisonError::into_inner);
        let previous = if conflicts.is_empty() {
            networks.remove(network).unwrap_or_default()
        } else if networks.get(network) == Some(&conflicts) {
            return;
        } else {
            networks.insert(network.to_owned(), conflicts.clone()).unwrap_or_default()
        };
        drop(networks);
        if previous != conflicts
            && let Some(wake) = self.0.wake.get()
        {
            wake();
        }
    }

    /// Returns the conflicts of all networks, sorted by network and address.
    pub(crate) fn all(&self) -> Vec<AddressConflictStatus> {
        let networks = self.0.networks.lock().unwrap_or_else(PoisonError::into_inner);
        networks.values().flatten().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn only_changes_start_a_cycle() {
        let conflicts = AddressConflicts::default();
        let count = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&count);
        conflicts.set_wake(Box::new(move || {
            counter.fetch_add(1, Ordering::Relaxed);
        }));
        let conflict = |number: u8| AddressConflictStatus {
            network: "cluster-a".to_owned(),
            address: [10, 0, 0, number].into(),
            machine: format!("cluster-a/m{number}"),
            mac: None,
        };
        for (now, cycles) in [
            (vec![], 0),
            (vec![conflict(1)], 1),
            (vec![conflict(1)], 1),
            (vec![conflict(1), conflict(2)], 2),
            (vec![], 3),
            (vec![], 3),
        ] {
            conflicts.set("cluster-a", now.clone());
            assert_eq!(count.load(Ordering::Relaxed), cycles);
            assert_eq!(conflicts.all(), now);
        }
    }
}
