//! The lease guard: among several extenders, only the extender whose kube-scheduler holds the scheduler's Lease answers
//! calls.
//!
//! kube-scheduler and its extender share a pod. The scheduler's identity in the Lease consists of the pod's host name,
//! `_` and a random part. A Lease that is not renewed expires after its `leaseDurationSeconds`, measured from the time
//! at which this extender first read the last renewal. If another scheduler held the Lease before, the guard waits
//! until no binding of that scheduler can still be in progress.

use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;

/// Time after the start of a read of the Lease for which the result is valid.
pub const READ_VALIDITY: Duration = Duration::from_secs(1);
/// Timeout of the request that sends a binding to the API server.
pub const SEND_TIMEOUT: Duration = Duration::from_secs(2);
/// Time for which this pod's scheduler must have held the Lease before the extender answers calls, if another scheduler
/// held the Lease before. The time is longer than [`READ_VALIDITY`] plus [`SEND_TIMEOUT`], so that no binding of the
/// other extender is in progress.
const TAKEOVER_DELAY: Duration = Duration::from_secs(4);

/// Reason why this extender must not answer calls now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// The result of this read is older than a result that has already been handled.
    #[error(
        "the result of this read of the scheduler's Lease is outdated: a later read has already returned"
    )]
    Outdated,
    #[error("the scheduler's Lease has no holder")]
    NoHolder,
    /// The scheduler of another pod holds the Lease.
    #[error("the scheduler's Lease is held by {holder}, not by the scheduler in this pod ({host})")]
    OtherHolder {
        /// Identity of the holder.
        holder: String,
        /// Host name of this pod.
        host: String,
    },
    /// The holder has not renewed the Lease within the lease duration.
    #[error("{holder} has not renewed the scheduler's Lease within the lease duration")]
    Expired {
        /// Identity of the holder.
        holder: String,
    },
    /// The holder acquired the Lease less than 4 seconds ago, and another scheduler held the Lease before.
    #[error(
        "{holder} acquired the scheduler's Lease less than 4 s ago; the previous holder may still send a binding"
    )]
    JustAcquired {
        /// Identity of the holder.
        holder: String,
    },
}

/// State of the scheduler's Lease, according to the last reads.
#[derive(Clone, Debug, Default)]
pub struct LeaseGuard {
    host: String,
    /// Last `renewTime` that was read, and the time at which this value was first read.
    last_renewal: Option<(String, Instant)>,
    /// Holder and `acquireTime` that were read last, and the time at which these values were first read.
    last_acquisition: Option<(String, String, Instant)>,
    /// Start of the read whose result was handled last.
    last_read: Option<Instant>,
    /// Start of the last read, if its result permits this extender to answer calls.
    last_held_read: Option<Instant>,
}

impl LeaseGuard {
    /// Creates a guard for the pod with this host name.
    #[must_use]
    pub fn new(host: &str) -> Self {
        Self { host: host.to_owned(), ..Self::default() }
    }

    /// Returns true if the result of the last read is still valid and permits this extender to answer calls.
    #[must_use]
    pub fn is_held(&self, now: Instant) -> bool {
        self.last_held_read.is_some_and(|at| now.saturating_duration_since(at) < READ_VALIDITY)
    }

    /// Handles the result of a read of the Lease that started at `read_started` and has just returned.
    ///
    /// # Errors
    /// Returns the reason if this extender must not answer calls.
    pub fn update(
        &mut self,
        read_started: Instant,
        now: Instant,
        lease: Option<&Lease>,
    ) -> Result<(), LeaseError> {
        if self.last_read.is_some_and(|last| read_started < last) {
            return Err(LeaseError::Outdated);
        }
        self.last_read = Some(read_started);
        self.last_held_read = None;
        let spec = lease.and_then(|lease| lease.spec.as_ref());
        let holder = spec.and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default();
        let Some(spec) = spec.filter(|_| !holder.is_empty()) else {
            self.last_renewal = None;
            return Err(LeaseError::NoHolder);
        };
        if holder.rsplit_once('_').map(|(host, _)| host) != Some(self.host.as_str()) {
            self.last_renewal = None;
            let (holder, host) = (holder.to_owned(), self.host.clone());
            return Err(LeaseError::OtherHolder { holder, host });
        }
        let time = spec.renew_time.as_ref().map(|time| time.0);
        let renewed = time.map(|time| time.to_string()).unwrap_or_default();
        let since = match &self.last_renewal {
            Some((known, since)) if *known == renewed => *since,
            _ => read_started,
        };
        self.last_renewal = Some((renewed, since));
        let seconds = u64::try_from(spec.lease_duration_seconds.unwrap_or_default());
        let lease_duration = Duration::from_secs(seconds.unwrap_or_default());
        if read_started.saturating_duration_since(since) >= lease_duration {
            return Err(LeaseError::Expired { holder: holder.to_owned() });
        }
        // `renewTime` and `acquireTime` come from the holder's clock. If that clock was set back, the time that this
        // extender has measured is longer, and is used instead.
        let acquired = spec.acquire_time.as_ref().map(|time| time.0);
        let held_for = time.zip(acquired).map(|(now, then)| now.duration_since(then));
        let held_for = held_for.and_then(|held| Duration::try_from(held).ok()).unwrap_or_default();
        let acquire_time = acquired.map(|time| time.to_string()).unwrap_or_default();
        let since = match &self.last_acquisition {
            Some((last_holder, last_acquire_time, since))
                if *last_holder == *holder && *last_acquire_time == acquire_time =>
            {
                *since
            }
            _ => now,
        };
        self.last_acquisition = Some((holder.to_owned(), acquire_time, since));
        let held_for = held_for.max(read_started.saturating_duration_since(since));
        if spec.lease_transitions.unwrap_or_default() > 0 && held_for < TAKEOVER_DELAY {
            return Err(LeaseError::JustAcquired { holder: holder.to_owned() });
        }
        self.last_held_read = Some(read_started);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lease(holder: &str, renewed: &str, transitions: i32) -> Lease {
        serde_json::from_value(json!({"metadata": {"name": "berth-scheduler"}, "spec": {
            "holderIdentity": holder, "leaseDurationSeconds": 15, "leaseTransitions": transitions,
            "acquireTime": "2026-01-01T00:00:00.000000Z", "renewTime": renewed}}))
        .unwrap()
    }

    fn update_guard(
        guard: &mut LeaseGuard,
        now: Instant,
        lease: Option<&Lease>,
    ) -> Result<(), LeaseError> {
        guard.update(now, now, lease)
    }

    #[test]
    fn lease_is_held_only_by_the_pod_of_the_holder() {
        let now = Instant::now();
        let mut guard = LeaseGuard::new("berth-controller-a");
        let later = "2026-01-01T00:00:09.000000Z";
        for other in ["berth-controller-b_1", "berth-controller-a", "berth-controller-a_b_1", ""] {
            assert!(
                update_guard(&mut guard, now, Some(&lease(other, later, 1))).is_err(),
                "{other}"
            );
            assert!(!guard.is_held(now));
        }
        assert!(update_guard(&mut guard, now, None).is_err());
        update_guard(&mut guard, now, Some(&lease("berth-controller-a_1", later, 1))).unwrap();
        assert!(guard.is_held(now) && !guard.is_held(now + READ_VALIDITY));
    }

    #[test]
    fn a_lease_that_is_not_renewed_expires() {
        let now = Instant::now();
        let mut guard = LeaseGuard::new("a");
        let same = lease("a_1", "2026-01-01T00:00:09.000000Z", 1);
        update_guard(&mut guard, now, Some(&same)).unwrap();
        update_guard(&mut guard, now + Duration::from_secs(14), Some(&same)).unwrap();
        assert!(update_guard(&mut guard, now + Duration::from_secs(15), Some(&same)).is_err());
        let new = lease("a_1", "2026-01-01T00:00:11.000000Z", 1);
        update_guard(&mut guard, now + Duration::from_secs(16), Some(&new)).unwrap();
    }

    #[test]
    fn guard_waits_after_another_holder() {
        let now = Instant::now();
        let mut guard = LeaseGuard::new("a");
        assert!(
            update_guard(&mut guard, now, Some(&lease("a_1", "2026-01-01T00:00:02.000000Z", 1)))
                .is_err()
        );
        update_guard(&mut guard, now, Some(&lease("a_1", "2026-01-01T00:00:04.000000Z", 1)))
            .unwrap();
        update_guard(&mut guard, now, Some(&lease("a_1", "2026-01-01T00:00:00.000000Z", 0)))
            .unwrap();
    }

    #[test]
    fn the_guard_does_not_wait_for_a_clock_that_was_set_back() {
        let now = Instant::now();
        let mut guard = LeaseGuard::new("a");
        for (second, is_ours) in [(0, false), (3, false), (4, true), (5, true)] {
            // The holder's clock was set back by an hour: `renewTime`, which changes each second, is before
            // `acquireTime`.
            let renewed = format!("2025-12-31T23:00:0{second}.000000Z");
            let read = update_guard(
                &mut guard,
                now + Duration::from_secs(second),
                Some(&lease("a_1", &renewed, 1)),
            );
            assert_eq!(read.is_ok(), is_ours, "after {second} s: {read:?}");
        }
    }
}
