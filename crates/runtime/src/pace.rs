//! Rate limit with a burst: a token bucket.

use std::time::{Duration, Instant};

/// A token bucket.
#[derive(Debug)]
pub struct Pace {
    left: u32,
    most: u32,
    every: Duration,
    counted: Instant,
}

impl Pace {
    /// Returns a full bucket with `most` tokens that gains one token in each period of `every`.
    #[must_use]
    pub fn new(most: u32, every: Duration) -> Self {
        Self { left: most, most, every, counted: Instant::now() }
    }

    /// Takes a token.
    ///
    /// # Errors
    /// Returns the time until the next token, if the bucket is empty.
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
        let mut pace = Pace::new(25, every);
        let begin = Instant::now();
        let taken = |pace: &mut Pace, at| (0..100).filter(|_| pace.take(at).is_ok()).count();
        assert_eq!(taken(&mut pace, begin), 25);
        let later = begin + every * 2 + Duration::from_secs(100);
        assert_eq!(taken(&mut pace, later), 2);
        assert_eq!(pace.take(later), Err(Duration::from_secs(200)));
        assert_eq!(taken(&mut pace, later + every * 100), 25);
    }
}
