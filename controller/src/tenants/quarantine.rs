//! Quarantine of released claims.
//!
//! The release time in a claim is written by a controller whose wall clock may have been wrong, and the wall clock of
//! this process may jump. Therefore this process reads the release time of a claim once, and then measures the
//! quarantine with a monotonic clock, as [`Observation`] does for lost hosts.

use std::collections::BTreeMap;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::observation::{Clocks, Observation};

/// Released claims of one kind, with the times for which this process has observed them.
#[derive(Debug)]
pub struct QuarantineObserver {
    /// Observed releases, by name of the claim.
    releases: BTreeMap<String, ObservedRelease>,
    clocks: Clocks,
    /// False until the first list of claims.
    has_observed: bool,
}

#[derive(Clone, Copy, Debug)]
struct ObservedRelease {
    released_at: Timestamp,
    observation: Observation,
}

impl QuarantineObserver {
    /// Returns an observer without claims.
    #[must_use]
    pub const fn new(clocks: Clocks) -> Self {
        Self { releases: BTreeMap::new(), clocks, has_observed: false }
    }

    /// Starts to observe new releases, and forgets claims that are no longer released. `released` contains the name and
    /// the release time of each released claim. Only in the first call can a claim have been released before this
    /// process observed it, so later calls do not use the release time.
    pub fn observe<'a>(
        &mut self,
        released: impl Iterator<Item = (&'a str, Timestamp)>,
        clocks: Clocks,
    ) {
        let mut before = std::mem::take(&mut self.releases);
        let is_first = !std::mem::replace(&mut self.has_observed, true);
        self.clocks = clocks;
        for (name, released_at) in released {
            let known = before.remove_entry(name).filter(|(_, one)| one.released_at == released_at);
            let (name, release) = known.unwrap_or_else(|| {
                let observation = if is_first {
                    Observation::resume(clocks.monotonic, released_at, clocks.wall)
                } else {
                    Observation::new(clocks.monotonic)
                };
                (name.to_owned(), ObservedRelease { released_at, observation })
            });
            self.releases.insert(name, release);
        }
    }

    /// Returns the time of the wall clock at which the quarantine of a claim ends, whose duration is `limit`, unless the
    /// clock jumps; `None` if the claim was not released when [`Self::observe`] was called last.
    #[must_use]
    pub fn quarantine_end(&self, name: &str, limit: SignedDuration) -> Option<Timestamp> {
        let release = self.releases.get(name)?;
        let remaining = release.observation.remaining(limit.unsigned_abs(), self.clocks.monotonic);
        let remaining = SignedDuration::try_from(remaining).unwrap_or(SignedDuration::MAX);
        Some(self.clocks.wall.checked_add(remaining).unwrap_or(Timestamp::MAX))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use std::time::Duration;

    use super::*;
    use crate::observation::MIN_OBSERVATION;

    const LIMIT: SignedDuration = SignedDuration::from_secs(300);

    fn clocks(wall: i64, monotonic: u64) -> Clocks {
        let wall = Timestamp::from_second(wall).unwrap();
        Clocks { wall, monotonic: Duration::from_secs(monotonic) }
    }

    fn quarantine(observer: &mut QuarantineObserver, released: i64, now: Clocks) -> Option<i64> {
        let released = Timestamp::from_second(released).unwrap();
        observer.observe([("a", released)].into_iter(), now);
        observer.quarantine_end("a", LIMIT).map(Timestamp::as_second)
    }

    #[test]
    fn the_release_time_is_used_only_once() {
        let mut observer = QuarantineObserver::new(clocks(0, 0));
        assert_eq!(observer.quarantine_end("a", LIMIT), None);
        assert_eq!(quarantine(&mut observer, 1000, clocks(1000, 10)), Some(1300));
        // The wall clock jumps forward and back.
        assert_eq!(quarantine(&mut observer, 1000, clocks(9000, 20)), Some(9290));
        assert_eq!(quarantine(&mut observer, 1000, clocks(100, 309)), Some(101));
        assert_eq!(quarantine(&mut observer, 1000, clocks(200, 310)), Some(200));
        // A later release has the whole quarantine, and a claim that is no longer released has none.
        assert_eq!(quarantine(&mut observer, 250, clocks(9000, 400)), Some(9300));
        observer.observe(std::iter::empty(), clocks(260, 410));
        assert_eq!(observer.quarantine_end("a", LIMIT), None);
        // A process that starts later uses the wall clock, but observes the claim for a minimum time.
        let mut later = QuarantineObserver::new(clocks(0, 0));
        assert_eq!(quarantine(&mut later, 1000, clocks(1200, 5)), Some(1300));
        let mut late = QuarantineObserver::new(clocks(0, 0));
        assert_eq!(quarantine(&mut late, 1000, clocks(5000, 5)), Some(5060));
        // A release time in the future does not prolong the quarantine.
        let mut early = QuarantineObserver::new(clocks(0, 0));
        assert_eq!(quarantine(&mut early, 9000, clocks(1000, 5)), Some(1300));
    }

    proptest! {
        /// Simulates a process that garbage-collects one released claim while the wall clock jumps. `age` is the
        /// difference between the wall clock and the release time when the process starts.
        #[test]
        fn jumps_of_the_clock_change_no_quarantine(
            age in -100_000_i64..100_000,
            steps in prop::collection::vec((1_u64..100, -100_000_i64..100_000), 400),
        ) {
            let start = 1_000_000_i64;
            let mut observer = QuarantineObserver::new(clocks(start, 0));
            let (mut wall, mut monotonic, mut deleted_at) = (start, 0_u64, None::<u64>);
            for (step, jump) in steps {
                let end = quarantine(&mut observer, start - age, clocks(wall, monotonic));
                if end.unwrap() <= wall {
                    deleted_at = Some(monotonic);
                    break;
                }
                monotonic += step;
                wall += i64::try_from(step).unwrap() + jump;
            }
            let deleted_at = deleted_at.unwrap();
            let limit = LIMIT.unsigned_abs().as_secs();
            let known_age = u64::try_from(age).unwrap_or_default();
            let due = limit.saturating_sub(known_age).max(MIN_OBSERVATION.as_secs());
            prop_assert!((due..due + 100).contains(&deleted_at), "{} {}", deleted_at, due);
        }
    }
}
