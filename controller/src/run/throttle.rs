//! Rate limit for reconciles: the first change is reconciled immediately; further changes are collected, and reconciled
//! at most once per period.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

/// Minimum interval between reconciles. The spec of a host's object contains all tenants of the host, so the cost of a
/// write grows with the number of tenants.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// Names of the objects that must be reconciled, and the time at which [`Self::take_due`] last returned objects.
#[derive(Debug, Default)]
pub(super) struct ReconcileThrottle {
    names: BTreeSet<String>,
    last_taken_at: Option<Instant>,
}

impl ReconcileThrottle {
    /// Adds an object that must be reconciled.
    pub(super) fn add(&mut self, name: String) {
        self.names.insert(name);
    }

    /// Returns the time at which the collected objects must be reconciled: now, or one period after the last call of
    /// [`Self::take_due`] that returned objects. `None` if there are no objects.
    pub(super) fn due_at(&self, now: Instant) -> Option<Instant> {
        let next = self.last_taken_at.and_then(|last| last.checked_add(MIN_INTERVAL));
        (!self.names.is_empty()).then(|| next.map_or(now, |next| next.max(now)))
    }

    /// If the objects are due now, removes and returns them; otherwise returns no objects.
    pub(super) fn take_due(&mut self, now: Instant) -> BTreeSet<String> {
        if self.due_at(now).is_none_or(|due| due > now) {
            return BTreeSet::new();
        }
        self.last_taken_at = Some(now);
        std::mem::take(&mut self.names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_object_is_due_at_once_and_others_once_per_period() {
        let begin = Instant::now();
        let at = |millis: u64| begin + Duration::from_millis(millis);
        let mut throttle = ReconcileThrottle::default();
        assert_eq!(throttle.due_at(begin), None);
        throttle.add("a".to_owned());
        assert_eq!(throttle.due_at(at(10)), Some(at(10)));
        assert_eq!(throttle.take_due(at(10)).len(), 1);
        let mut last = Vec::new();
        for millis in (20..3_000).step_by(20) {
            throttle.add("a".to_owned());
            if !throttle.take_due(at(millis)).is_empty() {
                last.push(millis);
            }
        }
        assert_eq!(last, [1_020, 2_020]);
        // The objects that were added last are also reconciled, after one period.
        assert_eq!(throttle.due_at(at(2_990)), Some(at(3_020)));
        assert_eq!(throttle.take_due(at(3_020)).len(), 1);
        assert_eq!(throttle.due_at(at(9_000)), None);
    }
}
