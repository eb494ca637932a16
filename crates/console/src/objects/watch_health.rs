//! Health of a watch: the watcher reports errors and events, but not that a watch works again while no object changes.

use std::time::{Duration, Instant};

use berth_api::Time;
use k8s_openapi::jiff::Timestamp;

/// Time for which a watch may be interrupted before its objects count as outdated: API servers end watches regularly.
const GRACE_TIME: Duration = Duration::from_secs(10);
/// Time without an error after which a watch works again. The watcher tries again at least once in this time: its backoff has
/// at most 60 s, and the connection attempt 30 s.
const RECOVERY_TIME: Duration = Duration::from_secs(150);

/// Errors of a watch.
#[derive(Debug, Default)]
pub(super) struct WatchHealth(Option<Failure>);

#[derive(Debug)]
struct Failure {
    since: Time,
    first: Instant,
    last: Instant,
}

impl WatchHealth {
    /// Records an error. Returns the time since which the watch is interrupted, if it is for long.
    pub(super) fn record_error(&mut self, now: Instant) -> Option<Time> {
        self.expire(now);
        let new = || Failure { since: Time(Timestamp::now()), first: now, last: now };
        let failure = self.0.get_or_insert_with(new);
        failure.last = now;
        (now.saturating_duration_since(failure.first) >= GRACE_TIME).then_some(failure.since)
    }

    /// Records an event of the watch.
    pub(super) fn record_event(&mut self) {
        self.0 = None;
    }

    /// Returns true if the watch works: it had no error, or none for long.
    pub(super) fn expire(&mut self, now: Instant) -> bool {
        let is_over =
            |failure: &Failure| now.saturating_duration_since(failure.last) >= RECOVERY_TIME;
        if self.0.as_ref().is_some_and(is_over) {
            self.0 = None;
        }
        self.0.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_outdated_after_errors_for_some_time() {
        let (mut health, begin) = (WatchHealth::default(), Instant::now());
        let at = |seconds: u64| begin + Duration::from_secs(seconds);
        assert!(health.expire(at(0)));
        assert_eq!(health.record_error(at(0)), None, "watches end regularly");
        assert_eq!(health.record_error(at(2)), None);
        let since = health.record_error(at(12));
        assert!(since.is_some());
        assert_eq!(health.record_error(at(60)), since);
        assert!(!health.expire(at(61)));
        health.record_event();
        assert!(health.expire(at(62)));
        assert_eq!(health.record_error(at(63)), None);
        // Without an event, the end of the errors shows that the watch works.
        assert!(!health.expire(at(100)));
        assert!(health.expire(at(300)));
        assert_eq!(health.record_error(at(400)), None, "this is another failure");
    }
}
