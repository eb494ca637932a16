//! Rate limit for reconciles of a burst of changes: one for each period while it lasts, not one for each change, and not
//! only at its end.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

/// Period of reconciles in a burst: the spec of a host has all its tenants, so the cost of a write grows with them.
const PERIOD: Duration = Duration::from_secs(1);

/// Objects to reconcile, and when.
#[derive(Debug, Default)]
pub(super) struct Burst {
    names: BTreeSet<String>,
    last: Option<Instant>,
}

impl Burst {
    /// Adds an object.
    pub(super) fn note(&mut self, name: String) {
        self.names.insert(name);
    }

    /// Returns when the objects are due, if there are any: at once, or a period after the last ones.
    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        let next = self.last.and_then(|last| last.checked_add(PERIOD));
        (!self.names.is_empty()).then(|| next.map_or(now, |next| next.max(now)))
    }

    /// Takes the objects that are due now.
    pub(super) fn take(&mut self, now: Instant) -> BTreeSet<String> {
        if self.due(now).is_none_or(|due| due > now) {
            return BTreeSet::new();
        }
        self.last = Some(now);
        std::mem::take(&mut self.names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_due_at_once_and_a_burst_once_a_period() {
        let begin = Instant::now();
        let at = |millis: u64| begin + Duration::from_millis(millis);
        let mut burst = Burst::default();
        assert_eq!(burst.due(begin), None);
        burst.note("a".to_owned());
        assert_eq!(burst.due(at(10)), Some(at(10)));
        assert_eq!(burst.take(at(10)).len(), 1);
        let mut last = Vec::new();
        for millis in (20..3_000).step_by(20) {
            burst.note("a".to_owned());
            if !burst.take(at(millis)).is_empty() {
                last.push(millis);
            }
        }
        assert_eq!(last, [1_020, 2_020]);
        // The rest at the end of the burst is not forgotten.
        assert_eq!(burst.due(at(2_990)), Some(at(3_020)));
        assert_eq!(burst.take(at(3_020)).len(), 1);
        assert_eq!(burst.due(at(9_000)), None);
    }
}
