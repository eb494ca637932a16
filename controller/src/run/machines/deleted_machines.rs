//! Machines whose deletion the controller has observed, and whose AddressClaims must be released.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::index::ObjectKey;

/// Machines that were deleted. The set distinguishes the claim of a deleted machine from the claim of a machine that
/// does not exist yet.
#[derive(Debug, Default)]
pub(super) struct DeletedMachines {
    keys: Mutex<BTreeSet<ObjectKey>>,
    changed: Notify,
}

impl DeletedMachines {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<ObjectKey>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a machine if it was deleted, and removes it if it exists.
    pub(super) fn update(&self, machine: ObjectKey, is_deleted: bool) {
        if is_deleted {
            self.lock().insert(machine);
            self.changed.notify_one();
        } else {
            self.lock().remove(&machine);
        }
    }

    pub(super) fn all(&self) -> BTreeSet<ObjectKey> {
        self.lock().clone()
    }

    /// Waits until a machine is deleted.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Removes the machines in `seen` that have no claim.
    pub(super) fn forget(&self, seen: &BTreeSet<ObjectKey>, claiming: &BTreeSet<ObjectKey>) {
        self.lock().retain(|machine| !seen.contains(machine) || claiming.contains(machine));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_deleted_machines_with_a_claim_are_remembered() {
        let key = |name: &str| ("cluster-a".to_owned(), name.to_owned());
        let machines = DeletedMachines::default();
        for name in ["a", "b", "c"] {
            machines.update(key(name), true);
        }
        machines.update(key("c"), false);
        let seen = machines.all();
        assert_eq!(seen, [key("a"), key("b")].into());
        // This machine was deleted after garbage collection had started.
        machines.update(key("d"), true);
        machines.forget(&seen, &[key("b")].into());
        assert_eq!(machines.all(), [key("b"), key("d")].into());
    }
}
