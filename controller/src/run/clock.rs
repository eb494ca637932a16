//! Timestamps of conditions, and the clocks of this process.

use std::time::{Duration, Instant};

use berth_api::Time;
use k8s_openapi::jiff::Timestamp;

use crate::observation::Clocks;

/// The wall clock, and a monotonic clock that starts with this value.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProcessClock {
    started_at: Instant,
}

impl ProcessClock {
    /// Starts the monotonic clock.
    pub(super) fn start() -> Self {
        Self { started_at: Instant::now() }
    }

    /// Returns the time of the monotonic clock.
    pub(super) fn monotonic(self) -> Duration {
        self.started_at.elapsed()
    }

    /// Returns the time of both clocks.
    pub(super) fn now(self) -> Clocks {
        Clocks { wall: Timestamp::now(), monotonic: self.monotonic() }
    }
}

/// Returns the current time in whole seconds, for conditions.
pub(super) fn now_in_seconds() -> Time {
    Time(Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default())
}
