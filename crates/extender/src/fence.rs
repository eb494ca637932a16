//! Who decides, of several: the one whose kube-scheduler holds the scheduler's Lease.
//!
//! The scheduler and its sidecar share a pod, and the scheduler signs the Lease with the pod's host name, `_` and a
//! random part. A Lease that is not renewed counts for nothing after its own duration, by how long it has not changed
//! here. One that was another's before is waited with for as long as the other's last binding may take.

use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;

/// A look at the Lease is good for so long.
pub const LOOK: Duration = Duration::from_secs(1);
/// A binding takes so long at most, or is given up.
pub const SEND: Duration = Duration::from_secs(2);
/// A Lease that was another's is ours for so long before anything is decided by it: longer than a look and a binding.
const SETTLE: Duration = Duration::from_secs(4);

/// What is known of the Lease.
#[derive(Clone, Debug, Default)]
pub struct Fence {
    host: String,
    /// As it was renewed last, and when that was first seen.
    renewed: Option<(String, Instant)>,
    /// Which scheduler has it, since when by its own clock, and when that was first seen.
    acquired: Option<(String, String, Instant)>,
    /// The last look.
    looked: Option<Instant>,
    /// The same, if it was ours then.
    sure: Option<Instant>,
}

impl Fence {
    /// For a pod of this host name.
    #[must_use]
    pub fn of(host: &str) -> Self {
        Self { host: host.to_owned(), ..Self::default() }
    }

    /// Whether the last look was a short while ago, and it was ours.
    #[must_use]
    pub fn is_sure(&self, now: Instant) -> bool {
        self.sure.is_some_and(|at| now.saturating_duration_since(at) < LOOK)
    }

    /// A look that was begun at this time, and answered now.
    ///
    /// # Errors
    /// Why nothing may be decided here now.
    pub fn look(
        &mut self,
        began: Instant,
        now: Instant,
        lease: Option<&Lease>,
    ) -> Result<(), String> {
        if self.looked.is_some_and(|last| began < last) {
            return Err("a newer look has been taken".to_owned());
        }
        self.looked = Some(began);
        self.sure = None;
        let spec = lease.and_then(|lease| lease.spec.as_ref());
        let holder = spec.and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default();
        let Some(spec) = spec.filter(|_| !holder.is_empty()) else {
            self.renewed = None;
            return Err("nobody holds the scheduler's Lease".to_owned());
        };
        if holder.rsplit_once('_').map(|(host, _)| host) != Some(self.host.as_str()) {
            self.renewed = None;
            let host = &self.host;
            return Err(format!(
                "{holder} holds the scheduler's Lease, and not a scheduler of {host}"
            ));
        }
        let time = spec.renew_time.as_ref().map(|time| time.0);
        let renewed = time.map(|time| time.to_string()).unwrap_or_default();
        let since = match &self.renewed {
            Some((known, since)) if *known == renewed => *since,
            _ => began,
        };
        self.renewed = Some((renewed, since));
        let seconds = u64::try_from(spec.lease_duration_seconds.unwrap_or_default());
        let lasts = Duration::from_secs(seconds.unwrap_or_default());
        if began.saturating_duration_since(since) >= lasts {
            return Err(format!("{holder} has not renewed the scheduler's Lease in time"));
        }
        // Both times are by the holder's own clock; which may have been put back since, and is not waited for then.
        let acquired = spec.acquire_time.as_ref().map(|time| time.0);
        let held = time.zip(acquired).map(|(now, then)| now.duration_since(then));
        let held = held.and_then(|held| Duration::try_from(held).ok()).unwrap_or_default();
        let text = acquired.map(|time| time.to_string()).unwrap_or_default();
        let since = match &self.acquired {
            Some((who, when, since)) if *who == *holder && *when == text => *since,
            _ => now,
        };
        self.acquired = Some((holder.to_owned(), text, since));
        let held = held.max(began.saturating_duration_since(since));
        if spec.lease_transitions.unwrap_or_default() > 0 && held < SETTLE {
            return Err(format!("{holder} has only just got the scheduler's Lease"));
        }
        self.sure = Some(began);
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

    fn look(fence: &mut Fence, now: Instant, lease: Option<&Lease>) -> Result<(), String> {
        fence.look(now, now, lease)
    }

    #[test]
    fn only_the_pod_whose_scheduler_holds_it_decides() {
        let now = Instant::now();
        let mut fence = Fence::of("berth-controller-a");
        let later = "2026-01-01T00:00:09.000000Z";
        for other in ["berth-controller-b_1", "berth-controller-a", "berth-controller-a_b_1", ""] {
            assert!(look(&mut fence, now, Some(&lease(other, later, 1))).is_err(), "{other}");
            assert!(!fence.is_sure(now));
        }
        assert!(look(&mut fence, now, None).is_err());
        look(&mut fence, now, Some(&lease("berth-controller-a_1", later, 1))).unwrap();
        assert!(fence.is_sure(now) && !fence.is_sure(now + LOOK));
    }

    #[test]
    fn one_that_is_not_renewed_counts_for_nothing() {
        let now = Instant::now();
        let mut fence = Fence::of("a");
        let same = lease("a_1", "2026-01-01T00:00:09.000000Z", 1);
        look(&mut fence, now, Some(&same)).unwrap();
        look(&mut fence, now + Duration::from_secs(14), Some(&same)).unwrap();
        assert!(look(&mut fence, now + Duration::from_secs(15), Some(&same)).is_err());
        let new = lease("a_1", "2026-01-01T00:00:11.000000Z", 1);
        look(&mut fence, now + Duration::from_secs(16), Some(&new)).unwrap();
    }

    #[test]
    fn one_that_was_anothers_is_waited_with() {
        let now = Instant::now();
        let mut fence = Fence::of("a");
        assert!(
            look(&mut fence, now, Some(&lease("a_1", "2026-01-01T00:00:02.000000Z", 1))).is_err()
        );
        look(&mut fence, now, Some(&lease("a_1", "2026-01-01T00:00:04.000000Z", 1))).unwrap();
        look(&mut fence, now, Some(&lease("a_1", "2026-01-01T00:00:00.000000Z", 0))).unwrap();
    }

    #[test]
    fn a_clock_that_is_put_back_is_not_waited_for() {
        let now = Instant::now();
        let mut fence = Fence::of("a");
        for (second, is_ours) in [(0, false), (3, false), (4, true), (5, true)] {
            // An hour before it got the Lease, and renewed each second.
            let renewed = format!("2025-12-31T23:00:0{second}.000000Z");
            let look = look(
                &mut fence,
                now + Duration::from_secs(second),
                Some(&lease("a_1", &renewed, 1)),
            );
            assert_eq!(look.is_ok(), is_ours, "after {second} s: {look:?}");
        }
    }
}
