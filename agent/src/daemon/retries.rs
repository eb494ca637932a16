//! Exponential backoff of changes that failed or were applied only in part.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use berth_api::infra_node::ChangeResult;

use crate::apply::ConvergeResult;
use crate::plan::{AttemptId, Change, ChangeId};

/// First and longest retry interval.
const BACKOFF_LIMITS: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(3600));
/// Retry interval of a failed change of links after a link event.
const LINK_RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Changes whose last attempt failed or was applied only in part, with the time of the next retry.
#[derive(Debug, Default)]
pub(super) struct RetryTracker {
    retries_by_attempt: BTreeMap<AttemptId, RetryState>,
    /// Changes of links that were tried and are still pending, with the message of the last attempt.
    link_failures: BTreeMap<ChangeId, String>,
}

#[derive(Debug, Clone, Copy)]
struct RetryState {
    next_retry: Instant,
    backoff: Duration,
}

impl RetryTracker {
    /// Allows all retries at once, after an event that may have removed the cause.
    pub(super) fn allow_all_retries(&mut self) {
        self.retries_by_attempt.clear();
    }

    /// Allows retries of failed changes of links after a short time. Immediate retries could repeat forever, because a
    /// failed change itself may have caused the event.
    pub(super) fn retry_links_soon(&mut self, now: Instant) {
        let failures = &self.link_failures;
        let link_attempts =
            self.retries_by_attempt.iter_mut().filter(|(id, _)| failures.contains_key(&id.change));
        for (_, attempt) in link_attempts {
            attempt.next_retry = attempt.next_retry.min(now + LINK_RETRY_INTERVAL);
            attempt.backoff = BACKOFF_LIMITS.0 / 2;
        }
    }

    /// Returns the attempts whose next retry is in the future.
    pub(super) fn postponed_attempts(&self, now: Instant) -> BTreeSet<AttemptId> {
        let postponed =
            self.retries_by_attempt.iter().filter(|(_, attempt)| attempt.next_retry > now);
        postponed.map(|(id, _)| id.clone()).collect()
    }

    /// Returns the time until the next retry. An attempt that is due but was not made belongs to a blocked change,
    /// which waits for the timer.
    pub(super) fn time_until_retry(&self, now: Instant) -> Option<Duration> {
        let next = self
            .retries_by_attempt
            .values()
            .map(|attempt| attempt.next_retry)
            .filter(|next| *next > now);
        next.map(|next| next.saturating_duration_since(now)).min()
    }

    /// Returns the changes of links that were tried and are still pending, with the message of the last attempt.
    pub(super) const fn link_failures(&self) -> &BTreeMap<ChangeId, String> {
        &self.link_failures
    }

    /// Records the attempts of a cycle that failed or were applied only in part, and removes the changes that are no
    /// longer pending.
    pub(super) fn record_attempts(&mut self, converged: &ConvergeResult, now: Instant) {
        for id in &converged.incomplete_attempts {
            let initial = RetryState { next_retry: now, backoff: BACKOFF_LIMITS.0 / 2 };
            let attempt = self.retries_by_attempt.entry(id.clone()).or_insert(initial);
            attempt.backoff = (attempt.backoff * 2).min(BACKOFF_LIMITS.1);
            attempt.next_retry = now + attempt.backoff;
        }
        let link_changes =
            converged.plan.changes.iter().filter(|change| change.link_action().is_some());
        let pending_links: BTreeSet<&ChangeId> = link_changes.map(|change| &change.id).collect();
        for outcome in converged.outcomes.iter().filter(|o| o.result != ChangeResult::Blocked) {
            let error = outcome.message.clone().unwrap_or_default();
            self.link_failures.insert(outcome.id.clone(), error);
        }
        self.link_failures.retain(|id, _| pending_links.contains(id));
        let unblocked = converged.plan.changes.iter().filter(|change| change.blocked.is_none());
        let pending: BTreeSet<AttemptId> = unblocked.map(Change::desired_attempt_id).collect();
        self.retries_by_attempt.retain(|id, _| pending.contains(id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_postponed_attempt_waits_until_its_retry_or_a_reset() {
        let now = Instant::now();
        let id = AttemptId { change: ChangeId::KubeletCheckpoint, values: Vec::new() };
        let attempt = RetryState { next_retry: now + BACKOFF_LIMITS.0, backoff: BACKOFF_LIMITS.0 };
        let mut retries = RetryTracker {
            retries_by_attempt: [(id.clone(), attempt)].into(),
            ..RetryTracker::default()
        };
        assert_eq!(retries.time_until_retry(now), Some(BACKOFF_LIMITS.0));
        assert!(retries.postponed_attempts(now).contains(&id));
        assert!(retries.postponed_attempts(now + BACKOFF_LIMITS.0).is_empty(), "the retry is due");
        // A link event allows earlier retries only of failed changes of links.
        retries.retry_links_soon(now);
        assert_eq!(retries.time_until_retry(now), Some(BACKOFF_LIMITS.0));
        retries.link_failures.insert(id.change.clone(), String::new());
        retries.retry_links_soon(now);
        assert_eq!(retries.time_until_retry(now), Some(LINK_RETRY_INTERVAL));
        retries.allow_all_retries();
        assert_eq!(retries.time_until_retry(now), None);
    }
}
