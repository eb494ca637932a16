//! Exponential backoff with jitter for a loop that retries.

use std::time::Duration;

/// Backoff of one loop: the delay doubles with each retry. Jitter prevents a thousand agents from retrying at the same
/// time.
#[derive(Debug)]
pub struct RetryBackoff {
    next_delay: Duration,
    max_delay: Duration,
}

impl RetryBackoff {
    /// Delay before the first retry.
    pub const INITIAL_DELAY: Duration = Duration::from_secs(1);

    /// Returns a backoff whose delays grow up to `max_delay`. The jitter may extend a delay beyond this maximum.
    #[must_use]
    pub const fn with_limit(max_delay: Duration) -> Self {
        Self { next_delay: Self::INITIAL_DELAY, max_delay }
    }

    /// Resets the next delay to [`Self::INITIAL_DELAY`].
    pub const fn reset(&mut self) {
        self.next_delay = Self::INITIAL_DELAY;
    }

    /// Sleeps for the next delay, but not for less than `retry_after`.
    pub async fn wait_before_retry(&mut self, retry_after: Duration) {
        tokio::time::sleep(add_jitter(self.next_delay.max(compensate_jitter(retry_after)))).await;
        self.next_delay = (self.next_delay * 2).min(self.max_delay);
    }
}

/// Returns the shortest time for which [`add_jitter`] always returns at least `time`.
#[must_use]
pub fn compensate_jitter(time: Duration) -> Duration {
    // `add_jitter` divides twice and rounds down each time, so up to two nanoseconds may be lost.
    time * 4 / 3 + Duration::from_nanos(2)
}

/// Returns a random time from 0.75 to 1.25 times `time`.
#[must_use]
pub fn add_jitter(time: Duration) -> Duration {
    // The random seeds of the standard library's hash maps are sufficient for jitter.
    let random =
        std::hash::BuildHasher::hash_one(&std::collections::hash_map::RandomState::new(), 0_u8);
    let part = u32::try_from(random % 512).unwrap_or_default();
    time * 3 / 4 + time * part / 1024
}
