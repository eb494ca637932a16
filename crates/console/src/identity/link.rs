//! Link that opens the console of a kubeconfig. Browsers are started with the link, so that other users of the machine see it in
//! the list of processes: it can be used only once, and for a short time.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::random::{IdHash, RandomError, random_id};

/// Time for which a link is valid.
pub(crate) const LINK_TIME: Duration = Duration::from_secs(600);

/// Code in the link; there is at most one.
#[derive(Debug, Default)]
pub(crate) struct LinkCode(Mutex<Option<Code>>);

#[derive(Debug)]
struct Code {
    hash: IdHash,
    created: Instant,
}

impl LinkCode {
    fn lock(&self) -> MutexGuard<'_, Option<Code>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a new code. The previous one becomes invalid.
    ///
    /// # Errors
    /// Returns an error if the operating system returns no random numbers.
    pub(crate) fn renew(&self, now: Instant) -> Result<String, RandomError> {
        let code = random_id()?;
        *self.lock() = Some(Code { hash: IdHash::new(&code), created: now });
        Ok(code)
    }

    /// Returns true if the code is valid, which it is only once.
    pub(crate) fn redeem(&self, given: &str, now: Instant) -> bool {
        let hash = IdHash::new(given);
        let mut current = self.lock();
        let is_valid = current.as_ref().is_some_and(|code| {
            code.hash == hash && now.saturating_duration_since(code.created) < LINK_TIME
        });
        if is_valid {
            *current = None;
        }
        is_valid
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_is_valid_once_and_for_a_limited_time() {
        let (link, now) = (LinkCode::default(), Instant::now());
        assert!(!link.redeem("", now), "there is no code yet");
        let first = link.renew(now).unwrap();
        assert!(!link.redeem("wrong", now));
        assert!(link.redeem(&first, now), "a wrong code does not use the right one");
        assert!(!link.redeem(&first, now), "it was used");
        let late = link.renew(now).unwrap();
        assert!(!link.redeem(&late, now + LINK_TIME));
        let replaced = link.renew(now).unwrap();
        let last = link.renew(now).unwrap();
        assert!(!link.redeem(&replaced, now));
        assert!(link.redeem(&last, now));
    }
}
