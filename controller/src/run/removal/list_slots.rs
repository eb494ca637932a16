//! Limits how many removals of one tenant may hold a list of pods in memory at the same time, because the tenant
//! determines the length of the lists.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum number of removals of one tenant that hold a list of pods in memory: a tenant's client sends at most four
/// requests at the same time.
///
/// A removal needs up to 3 MB: for 2,000 pods with names of 253 bytes and UIDs of 64 bytes, and for the outcomes of its
/// evictions, with names of PodDisruptionBudgets or explanations. A reconcile has up to 100 steps; it alternates
/// between a list of the pods and up to 50 evictions. Thus all removals of a tenant need up to 12 MB.
const MAX_LISTS: usize = 4;

/// Semaphores by tenant; a permit allows a reconcile to hold one list of pods.
#[derive(Debug, Default)]
pub(super) struct ListSlots {
    tenants: Mutex<BTreeMap<String, Arc<Semaphore>>>,
}

impl ListSlots {
    /// Returns a permit; `None` if all permits of the tenant are in use. The function does not wait for a permit,
    /// because the time limit of the removal may pass meanwhile.
    pub(super) fn try_acquire(&self, tenant: &str) -> Option<OwnedSemaphorePermit> {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        // Each permit holds a reference to its semaphore, so a count of 1 means that the tenant has no permit in use.
        tenants.retain(|_, slots| Arc::strong_count(slots) > 1);
        let slots = tenants.entry(tenant.to_owned());
        let slots = slots.or_insert_with(|| Arc::new(Semaphore::new(MAX_LISTS)));
        Arc::clone(slots).try_acquire_owned().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_occupies_only_its_own_permits() {
        let slots = ListSlots::default();
        let mut permits: Vec<_> =
            (0..MAX_LISTS).map(|_| slots.try_acquire("bank").unwrap()).collect();
        assert!(slots.try_acquire("bank").is_none());
        assert!(slots.try_acquire("shop").is_some());
        drop(permits.pop());
        permits.push(slots.try_acquire("bank").unwrap());
        assert!(slots.try_acquire("bank").is_none());
        drop(permits);
        assert!(slots.try_acquire("shop").is_some());
        assert_eq!(slots.tenants.lock().unwrap().len(), 1, "unused permits are removed");
    }
}
