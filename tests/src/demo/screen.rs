//! What is said while it goes on: lines with the seconds since the beginning. And whether it is to end.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

/// How often it is looked. To ask is work too, of which the hosts have less then.
const OFTEN: Duration = Duration::from_secs(2);

/// Where progress is told.
#[derive(Debug)]
pub struct Screen {
    began: Instant,
    is_stopped: AtomicBool,
}

impl Default for Screen {
    fn default() -> Self {
        Self { began: Instant::now(), is_stopped: AtomicBool::new(false) }
    }
}

impl Screen {
    /// Tells a person what is so now, and notes it in the log.
    pub fn say(&self, what: &str) {
        let line = format!("{:>4} s  {what}\n", self.began.elapsed().as_secs());
        self.print(&line);
        std::io::stderr().write_all(line.as_bytes()).unwrap_or_default();
    }

    /// Prints text as it is. A reader that has gone is no reason to end.
    pub fn print(&self, text: &str) {
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).unwrap_or_default();
    }

    /// From now on every waiting caller stops.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::SeqCst);
    }

    /// Whether it is to end.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::SeqCst)
    }

    /// Waits until a question has an answer, or `Err` says why it will have none.
    ///
    /// # Errors
    /// If it has none in that time, or all is to end.
    pub fn until<T>(
        &self,
        what: &str,
        timeout: Duration,
        mut answer: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        let begin = Instant::now();
        loop {
            if let Some(answer) = answer()? {
                return Ok(answer);
            }
            ensure!(begin.elapsed() < timeout, "not after {} s: {what}", timeout.as_secs());
            self.pause(OFTEN)?;
        }
    }

    /// Nothing for a while.
    ///
    /// # Errors
    /// If all is to end.
    pub fn pause(&self, time: Duration) -> Result<()> {
        std::thread::sleep(time);
        if self.is_stopped() {
            bail!("it was told to end");
        }
        Ok(())
    }
}
