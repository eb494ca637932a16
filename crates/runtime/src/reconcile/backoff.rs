//! Backoff for objects whose reconcile fails: exponential, with jitter, and never shorter than `Retry-After`.

use std::collections::HashMap;
use std::fmt::{Debug, Display};
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kube::Resource;
use kube::runtime::reflector::ObjectRef;

use crate::backoff::{add_jitter, compensate_jitter};

/// Backoff after the first failure of an object. Each further failure doubles the backoff.
const INITIAL_BACKOFF: Duration = Duration::from_millis(500);
/// Maximum backoff of an object, before jitter.
const MAX_BACKOFF: Duration = Duration::from_secs(120);
/// Time after the last failure of an object until its record is removed. This limits the memory if failing objects are
/// deleted.
const FAILURE_RETENTION: Duration = Duration::from_secs(3600);

/// Failures of a reconciler, recorded for each object.
#[derive(Debug)]
pub(super) struct ObjectBackoff<K: Resource<DynamicType: Debug + Hash + Eq>> {
    reconciler: &'static str,
    failures: Mutex<HashMap<ObjectRef<K>, FailureRecord>>,
}

/// Record of the consecutive failures of one object.
#[derive(Debug)]
struct FailureRecord {
    failure_count: u32,
    last_error: String,
    last_failure: Instant,
}

impl<K> ObjectBackoff<K>
where
    K: Resource<DynamicType: Debug + Hash + Eq + Clone>,
{
    pub(super) fn new(reconciler: &'static str) -> Self {
        Self { reconciler, failures: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ObjectRef<K>, FailureRecord>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a failure of an object, and returns the backoff before the next attempt. An error is logged as a warning
    /// if it differs from the object's previous error. Write conflicts are expected, so they are logged only at debug
    /// level.
    pub(super) fn record_failure(
        &self,
        object: ObjectRef<K>,
        error: &impl Display,
        retry_after: Duration,
        is_conflict: bool,
    ) -> Duration {
        let (reconciler, error) = (self.reconciler, error.to_string());
        let mut failures = self.lock();
        failures.retain(|_, one| one.last_failure.elapsed() < FAILURE_RETENTION);
        let record = failures.entry(object.clone()).or_insert_with(|| FailureRecord {
            failure_count: 0,
            last_error: String::new(),
            last_failure: Instant::now(),
        });
        if is_conflict {
            tracing::debug!(reconciler, %object, %error, "write conflict; trying again");
        } else if record.last_error != error {
            tracing::warn!(reconciler, %object, %error, "failed to reconcile; trying again");
            record.last_error = error;
        }
        let delay = INITIAL_BACKOFF.saturating_mul(1 << record.failure_count).min(MAX_BACKOFF);
        // After 8 failures the backoff has reached its maximum, so failures are not counted further.
        record.failure_count = record.failure_count.saturating_add(1).min(8);
        record.last_failure = Instant::now();
        add_jitter(delay.max(compensate_jitter(retry_after)))
    }

    /// Removes the record of an object after a successful reconcile.
    pub(super) fn record_success(&self, object: &ObjectRef<K>) {
        if let Some(record) = self.lock().remove(object)
            && !record.last_error.is_empty()
        {
            tracing::info!(reconciler = self.reconciler, %object, "reconcile succeeded after failures");
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Node;

    use super::*;

    fn record_failure(
        backoff: &ObjectBackoff<Node>,
        name: &str,
        retry_after: Duration,
    ) -> Duration {
        backoff.record_failure(ObjectRef::new(name), &"no", retry_after, false)
    }

    #[test]
    fn backoff_grows_until_the_object_succeeds() {
        let backoff = ObjectBackoff::<Node>::new("test");
        let mut expected = INITIAL_BACKOFF;
        for _ in 0..12 {
            let delay = record_failure(&backoff, "a", Duration::ZERO);
            assert!(
                delay >= expected * 3 / 4 && delay <= expected * 5 / 4,
                "{delay:?} for {expected:?}"
            );
            expected = (expected * 2).min(MAX_BACKOFF);
        }
        // The backoff of one object does not depend on the failures of other objects.
        assert!(record_failure(&backoff, "b", Duration::ZERO) < INITIAL_BACKOFF * 2);
        backoff.record_success(&ObjectRef::new("a"));
        assert!(record_failure(&backoff, "a", Duration::ZERO) < INITIAL_BACKOFF * 2);
    }

    #[test]
    fn retries_respect_retry_after_and_have_jitter() {
        let backoff = ObjectBackoff::<Node>::new("test");
        let retry_after = Duration::from_secs(7);
        let delays: Vec<Duration> =
            (0..200).map(|n| record_failure(&backoff, &format!("n{n}"), retry_after)).collect();
        assert!(delays.iter().all(|delay| *delay >= retry_after), "{:?}", delays.iter().min());
        let (first, last) = (delays.iter().min().unwrap(), delays.iter().max().unwrap());
        assert!(*last - *first > Duration::from_secs(2), "{first:?} to {last:?}");
    }
}
