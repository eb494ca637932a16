//! Backoff of objects that fail, for every reconciler: exponential, jittered, and never shorter than `Retry-After`.

use std::collections::HashMap;
use std::fmt::{Debug, Display};
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use berth_runtime::client::{at_least, jittered};
use kube::Resource;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;

/// After the first error, doubled with each further one.
const FIRST: Duration = Duration::from_millis(500);
/// Longest pause between tries.
const LONGEST: Duration = Duration::from_secs(120);
/// An object that was deleted while it failed is forgotten after so long.
const FORGET: Duration = Duration::from_secs(3600);

/// Objects of a reconciler that fail.
#[derive(Debug)]
pub(super) struct Backoff<K: Resource<DynamicType: Debug + Hash + Eq>> {
    controller: &'static str,
    failing: Mutex<HashMap<ObjectRef<K>, Failing>>,
}

/// How often an object failed in a row, and with what the last time.
#[derive(Debug)]
struct Failing {
    count: u32,
    error: String,
    last: Instant,
}

impl<K> Backoff<K>
where
    K: Resource<DynamicType: Debug + Hash + Eq + Clone>,
{
    /// Of a reconciler of this name.
    pub(super) fn new(controller: &'static str) -> Self {
        Self { controller, failing: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ObjectRef<K>, Failing>> {
        self.failing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when to try again. `rest` is how long the server wants to be left alone; an error that is `expected`
    /// (a write conflict) is no warning.
    pub(super) fn failed(
        &self,
        object: ObjectRef<K>,
        error: &impl Display,
        rest: Duration,
        expected: bool,
    ) -> Action {
        Action::requeue(self.pause(object, error, rest, expected))
    }

    fn pause(
        &self,
        object: ObjectRef<K>,
        error: &impl Display,
        rest: Duration,
        expected: bool,
    ) -> Duration {
        let (controller, error) = (self.controller, error.to_string());
        let mut failing = self.lock();
        failing.retain(|_, one| one.last.elapsed() < FORGET);
        let known = failing.entry(object.clone()).or_insert_with(|| Failing {
            count: 0,
            error: String::new(),
            last: Instant::now(),
        });
        if expected {
            tracing::debug!(controller, %object, %error, "conflict; trying again");
        } else if known.error != error {
            tracing::warn!(controller, %object, %error, "failed to reconcile; trying again");
            known.error = error;
        }
        let pause = FIRST.saturating_mul(1 << known.count).min(LONGEST);
        // 2^8 times the first is more than the longest.
        known.count = known.count.saturating_add(1).min(8);
        known.last = Instant::now();
        jittered(pause.max(at_least(rest)))
    }

    /// The next error of the object is its first.
    pub(super) fn succeeded(&self, object: &ObjectRef<K>) {
        if let Some(known) = self.lock().remove(object)
            && !known.error.is_empty()
        {
            tracing::info!(controller = self.controller, %object, "reconciled again");
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Node;

    use super::*;

    fn failed(backoff: &Backoff<Node>, name: &str, rest: Duration) -> Duration {
        backoff.pause(ObjectRef::new(name), &"no", rest, false)
    }

    #[test]
    fn pauses_grow_until_an_object_succeeds() {
        let backoff = Backoff::<Node>::new("test");
        let mut wanted = FIRST;
        for _ in 0..12 {
            let got = failed(&backoff, "a", Duration::ZERO);
            assert!(got >= wanted * 3 / 4 && got <= wanted * 5 / 4, "{got:?} for {wanted:?}");
            wanted = (wanted * 2).min(LONGEST);
        }
        // Others have pauses of their own.
        assert!(failed(&backoff, "b", Duration::ZERO) < FIRST * 2);
        backoff.succeeded(&ObjectRef::new("a"));
        assert!(failed(&backoff, "a", Duration::ZERO) < FIRST * 2);
    }

    #[test]
    fn no_object_comes_before_the_server_wants_it_and_they_do_not_come_at_once() {
        let backoff = Backoff::<Node>::new("test");
        let rest = Duration::from_secs(7);
        let pauses: Vec<Duration> =
            (0..200).map(|n| failed(&backoff, &format!("n{n}"), rest)).collect();
        assert!(pauses.iter().all(|pause| *pause >= rest), "{:?}", pauses.iter().min());
        let (first, last) = (pauses.iter().min().unwrap(), pauses.iter().max().unwrap());
        assert!(*last - *first > Duration::from_secs(2), "{first:?} to {last:?}");
    }
}
