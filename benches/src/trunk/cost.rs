//! CPU time, wake-ups and frames in a period of time.

#![expect(
    clippy::disallowed_methods,
    reason = "the benchmark reads the links of its network namespace"
)]

use std::fs;
use std::time::Instant;

use anyhow::{Context, Result};
use nix::sys::resource::{UsageWho, getrusage};
use serde::{Deserialize, Serialize};

/// CPU time and wake-ups of a program in a period, and the frames of its link in that period.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Cost {
    pub(super) seconds: f64,
    /// User and system time in seconds, from `getrusage`, whose resolution is a microsecond. The resolution of
    /// `/proc/PID/stat` is only 10 ms.
    pub(super) cpu_seconds: f64,
    /// Number of voluntary context switches.
    pub(super) wake_ups: f64,
    /// Number of frames that the link sent.
    pub(super) sent: f64,
    /// Number of frames that the link received.
    pub(super) received: f64,
}

impl Cost {
    /// Returns the CPU time in percent of one core.
    pub(super) fn cpu_percent(self) -> f64 {
        self.cpu_seconds / self.seconds * 100.0
    }

    /// Returns the microseconds of CPU time for each frame that was sent or received.
    pub(super) fn micros_per_frame(self) -> f64 {
        self.cpu_seconds / (self.sent + self.received) * 1e6
    }
}

/// A period that is being measured, with the values of the counters at its beginning.
#[derive(Debug)]
pub(super) struct Period<'a> {
    begin: Instant,
    link: &'a str,
    who: UsageWho,
    before: [f64; 4],
}

impl<'a> Period<'a> {
    /// Begins to measure a period for this process, or for its child processes.
    pub(super) fn begin(link: &'a str, who: UsageWho) -> Result<Self> {
        Ok(Self { begin: Instant::now(), link, who, before: read_counters(link, who)? })
    }

    /// Ends the period, and returns its cost.
    pub(super) fn end(self) -> Result<Cost> {
        let after = read_counters(self.link, self.who)?;
        let seconds = self.begin.elapsed().as_secs_f64();
        let [a, b, c, d] = self.before;
        let [cpu_seconds, wake_ups, sent, received] = after;
        Ok(Cost {
            seconds,
            cpu_seconds: cpu_seconds - a,
            wake_ups: wake_ups - b,
            sent: sent - c,
            received: received - d,
        })
    }
}

/// Returns the current counters: CPU seconds, wake-ups, frames that the link sent, and frames that it received.
fn read_counters(link: &str, who: UsageWho) -> Result<[f64; 4]> {
    let usage = getrusage(who).context("getrusage")?;
    let [user, system] = [usage.user_time(), usage.system_time()]
        .map(|time| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6);
    let wake_ups = usage.voluntary_context_switches() as f64;
    let frames = |name: &str| -> Result<f64> {
        let path = format!("/sys/class/net/{link}/statistics/{name}");
        let text = fs::read_to_string(&path).with_context(|| path.clone())?;
        text.trim().parse().with_context(|| path)
    };
    Ok([user + system, wake_ups, frames("tx_packets")?, frames("rx_packets")?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cost_is_per_frame_and_per_core() {
        let cost =
            Cost { seconds: 60.0, cpu_seconds: 0.03, wake_ups: 240.0, sent: 1e4, received: 2e4 };
        assert!((cost.cpu_percent() - 0.05).abs() < 1e-9);
        assert!((cost.micros_per_frame() - 1.0).abs() < 1e-9);
    }

    #[test]
    fn costs_are_not_negative() {
        let period = Period::begin("lo", UsageWho::RUSAGE_SELF).unwrap();
        let cost = period.end().unwrap();
        assert!(cost.cpu_seconds >= 0.0 && cost.seconds > 0.0 && cost.sent >= 0.0);
        assert!(Period::begin("no-such-link", UsageWho::RUSAGE_SELF).is_err());
    }
}
