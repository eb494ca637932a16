//! Limits the number of removals of one tenant that keep a list of pods at the same time, because the tenant chooses
//! the length of the lists.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum number of removals of one tenant that keep a list of pods. A tenant's client sends four requests at the same
/// time.
///
/// A removal needs up to 3 MB: 2,000 pods with names of 253 bytes and UIDs of 64 bytes, and the outcomes of up to 50
/// evictions in each second step, with names of PodDisruptionBudgets or explanations. Thus the removals of a tenant
/// need up to 12 MB.
const MAX_LISTS: usize = 4;

/// Permits to keep lists of pods, by tenant.
#[derive(Debug, Default)]
pub(super) struct ListSlots {
    tenants: Mutex<BTreeMap<String, Arc<Semaphore>>>,
}

impl ListSlots {
    /// Returns a permit; `None` if the tenant has no free one. A removal must not wait here: its time limit may pass.
    pub(super) fn try_acquire(&self, tenant: &str) -> Option<OwnedSemaphorePermit> {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        // Each permit has a reference to its semaphore.
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
