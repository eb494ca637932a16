//! The controller as a process, with the rights that `deploy/` gives it.

#![expect(clippy::disallowed_methods, reason = "running other programs is what this crate does")]

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use berth_api::names::CONTROLLER;
use berth_tests::cluster::ControlPlane;
use berth_tests::running::Running;

use super::counts::samples;
use crate::agents::server;
use crate::memory::Taken;

/// Until it leads.
const PATIENCE: Duration = Duration::from_secs(120);

/// It runs until this is dropped.
#[derive(Debug)]
pub(super) struct Controller {
    running: Running,
    port: u16,
}

impl Controller {
    /// Starts it, and waits until it leads.
    pub(super) fn start(
        program: &Path,
        plane: &ControlPlane,
        resync: Duration,
        log: &str,
    ) -> Result<Self> {
        let kubeconfig = server::kubeconfig(plane, CONTROLLER)?;
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let log = File::create(plane.folder().join(log))?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(program).arg("run");
        command.arg(format!("--kubeconfig={}", kubeconfig.display()));
        command.arg(format!("--resync={}", resync.as_secs()));
        command.arg(format!("--listen=127.0.0.1:{port}"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let mut this = Self { running: Running::spawn(command)?, port };
        let begin = Instant::now();
        while this.number("berth_controller_leader").unwrap_or_default() < 1.0 {
            if let Some(status) = this.running.process.try_wait()? {
                bail!("{} run: {status}", program.display());
            }
            ensure!(begin.elapsed() < PATIENCE, "the controller does not lead");
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(this)
    }

    fn number(&self, name: &str) -> Result<f64> {
        let mut curl = Command::new("curl");
        curl.args(["-sf", "--max-time", "10", &format!("http://127.0.0.1:{}/metrics", self.port)]);
        let done = curl.output().context("curl (package curl)")?;
        ensure!(done.status.success(), "the controller's /metrics: curl {}", done.status);
        let text = String::from_utf8_lossy(&done.stdout);
        Ok(samples(&text, name).map(|sample| sample.value).sum())
    }

    /// Requests that it has sent.
    pub(super) fn requests(&self) -> Result<u64> {
        Ok(self.number("berth_controller_requests_total")? as u64)
    }

    /// Memory and CPU time.
    pub(super) fn taken(&self) -> Result<Taken> {
        Taken::by(self.running.process.id())
    }

    /// Asks it to end, and waits until it has.
    pub(super) fn end(mut self) -> Result<()> {
        let id = self.running.process.id().to_string();
        let asked = Command::new("kill").args(["-TERM", &id]).status().context("kill")?;
        ensure!(asked.success(), "kill -TERM {id}: {asked}");
        let status = self.running.process.wait()?;
        ensure!(status.success(), "the controller ended with {status}");
        Ok(())
    }
}
