//! Collects the results of writes: the refused write of one machine must not prevent the writes of other machines.

use std::time::Duration;

use super::apply::WriteOutcome;
use crate::run::reconcile::ReconcileFailure;

/// Delay of the next reconcile if an object has changed meanwhile.
pub(super) const RETRY_DELAY: Duration = Duration::from_secs(2);

/// Results of the writes of one reconcile.
#[derive(Debug)]
pub(super) struct WriteResults<'h> {
    host: &'h str,
    has_conflict: bool,
    /// First failure, which the runtime of the reconciler reports.
    failure: Option<ReconcileFailure>,
}

impl<'h> WriteResults<'h> {
    pub(super) const fn new(host: &'h str) -> Self {
        Self { host, has_conflict: false, failure: None }
    }

    /// Records the result of a write. Returns true if the write has succeeded.
    pub(super) fn record(&mut self, result: Result<WriteOutcome, ReconcileFailure>) -> bool {
        match result {
            Ok(WriteOutcome::Done) => return true,
            Ok(WriteOutcome::Conflict) => self.has_conflict = true,
            Err(error) => self.record_failure(error),
        }
        false
    }

    /// Records a failure. All failures but the first are logged here.
    pub(super) fn record_failure(&mut self, error: ReconcileFailure) {
        if self.failure.is_none() {
            self.failure = Some(error);
        } else {
            tracing::warn!(host = self.host, %error, "a further request of the reconcile of a host failed");
        }
    }

    /// Returns the delay of the next reconcile: `delay`, or less if an object has changed meanwhile.
    ///
    /// # Errors
    /// Returns the first failure.
    pub(super) fn finish(self, delay: Duration) -> Result<Duration, ReconcileFailure> {
        let delay = if self.has_conflict { delay.min(RETRY_DELAY) } else { delay };
        self.failure.map_or(Ok(delay), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_writes_are_tried_and_the_next_reconcile_repeats_the_failed_ones() {
        let long = Duration::from_secs(600);
        let mut results = WriteResults::new("a");
        assert!(results.record(Ok(WriteOutcome::Done)));
        assert_eq!(results.finish(long).unwrap(), long);
        let mut results = WriteResults::new("a");
        assert!(!results.record(Ok(WriteOutcome::Conflict)));
        assert!(results.record(Ok(WriteOutcome::Done)), "a conflict does not end the reconcile");
        assert_eq!(results.finish(long).unwrap(), RETRY_DELAY);
        let mut results = WriteResults::new("a");
        for name in ["first", "second"] {
            let failure = ReconcileFailure::PrerequisiteNotMet(name.to_owned());
            assert!(!results.record(Err(failure)));
        }
        assert_eq!(results.finish(long).unwrap_err().to_string(), "first");
    }
}
