//! Progress messages with the seconds since the start, and the stop signal of the demo.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

/// Poll interval. A longer interval leaves the emulated hosts more CPU time.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Output for progress messages.
#[derive(Debug)]
pub struct Screen {
    began: Instant,
    /// Milliseconds from the start to the last step.
    last_step: AtomicU64,
    is_stopped: AtomicBool,
}

impl Default for Screen {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            last_step: AtomicU64::new(0),
            is_stopped: AtomicBool::new(false),
        }
    }
}

impl Screen {
    /// Prints the current step, and writes the step to the log.
    pub fn print_step(&self, step: &str) {
        let elapsed = self.began.elapsed();
        self.last_step.store(elapsed.as_millis().try_into().unwrap_or(u64::MAX), Ordering::SeqCst);
        let line = format!("{:>4} s  {step}\n", elapsed.as_secs());
        self.print(&line);
        std::io::stderr().write_all(line.as_bytes()).unwrap_or_default();
    }

    /// Prints text unchanged. A closed output does not end the demo.
    pub fn print(&self, text: &str) {
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).unwrap_or_default();
    }

    /// Makes all current and later calls of [`Self::sleep`] and [`Self::wait_until`] fail.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::SeqCst);
    }

    /// Returns true if the demo is to stop.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::SeqCst)
    }

    /// Calls a function repeatedly until the function returns a value or an error.
    ///
    /// # Errors
    /// Fails if there is neither a value nor a new step for the duration of `timeout`, or if the demo is to
    /// stop. Each new step restarts the timeout, because a busy machine is slow but makes progress.
    pub fn wait_until<T>(
        &self,
        step: &str,
        timeout: Duration,
        mut answer: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        let begin = Instant::now();
        loop {
            if let Some(answer) = answer()? {
                return Ok(answer);
            }
            let last_step = Duration::from_millis(self.last_step.load(Ordering::SeqCst));
            let idle_time = begin.elapsed().min(self.began.elapsed().saturating_sub(last_step));
            ensure!(idle_time < timeout, "no progress for {} s: {step}", timeout.as_secs());
            self.sleep(POLL_INTERVAL)?;
        }
    }

    /// Waits for the given time.
    ///
    /// # Errors
    /// Fails if the demo is to stop.
    pub fn sleep(&self, time: Duration) -> Result<()> {
        std::thread::sleep(time);
        if self.is_stopped() {
            bail!("interrupted");
        }
        Ok(())
    }
}
