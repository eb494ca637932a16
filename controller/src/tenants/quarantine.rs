//! Quarantine of released claims.
//!
//! The release time in a claim is written by a controller whose wall clock may have been wrong, and the wall clock of
//! this process may jump. Therefore this process reads the release time of a claim once, and then measures the
//! quarantine with a monotonic clock, as [`Observation`] does for lost hosts.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::host_loss::observation::Observation;

/// Time by which a release time may be in the future, because the clocks of two controllers differ.
const MAX_CLOCK_SKEW: SignedDuration = SignedDuration::from_secs(60);

/// Current time of the clocks of this process.
#[derive(Clone, Copy, Debug)]
pub struct Clocks {
    /// Time of the wall clock.
    pub wall: Timestamp,
    /// Time of a monotonic clock.
    pub monotonic: Duration,
}

/// Quarantine of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quarantine {
    /// The claim is not in quarantine.
    Absent,
    /// The quarantine ends at this time of the wall clock, unless the clock jumps.
    Until(Timestamp),
    /// The release time was in the future when this process read it. The claim must be released again, now.
    ReleasedInFuture,
}

/// Released claims of one kind, with the times for which this process has observed them.
#[derive(Debug)]
pub struct QuarantineObserver {
    /// Observed releases, by name of the claim.
    releases: BTreeMap<String, ObservedRelease>,
    clocks: Clocks,
}

#[derive(Clone, Copy, Debug)]
struct ObservedRelease {
    released_at: Timestamp,
    is_in_future: bool,
    observation: Observation,
}

impl QuarantineObserver {
    /// Returns an observer without claims.
    #[must_use]
    pub const fn new(clocks: Clocks) -> Self {
        Self { releases: BTreeMap::new(), clocks }
    }

    /// Starts to observe new releases, and forgets claims that are no longer released. `released` contains the name and
    /// the release time of each released claim.
    pub fn observe<'a>(
        &mut self,
        released: impl Iterator<Item = (&'a str, Timestamp)>,
        clocks: Clocks,
    ) {
        let mut before = std::mem::take(&mut self.releases);
        self.clocks = clocks;
        for (name, released_at) in released {
            let known = before.remove_entry(name);
            let (name, release) = known
                .filter(|(_, one)| one.released_at == released_at)
                .unwrap_or_else(|| (name.to_owned(), ObservedRelease::new(released_at, clocks)));
            self.releases.insert(name, release);
        }
    }

    /// Returns the quarantine of a claim, whose duration is `limit`, at the time of the last call of
    /// [`Self::observe`].
    #[must_use]
    pub fn quarantine_of(&self, name: &str, limit: SignedDuration) -> Quarantine {
        let Some(release) = self.releases.get(name) else { return Quarantine::Absent };
        if release.is_in_future {
            return Quarantine::ReleasedInFuture;
        }
        let remaining = release.observation.remaining(limit.unsigned_abs(), self.clocks.monotonic);
        let remaining = SignedDuration::try_from(remaining).unwrap_or(SignedDuration::MAX);
        Quarantine::Until(self.clocks.wall.checked_add(remaining).unwrap_or(Timestamp::MAX))
    }
}

impl ObservedRelease {
    fn new(released_at: Timestamp, clocks: Clocks) -> Self {
        let Clocks { wall, monotonic } = clocks;
        Self {
            released_at,
            is_in_future: released_at.duration_since(wall) > MAX_CLOCK_SKEW,
            observation: Observation::resume(monotonic, released_at, wall),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::host_loss::observation::MIN_OBSERVATION;

    const LIMIT: SignedDuration = SignedDuration::from_secs(300);

    fn clocks(wall: i64, monotonic: u64) -> Clocks {
        let wall = Timestamp::from_second(wall).unwrap();
        Clocks { wall, monotonic: Duration::from_secs(monotonic) }
    }

    fn quarantine(observer: &mut QuarantineObserver, released: i64, now: Clocks) -> Quarantine {
        let released = Timestamp::from_second(released).unwrap();
        observer.observe([("a", released)].into_iter(), now);
        observer.quarantine_of("a", LIMIT)
    }

    #[test]
    fn the_time_of_a_claim_is_read_once() {
        let until = |second| Quarantine::Until(Timestamp::from_second(second).unwrap());
        let mut observer = QuarantineObserver::new(clocks(0, 0));
        assert_eq!(observer.quarantine_of("a", LIMIT), Quarantine::Absent);
        assert_eq!(quarantine(&mut observer, 1000, clocks(1000, 10)), until(1300));
        // The wall clock jumps forward and back.
        assert_eq!(quarantine(&mut observer, 1000, clocks(9000, 20)), until(9290));
        assert_eq!(quarantine(&mut observer, 1000, clocks(100, 309)), until(101));
        assert_eq!(quarantine(&mut observer, 1000, clocks(200, 310)), until(200));
        // A later release has its own quarantine, and a claim that is no longer released has none.
        assert_eq!(quarantine(&mut observer, 250, clocks(250, 400)), until(550));
        observer.observe(std::iter::empty(), clocks(260, 410));
        assert_eq!(observer.quarantine_of("a", LIMIT), Quarantine::Absent);
        // A process that starts later uses the wall clock, but observes the claim for a minimum time.
        let mut later = QuarantineObserver::new(clocks(0, 0));
        assert_eq!(quarantine(&mut later, 1000, clocks(1200, 5)), until(1300));
        let mut late = QuarantineObserver::new(clocks(0, 0));
        assert_eq!(quarantine(&mut late, 1000, clocks(5000, 5)), until(5060));
    }

    #[test]
    fn a_release_in_the_future_is_corrected_except_for_a_small_skew() {
        let mut observer = QuarantineObserver::new(clocks(0, 0));
        let found = quarantine(&mut observer, 1061, clocks(1000, 5));
        assert_eq!(found, Quarantine::ReleasedInFuture);
        // The correction fails and is tried again.
        let found = quarantine(&mut observer, 1061, clocks(1100, 105));
        assert_eq!(found, Quarantine::ReleasedInFuture);
        let until = Quarantine::Until(Timestamp::from_second(1400).unwrap());
        assert_eq!(quarantine(&mut observer, 1100, clocks(1100, 105)), until);
        let mut skewed = QuarantineObserver::new(clocks(0, 0));
        let until = Quarantine::Until(Timestamp::from_second(1300).unwrap());
        assert_eq!(quarantine(&mut skewed, 1060, clocks(1000, 5)), until);
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
            let mut released = start - age;
            let mut observer = QuarantineObserver::new(clocks(start, 0));
            let (mut wall, mut monotonic, mut deleted_at) = (start, 0_u64, None::<u64>);
            for (step, jump) in steps {
                let now = clocks(wall, monotonic);
                let mut found = quarantine(&mut observer, released, now);
                if found == Quarantine::ReleasedInFuture {
                    prop_assert!(monotonic == 0, "only the first observation corrects the time");
                    released = wall;
                    found = quarantine(&mut observer, released, now);
                }
                if matches!(found, Quarantine::Until(end) if end <= now.wall) {
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
