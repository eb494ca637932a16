//! Token bucket: a rate limit that permits bursts.

use std::time::{Duration, Instant};

/// A token bucket. Each permitted action takes one token.
#[derive(Debug)]
pub struct TokenBucket {
    left: u32,
    most: u32,
    every: Duration,
    counted: Instant,
}

impl TokenBucket {
    /// Returns a full bucket with `most` tokens that gains one token in each period of `every`.
    #[must_use]
    pub fn new(most: u32, every: Duration) -> Self {
        Self { left: most, most, every, counted: Instant::now() }
    }

    /// Takes a token.
    ///
    /// # Errors
    /// Returns the time until the next token if the bucket is empty.
    pub fn take(&mut self, now: Instant) -> Result<(), Duration> {
        while self.left < self.most && now.duration_since(self.counted) >= self.every {
            self.left += 1;
            self.counted += self.every;
        }
        if self.left == self.most {
            self.counted = now;
        }
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(self.every.saturating_sub(now.duration_since(self.counted))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_limited() {
        let every = Duration::from_secs(300);
        let mut token_bucket = TokenBucket::new(25, every);
        let begin = Instant::now();
        let taken = |token_bucket: &mut TokenBucket, at| {
            (0..100).filter(|_| token_bucket.take(at).is_ok()).count()
        };
        assert_eq!(taken(&mut token_bucket, begin), 25);
        let later = begin + every * 2 + Duration::from_secs(100);
        assert_eq!(taken(&mut token_bucket, later), 2);
        assert_eq!(token_bucket.take(later), Err(Duration::from_secs(200)));
        assert_eq!(taken(&mut token_bucket, later + every * 100), 25);
    }
}
