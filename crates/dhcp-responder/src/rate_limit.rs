//! Rate limit of the answers to one port, so that a guest that floods the agent does not delay the answers to other
//! guests.

use std::time::Duration;

/// Monotonic time since an arbitrary start.
pub type Uptime = Duration;

/// Capacity of the token bucket of a port: the number of answers that can be sent without delay if the bucket is full.
/// A boot with firmware, boot loader and operating system needs fewer than 10.
pub const ANSWER_CAPACITY: u32 = 20;
/// Time after which one token is added to the bucket of a port.
pub const ANSWER_INTERVAL: Duration = Duration::from_millis(200);

/// Token bucket. It contains only the time at which the bucket will be full again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RateLimit {
    full_at: Uptime,
}

impl RateLimit {
    /// Returns true if the bucket contains a token.
    pub(crate) fn has_token(self, now: Uptime) -> bool {
        let missing = self.full_at.saturating_sub(now);
        missing + ANSWER_INTERVAL <= ANSWER_INTERVAL * ANSWER_CAPACITY
    }

    /// Removes a token from the bucket.
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
