//! Functions that wait until a server or a host reaches a state.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Factor by which a machine may be slower than two idle cores. Tests depend on the speed of the machine only if they
/// measure it.
const SLOWDOWN_FACTOR: u32 = 10;
/// Maximum length of the last attempt's output in the error message. Longer output is cut at its beginning.
const MAX_SHOWN_OUTPUT: usize = 2000;

/// State that an attempt observed while the condition does not hold yet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Pending(String);

impl<S: Into<String>> From<S> for Pending {
    fn from(observed: S) -> Self {
        Self(observed.into())
    }
}

/// Calls a function repeatedly until the function returns a value. The limit is for a machine with two idle cores; the
/// actual limit is ten times as long.
///
/// # Errors
/// Fails if there is no value within the time limit. The error message has the observation of the last attempt.
pub fn wait_until<T>(
    condition: &str,
    limit: Duration,
    mut ask: impl FnMut() -> Result<T, Pending>,
) -> Result<T> {
    let begin = Instant::now();
    loop {
        let observed = match ask() {
            Ok(answer) => return Ok(answer),
            Err(Pending(saw)) => saw,
        };
        let waited = begin.elapsed();
        if waited >= limit * SLOWDOWN_FACTOR {
            let from = observed.char_indices().rev().nth(MAX_SHOWN_OUTPUT).map_or(0, |(at, _)| at);
            let tail = observed.get(from..).unwrap_or_default().trim();
            bail!("timeout after {} s: {condition}; last observation: {tail}", waited.as_secs());
        }
        // Each attempt needs CPU time, so the interval between attempts grows with the waiting time.
        std::thread::sleep((waited / 20).clamp(Duration::from_millis(100), Duration::from_secs(2)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_attempt_is_shown() {
        let mut tries = 0;
        let error = wait_until("three", Duration::from_millis(30), || -> Result<(), Pending> {
            tries += 1;
            Err(format!("{tries} of 3").into())
        });
        // The number of tries and the seconds depend on the load of the machine.
        let message = error.unwrap_err().to_string();
        let end = format!(" s: three; last observation: {tries} of 3");
        assert!(message.starts_with("timeout after ") && message.ends_with(&end), "{message}");
        assert_eq!(wait_until("now", Duration::ZERO, || Ok(7)).ok(), Some(7));
    }
}
