//! Exponential backoff with jitter for a loop that retries.

use std::time::Duration;

/// Backoff of one loop: the pause doubles with each retry and has jitter, so that a thousand agents do not retry at
/// the same time.
#[derive(Debug)]
pub struct RetryBackoff {
    next_pause: Duration,
    max_pause: Duration,
}

impl RetryBackoff {
    /// Pause before the first retry.
    pub const INITIAL_PAUSE: Duration = Duration::from_secs(1);

    /// Returns a backoff whose pauses grow up to `max_pause`, before jitter.
    #[must_use]
    pub const fn with_limit(max_pause: Duration) -> Self {
        Self { next_pause: Self::INITIAL_PAUSE, max_pause }
    }

    /// Resets the next pause to [`Self::INITIAL_PAUSE`].
    pub const fn reset(&mut self) {
        self.next_pause = Self::INITIAL_PAUSE;
    }

    /// Sleeps for the next pause, but not for less than `retry_after`.
    pub async fn wait_before_retry(&mut self, retry_after: Duration) {
        tokio::time::sleep(add_jitter(self.next_pause.max(compensate_jitter(retry_after)))).await;
        self.next_pause = (self.next_pause * 2).min(self.max_pause);
    }
}

/// Returns a time for which the result of [`add_jitter`] is never shorter than `time`.
#[must_use]
pub fn compensate_jitter(time: Duration) -> Duration {
    // Each of the two divisions in `add_jitter` rounds down, so together they may lose two nanoseconds.
    time * 4 / 3 + Duration::from_nanos(2)
}

/// Returns a random time from 0.75 to 1.25 times `time`.
#[must_use]
pub fn add_jitter(time: Duration) -> Duration {
    // The seeds of the standard library's hash maps are random enough for jitter.
    let random =
        std::hash::BuildHasher::hash_one(&std::collections::hash_map::RandomState::new(), 0_u8);
    let part = u32::try_from(random % 512).unwrap_or_default();
    time * 3 / 4 + time * part / 1024
}
