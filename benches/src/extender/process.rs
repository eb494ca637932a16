//! The measured processes: the controller with the scheduler extender, and the peer.

use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use berth_tests::cluster::ControlPlane;
use berth_tests::controller::Controller;
use berth_tests::running::Running;

use crate::counts::samples;
use crate::memory::Usage;

/// Time limit until the controller has listed hosts and pods.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Interval between two checks whether the lists are complete.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
const LISTED_METRIC: &str = "berth_assignment_listed_timestamp_seconds";

/// A running controller with the RBAC rules of `deploy/`. Dropping this value terminates the process.
#[derive(Debug)]
pub(super) struct Extender {
    controller: Controller,
    name: String,
    pub(super) port: u16,
}

impl Extender {
    /// Starts the controller. `lease` is the Lease of kube-scheduler; without a Lease the extender decides
    /// immediately.
    pub(super) fn start(
        program: &Path,
        plane: &ControlPlane,
        name: &str,
        lease: &str,
    ) -> Result<Self> {
        let port = free_port()?;
        let listen = format!("--extender-listen=127.0.0.1:{port}");
        let lease = format!("--scheduler-lease={lease}");
        let controller = Controller::start_program(program, plane, name, None, &[&listen, &lease])?;
        Ok(Self { controller, name: name.to_owned(), port })
    }

    /// Waits until the controller has listed hosts and pods.
    pub(super) fn wait_for_lists(&mut self, plane: &ControlPlane) -> Result<()> {
        let begin = Instant::now();
        while self.metric(LISTED_METRIC, "").is_none_or(|at| at <= 0.0) {
            self.ensure_running(plane)?;
            let log = plane.log_tail(&self.name);
            ensure!(begin.elapsed() < TIMEOUT, "the extender has not listed all pods: {log}");
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Fails if the process has ended.
    pub(super) fn ensure_running(&mut self, plane: &ControlPlane) -> Result<()> {
        match self.controller.running.process.try_wait()? {
            Some(status) => bail!("berth-controller run: {status}: {}", plane.log_tail(&self.name)),
            None => Ok(()),
        }
    }

    /// Returns the Unix time at which the controller had listed all hosts and pods.
    pub(super) fn listed_at(&self) -> Result<f64> {
        self.metric(LISTED_METRIC, "")
            .with_context(|| format!("the extender does not export {LISTED_METRIC}"))
    }

    /// Returns the seconds that the controller needed to count the objects of the last list of this kind.
    pub(super) fn counting_seconds(&self, kind: &str) -> Result<f64> {
        let name = "berth_assignment_counting_seconds";
        self.metric(name, kind)
            .with_context(|| format!("the extender does not export {name} for {kind}"))
    }

    fn metric(&self, name: &str, kind: &str) -> Option<f64> {
        let (_, text) = self.controller.http_get("/metrics")?;
        let matches_kind = |label: Option<&str>| label.unwrap_or_default() == kind;
        samples(&text, name)
            .find(|sample| matches_kind(sample.label("kind")))
            .map(|sample| sample.value)
    }

    /// Returns memory and CPU time.
    pub(super) fn usage(&self) -> Result<Usage> {
        Usage::of_process(self.controller.running.process.id())
    }

    /// Sends SIGTERM and waits until the process has ended.
    pub(super) fn terminate(mut self) -> Result<()> {
        self.controller.terminate()
    }
}

/// The peer: this program, run as an extender that accepts every host.
#[derive(Debug)]
pub(super) struct Peer {
    _running: Running,
    pub(super) port: u16,
}

impl Peer {
    /// Starts the peer, and returns before its port is open.
    pub(super) fn start() -> Result<Self> {
        let port = free_port()?;
        let mut command = Running::command(&std::env::current_exe()?, None);
        command.args(["accept-all".to_owned(), format!("--listen=127.0.0.1:{port}")]);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        Ok(Self { _running: Running::spawn(command)?, port })
    }
}

/// Returns a TCP port that is not in use at the time of the call.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
