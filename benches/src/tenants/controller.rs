//! The controller as a process, with the rights that `deploy/` gives it.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use berth_tests::cluster::ControlPlane;
use berth_tests::controller;

use super::counts::samples;
use crate::memory::Taken;

/// Until it leads.
const PATIENCE: Duration = Duration::from_secs(120);

/// It runs until this is dropped.
#[derive(Debug)]
pub(super) struct Controller(controller::Controller);

impl Controller {
    /// Starts it, and waits until it leads.
    pub(super) fn start(
        program: &Path,
        plane: &ControlPlane,
        resync: Duration,
        name: &str,
    ) -> Result<Self> {
        let resync = format!("--resync={}", resync.as_secs());
        let mut this = Self(controller::Controller::of(program, plane, name, &[resync.as_str()])?);
        let begin = Instant::now();
        while this.number("berth_controller_leader").unwrap_or_default() < 1.0 {
            if let Some(status) = this.0.running.process.try_wait()? {
                bail!("{} run: {status}: {}", program.display(), plane.log(name));
            }
            ensure!(
                begin.elapsed() < PATIENCE,
                "the controller does not lead: {}",
                plane.log(name)
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(this)
    }

    fn number(&self, name: &str) -> Result<f64> {
        let (_, text) = self.0.page("/metrics").context("the controller answers no /metrics")?;
        Ok(samples(&text, name).map(|sample| sample.value).sum())
    }

    /// Requests that it has sent.
    pub(super) fn requests(&self) -> Result<f64> {
        self.number("berth_controller_requests_total")
    }

    /// Memory and CPU time.
    pub(super) fn taken(&self) -> Result<Taken> {
        Taken::by(self.0.running.process.id())
    }

    /// Asks it to end, and waits until it has.
    pub(super) fn end(mut self) -> Result<()> {
        self.0.terminate()
    }
}
