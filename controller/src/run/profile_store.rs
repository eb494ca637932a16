//! The profiles of all hosts, as they were last resolved. Reconcilers read them.

use std::sync::{Arc, Mutex, PoisonError};

use crate::profiles::ResolvedProfiles;

/// Profiles of all hosts, as they were last resolved.
#[derive(Debug, Default)]
pub(super) struct ProfileStore(Mutex<Arc<ResolvedProfiles>>);

impl ProfileStore {
    /// Returns the last resolved profiles.
    #[must_use]
    pub(super) fn get(&self) -> Arc<ResolvedProfiles> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the resolved profiles, and returns the previous ones.
    pub(super) fn replace(&self, fleet: ResolvedProfiles) -> Arc<ResolvedProfiles> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut known, Arc::new(fleet))
    }
}
