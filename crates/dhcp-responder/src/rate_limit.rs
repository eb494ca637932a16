//! Rate limit of one port, so that a guest that floods the agent does not delay the answers to its neighbours.

use std::time::Duration;

/// Time since an arbitrary start; monotonic.
pub type Uptime = Duration;

/// Capacity of the token bucket of a port: the number of answers without a delay if the bucket is full. A boot with
/// firmware, boot loader and operating system needs fewer than ten.
pub const ANSWER_CAPACITY: u32 = 20;
/// Time after which one token is added to the bucket of a port.
pub const ANSWER_INTERVAL: Duration = Duration::from_millis(200);

/// Token bucket, stored as the time at which the bucket is full again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RateLimit {
    full_at: Uptime,
}

impl RateLimit {
    /// Returns true if a token is left.
    pub(crate) fn has_token(self, now: Uptime) -> bool {
        let missing = self.full_at.saturating_sub(now);
        missing + ANSWER_INTERVAL <= ANSWER_INTERVAL * ANSWER_CAPACITY
    }

    /// Takes a token.
    pub(crate) fn take(&mut self, now: Uptime) {
        self.full_at = self.full_at.max(now).saturating_add(ANSWER_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take_all_tokens(limit: &mut RateLimit, now: Uptime) -> u32 {
        let mut count = 0;
        while limit.has_token(now) {
            limit.take(now);
            count += 1;
        }
        count
    }

    #[test]
    fn tokens_return_with_time() {
        let mut limit = RateLimit::default();
        let start = Duration::from_secs(1_000_000);
        assert_eq!(take_all_tokens(&mut limit, start), ANSWER_CAPACITY);
        assert_eq!(take_all_tokens(&mut limit, start + Duration::from_secs(1)), 5);
        assert_eq!(take_all_tokens(&mut limit, start + Duration::from_secs(9)), ANSWER_CAPACITY);
        assert_eq!(
            take_all_tokens(&mut limit, start),
            0,
            "the clock cannot go back; it must not panic"
        );
        assert_eq!(take_all_tokens(&mut RateLimit::default(), Uptime::ZERO), ANSWER_CAPACITY);
    }
}
