//! A timer of the kernel (`timerfd_create(2)`) for the wake-ups of an idle agent.
//!
//! The timers of Tokio are in a wheel, whose slots are 64 ms long beyond the first 64 ms. A sleep of half a second wakes
//! the process twice: when its slot begins, and when it ends. A wake-up of an idle process costs as much CPU time as
//! dozens of probes.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use tokio::io::unix::AsyncFd;

/// Shortest time that the timer waits. A time of zero would disable the timer.
const MIN_WAIT: Duration = Duration::from_micros(1);

/// A timer that wakes the process once per wait.
#[derive(Debug)]
pub(super) struct WakeTimer {
    timer: TimerFd,
    readiness: AsyncFd<OwnedFd>,
}

impl WakeTimer {
    /// Creates a timer in the current Tokio runtime.
    ///
    /// # Errors
    /// Returns the error of the kernel, for example if the process has too many open files.
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?;
        let descriptor = timer.as_fd().try_clone_to_owned()?;
        #[expect(
            deprecated,
            reason = "the function that replaces it is unsafe; the descriptor of an OwnedFd is valid"
        )]
        let readiness = AsyncFd::new(descriptor)?;
        Ok(Self { timer, readiness })
    }

    /// Waits for this time. The returned future may be dropped; the next wait then replaces this one.
    ///
    /// # Errors
    /// Returns the error of the kernel, or an error if the runtime shuts down.
    pub(super) async fn wait(&self, time: Duration) -> io::Result<()> {
        let expiration = Expiration::OneShot(TimeSpec::from(time.max(MIN_WAIT)));
        self.timer.set(expiration, TimerSetTimeFlags::empty())?;
        loop {
            let mut guard = self.readiness.readable().await?;
            // The read fails with EAGAIN if the readiness is that of an earlier wait, whose future was dropped.
            if let Ok(read) = guard.try_io(|_| self.timer.wait().map_err(io::Error::from)) {
                // The timer expires only once, so the next wait must not try to read it at once.
                guard.clear_ready();
                return read;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[tokio::test]
    async fn a_dropped_wait_does_not_end_the_next_one() {
        let timer = WakeTimer::new().unwrap();
        timer.wait(Duration::ZERO).await.unwrap();
        let short = timer.wait(Duration::from_millis(10));
        let dropped = tokio::time::timeout(Duration::from_millis(1), short).await;
        // The timer expires, although no wait is in progress any more.
        tokio::time::sleep(Duration::from_millis(20)).await;
        let begin = Instant::now();
        timer.wait(Duration::from_millis(30)).await.unwrap();
        assert!(begin.elapsed() >= Duration::from_millis(30), "{dropped:?}");
    }
}
