//! Health of a program's watches: kinds that have not been listed yet, and objects that cannot be parsed.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::malformed::MalformedObjects;

/// Health of all watches of a program.
#[derive(Debug, Default)]
pub struct WatchHealth {
    /// For each kind that has not been listed yet, the reason. The key is the plural of the kind.
    unlisted_kinds: Mutex<BTreeMap<String, String>>,
    malformed: MalformedObjects,
}

impl WatchHealth {
    fn lock_unlisted_kinds(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.unlisted_kinds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the objects that cannot be parsed.
    #[must_use]
    pub const fn malformed_objects(&self) -> &MalformedObjects {
        &self.malformed
    }

    /// Returns the reasons why kinds have not been listed yet; `None` if all kinds have been listed.
    #[must_use]
    pub fn unlisted_reasons(&self) -> Option<String> {
        let all = self.lock_unlisted_kinds();
        (!all.is_empty()).then(|| all.values().cloned().collect::<Vec<_>>().join("; "))
    }

    pub(super) fn record_start(&self, kind: &str) {
        self.lock_unlisted_kinds().insert(kind.to_owned(), format!("{kind} are not listed yet"));
    }

    /// Records the error of a kind's watch, if the kind has not been listed yet.
    pub(super) fn record_failure(&self, kind: &str, reason: String) {
        if let Some(before) = self.lock_unlisted_kinds().get_mut(kind) {
            *before = reason;
        }
    }

    pub(super) fn record_list(&self, kind: &str) {
        self.lock_unlisted_kinds().remove(kind);
    }
}
