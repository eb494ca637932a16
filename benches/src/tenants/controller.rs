//! Runs the controller as a process with the RBAC rules of `deploy/`.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use berth_tests::cluster::ControlPlane;
use berth_tests::controller;

use crate::counts::samples;
use crate::memory::Usage;

/// Time limit until the controller has acquired its Lease.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A controller process, which is terminated when this value is dropped.
#[derive(Debug)]
pub(super) struct Controller(controller::Controller);

/// Number of requests that the controller sent, according to its own metrics.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub(super) struct SentRequests {
    pub(super) total: f64,
    /// Requests that change objects, without renewals of the Lease: all PUT requests are excluded, because while
    /// nothing changes only renewals use PUT.
    pub(super) changes: f64,
}

impl SentRequests {
    fn from_metrics(metrics: &str) -> Self {
        let mut sent = Self::default();
        for sample in samples(metrics, "berth_controller_requests_total") {
            sent.total += sample.value;
            if matches!(sample.label("method"), Some("POST" | "PATCH" | "DELETE")) {
                sent.changes += sample.value;
            }
        }
        sent
    }

    pub(super) fn delta_since(self, before: Self) -> Self {
        Self { total: self.total - before.total, changes: self.changes - before.changes }
    }
}

impl Controller {
    /// Starts the controller, and waits until it has acquired its Lease.
    pub(super) fn start(
        program: &Path,
        plane: &ControlPlane,
        resync: Duration,
        name: &str,
    ) -> Result<Self> {
        let resync = format!("--resync={}", resync.as_secs());
        let mut controller = Self(controller::Controller::start_program(
            program,
            plane,
            name,
            None,
            &[resync.as_str()],
        )?);
        let begin = Instant::now();
        while controller.metric("berth_controller_leader").unwrap_or_default() < 1.0 {
            if let Some(status) = controller.0.running.process.try_wait()? {
                bail!("{} run: {status}: {}", program.display(), plane.log_tail(name));
            }
            ensure!(
                begin.elapsed() < TIMEOUT,
                "the controller did not acquire the Lease: {}",
                plane.log_tail(name)
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(controller)
    }

    fn metric(&self, name: &str) -> Result<f64> {
        let (_, text) =
            self.0.http_get("/metrics").context("the controller does not serve /metrics")?;
        Ok(samples(&text, name).map(|sample| sample.value).sum())
    }

    /// Returns the number of requests that the controller has sent.
    pub(super) fn sent_requests(&self) -> Result<SentRequests> {
        let (_, text) =
            self.0.http_get("/metrics").context("the controller does not serve /metrics")?;
        Ok(SentRequests::from_metrics(&text))
    }

    /// Returns memory and CPU time.
    pub(super) fn usage(&self) -> Result<Usage> {
        Usage::of_process(self.0.running.process.id())
    }

    /// Sends SIGTERM and waits until the process has ended.
    pub(super) fn terminate(mut self) -> Result<()> {
        self.0.terminate()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_renewals_are_not_changes() {
        let text = "berth_controller_requests_total{method=\"GET\"} 5\n\
            berth_controller_requests_total{method=\"PUT\"} 3\nberth_controller_requests_total{method=\"PATCH\"} 2\n";
        let sent = SentRequests::from_metrics(text);
        assert_eq!(sent, SentRequests { total: 10.0, changes: 2.0 });
        assert_eq!(
            sent.delta_since(SentRequests { total: 4.0, changes: 2.0 }),
            SentRequests { total: 6.0, changes: 0.0 }
        );
    }
}
