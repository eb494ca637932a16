//! Time for which an object has been in a state: a host that is down, or a claim that is released.
//!
//! Times in objects are written by other programs, whose clocks may be wrong, and the wall clock of this program may
//! jump. Therefore times in objects are used only for a state that began before this process became the leader, and
//! are read once. All other times are measured with a monotonic clock, and each object is observed for a minimum time
//! before the controller acts.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

/// Time for which this leader observes an object before it acts, unless the limit, such as `replaceAfter` for the machines
/// of a host, is shorter.
pub const MIN_OBSERVATION: Duration = Duration::from_secs(60);

/// Current time of the clocks of this process.
#[derive(Clone, Copy, Debug)]
pub struct Clocks {
    /// Time of the wall clock.
    pub wall: Timestamp,
    /// Time of a monotonic clock.
    pub monotonic: Duration,
}

/// Observation of an object. The times are those of a monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observation {
    started_at: Duration,
    /// Time for which the object was in its state before the observation.
    before: Duration,
}

impl Observation {
    /// Starts the observation of an object whose state begins now.
    #[must_use]
    pub const fn new(clock: Duration) -> Self {
        Self { started_at: clock, before: Duration::ZERO }
    }

    /// Starts the observation of an object whose state began before this process became the leader, at the time `since`
    /// according to the object. `now` is the current time of this machine's wall clock.
    #[must_use]
    pub fn resume(clock: Duration, since: Timestamp, now: Timestamp) -> Self {
        let before = now.as_second().saturating_sub(since.as_second());
        let before = u64::try_from(before).unwrap_or_default();
        Self { started_at: clock, before: Duration::from_secs(before) }
    }

    /// Returns the time until the state has lasted for `limit`, and has been observed for [`MIN_OBSERVATION`] or
    /// `limit`, whichever is shorter; zero if both times have passed.
    #[must_use]
    pub fn remaining(&self, limit: Duration, clock: Duration) -> Duration {
        let observed = clock.saturating_sub(self.started_at);
        let by_age = limit.saturating_sub(self.before.saturating_add(observed));
        by_age.max(limit.min(MIN_OBSERVATION).saturating_sub(observed))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    fn time(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_new_leader_continues_and_observes_for_a_minimum_time() {
        let limit = seconds(600);
        let seen = Observation::new(seconds(5));
        assert_eq!(seen.remaining(limit, seconds(5)), limit);
        assert_eq!(seen.remaining(limit, seconds(605)), Duration::ZERO);
        let half = Observation::resume(seconds(5), time(1000), time(1300));
        assert_eq!(half.remaining(limit, seconds(5)), seconds(300));
        let over = Observation::resume(seconds(5), time(1000), time(9000));
        assert_eq!(over.remaining(limit, seconds(5)), MIN_OBSERVATION);
        assert_eq!(over.remaining(limit, seconds(65)), Duration::ZERO);
        let future = Observation::resume(seconds(5), Timestamp::MAX, time(1000));
        assert_eq!(future.remaining(limit, seconds(5)), limit);
    }

    proptest! {
        #[test]
        fn no_clock_shortens_the_observation(
            since in any::<i32>(), now in any::<i32>(),
            limit in 1_u64..5_000, observed in 0_u64..10_000,
        ) {
            let limit = seconds(limit);
            let clock = seconds(7 + observed);
            let resumed = Observation::resume(seconds(7), time(since.into()), time(now.into()));
            if seconds(observed) < limit.min(MIN_OBSERVATION) {
                prop_assert!(resumed.remaining(limit, clock) > Duration::ZERO);
            }
            // An observation that began with the outage (`new`) always lasts the whole limit.
            let own = Observation::new(seconds(7)).remaining(limit, clock);
            prop_assert_eq!(own, limit.saturating_sub(seconds(observed)));
            prop_assert!(resumed.remaining(limit, clock) <= own);
        }
    }
}
