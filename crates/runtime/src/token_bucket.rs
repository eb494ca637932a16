//! Token bucket: a rate limit that permits a number of actions without delay.

use std::time::{Duration, Instant};

/// A token bucket. Each permitted action takes one token.
#[derive(Debug)]
pub struct TokenBucket {
    remaining_tokens: u32,
    capacity: u32,
    refill_interval: Duration,
    refilled_at: Instant,
}

impl TokenBucket {
    /// Returns a full bucket with `capacity` tokens, to which one token is added every `refill_interval`.
    #[must_use]
    pub fn new(capacity: u32, refill_interval: Duration) -> Self {
        Self { remaining_tokens: capacity, capacity, refill_interval, refilled_at: Instant::now() }
    }

    /// Takes a token.
    ///
    /// # Errors
    /// Returns the time until the next token if the bucket is empty.
    pub fn take_token(&mut self, now: Instant) -> Result<(), Duration> {
        while self.remaining_tokens < self.capacity
            && now.duration_since(self.refilled_at) >= self.refill_interval
        {
            self.remaining_tokens += 1;
            self.refilled_at += self.refill_interval;
        }
        if self.remaining_tokens == self.capacity {
            self.refilled_at = now;
        }
        match self.remaining_tokens.checked_sub(1) {
            Some(remaining) => {
                self.remaining_tokens = remaining;
                Ok(())
            }
            None => Err(self.refill_interval.saturating_sub(now.duration_since(self.refilled_at))),
        }
    }

    /// Returns the token of an action that does not count.
    pub fn return_token(&mut self) {
        self.remaining_tokens = self.remaining_tokens.saturating_add(1).min(self.capacity);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_at_once_are_limited_to_the_capacity() {
        let refill_interval = Duration::from_secs(300);
        let mut token_bucket = TokenBucket::new(25, refill_interval);
        let begin = Instant::now();
        let taken = |token_bucket: &mut TokenBucket, at| {
            (0..100).filter(|_| token_bucket.take_token(at).is_ok()).count()
        };
        assert_eq!(taken(&mut token_bucket, begin), 25);
        let later = begin + refill_interval * 2 + Duration::from_secs(100);
        assert_eq!(taken(&mut token_bucket, later), 2);
        assert_eq!(token_bucket.take_token(later), Err(Duration::from_secs(200)));
        assert_eq!(taken(&mut token_bucket, later + refill_interval * 100), 25);
    }
}
