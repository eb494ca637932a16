//! Lock between the two reconcilers that remove machines within `maxUnavailable` of a MachineDeployment: the reconciler
//! of MachineDeployments and the reconciler of evacuations. Each one counts the removal marks in the API server before
//! it writes another mark; without the lock, both could use the last permitted removal at the same moment. A lock in
//! memory suffices, because only the leader writes.

use std::sync::Arc;

use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Lock of removals. Clones share the lock.
#[derive(Clone, Debug, Default)]
pub struct RemovalLock(Arc<RwLock<()>>);

impl RemovalLock {
    /// Locks the removals of one MachineDeployment; no other task reconciles this MachineDeployment. Returns `None`
    /// while an evacuation holds the lock for all MachineDeployments: the requests of the evacuation may take long, so
    /// the caller must not wait for the lock.
    pub(super) fn try_lock_deployment(&self) -> Option<RwLockReadGuard<'_, ()>> {
        self.0.try_read().ok()
    }

    /// Locks the removals of all MachineDeployments.
    pub(super) async fn lock_all(&self) -> RwLockWriteGuard<'_, ()> {
        self.0.write().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_evacuation_excludes_all_other_removals() {
        let lock = RemovalLock::default();
        {
            let (_first, second) = (lock.try_lock_deployment().unwrap(), lock.clone());
            assert!(second.try_lock_deployment().is_some(), "MachineDeployments are independent");
        }
        let all = lock.lock_all().await;
        assert!(lock.try_lock_deployment().is_none());
        drop(all);
        assert!(lock.try_lock_deployment().is_some());
    }
}
