//! Whoever is woken by a burst of changes is woken now and then while it lasts, not once for each, nor only at its end.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

/// Between two times in a burst: a host's spec has all its tenants in it, so each write costs as much as they are many.
const PACE: Duration = Duration::from_secs(1);

/// Who is to be woken, and when.
#[derive(Debug, Default)]
pub(super) struct Burst {
    names: BTreeSet<String>,
    woken: Option<Instant>,
}

impl Burst {
    /// This one is to be woken.
    pub(super) fn note(&mut self, name: String) {
        self.names.insert(name);
    }

    /// When they are to be woken, if anyone is: at once, unless some were a moment ago.
    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        let paced = self.woken.and_then(|woken| woken.checked_add(PACE));
        (!self.names.is_empty()).then(|| paced.map_or(now, |paced| paced.max(now)))
    }

    /// Those who are to be woken now.
    pub(super) fn take(&mut self, now: Instant) -> BTreeSet<String> {
        if self.due(now).is_none_or(|due| due > now) {
            return BTreeSet::new();
        }
        self.woken = Some(now);
        std::mem::take(&mut self.names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_woken_at_once_and_a_burst_at_its_pace() {
        let begin = Instant::now();
        let at = |millis: u64| begin + Duration::from_millis(millis);
        let mut burst = Burst::default();
        assert_eq!(burst.due(begin), None);
        burst.note("a".to_owned());
        assert_eq!(burst.due(at(10)), Some(at(10)));
        assert_eq!(burst.take(at(10)).len(), 1);
        let mut woken = Vec::new();
        for millis in (20..3_000).step_by(20) {
            burst.note("a".to_owned());
            if !burst.take(at(millis)).is_empty() {
                woken.push(millis);
            }
        }
        assert_eq!(woken, [1_020, 2_020]);
        // What is left when it ends is not forgotten.
        assert_eq!(burst.due(at(2_990)), Some(at(3_020)));
        assert_eq!(burst.take(at(3_020)).len(), 1);
        assert_eq!(burst.due(at(9_000)), None);
    }
}
