//! Process of a controller that uses the credential of its ServiceAccount.

#![expect(clippy::disallowed_methods, reason = "tests run programs and read files")]

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use berth_controller::run::events::EventEmitter;
use kube::Client;
use tokio::runtime::Runtime;

use crate::cluster::ControlPlane;
use crate::cluster::proxy::Proxy;
use crate::running::Running;
use crate::simulated::{create_client, create_runtime};

/// Reconcilers of the controller in this process, with the permissions that the controller has in a cluster. On
/// drop, the reconcilers are stopped, even during a reconcile.
#[derive(Debug)]
pub struct Reconcilers(Option<Runtime>);

impl Reconcilers {
    /// Starts the future that `run` returns for a client and an emitter of Events. The test must apply
    /// `deploy/base/rbac-controller.yaml` before.
    ///
    /// # Errors
    /// Fails if the ServiceAccount does not exist.
    pub fn start<F: Future<Output = ()> + Send + 'static>(
        plane: &ControlPlane,
        run: impl FnOnce(Client, Arc<EventEmitter>) -> F,
    ) -> Result<Self> {
        let runtime = create_runtime()?;
        let client = runtime.block_on(create_client(&write_controller_kubeconfig(plane)?))?;
        let events = Arc::new(EventEmitter::new(client.clone(), "test"));
        runtime.spawn(run(client, events));
        Ok(Self(Some(runtime)))
    }
}

impl Drop for Reconcilers {
    fn drop(&mut self) {
        self.0.take().map(Runtime::shutdown_background).unwrap_or_default();
    }
}

/// Running controller, of which a test can start several. The process is stopped on drop.
#[derive(Debug)]
pub struct Controller {
    /// Process of the controller.
    pub running: Running,
    /// HTTP port of the controller on the loopback.
    pub port: u16,
}

/// Writes a kubeconfig with exactly the permissions of a controller. The test must apply
/// `deploy/base/rbac-controller.yaml` before.
///
/// # Errors
/// Fails if the ServiceAccount does not exist.
pub fn write_controller_kubeconfig(plane: &ControlPlane) -> Result<PathBuf> {
    plane.write_kubeconfig("berth-controller", &plane.create_token("berth-controller")?, false)
}

/// Lease duration in seconds: the time for which other controllers wait before they acquire the lease of a killed
/// leader.
pub const LEASE_SECONDS: u64 = 6;
/// Time limit for the extender to become ready.
const EXTENDER_TIMEOUT: Duration = Duration::from_secs(90);

impl Controller {
    /// Starts a controller; `name` is the name of its log. The test must apply `deploy/base/rbac-controller.yaml`
    /// before.
    ///
    /// # Errors
    /// Fails if the controller cannot be started.
    pub fn start(plane: &ControlPlane, name: &str, extra_flags: &[&str]) -> Result<Self> {
        let program = crate::program("berth-controller");
        let lease = format!("--lease-duration={LEASE_SECONDS}");
        let more = [&[lease.as_str()], extra_flags].concat();
        Self::start_program(&program, plane, name, None, &more)
    }

    /// Starts a controller like [`Self::start`] with the scheduler extender, and replaces the running kube-scheduler by
    /// one with the configuration of `deploy/`. Waits until the extender is ready. The test must also apply
    /// `deploy/components/scheduler/lease.yaml` before.
    ///
    /// # Errors
    /// Fails if a program does not start; the error message has the end of the controller's log.
    pub fn start_with_scheduler(plane: &mut ControlPlane, name: &str) -> Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let listen = format!("--extender-listen=127.0.0.1:{port}");
        let lease = "--scheduler-lease=kube-system/berth-scheduler";
        let controller = Self::start(plane, name, &[&listen, lease])?;
        let file = plane.scheduler_configuration(Some(port))?;
        plane.start_scheduler(Some(&file))?;
        let is_ready =
            || controller.http_get("/readyz").is_some_and(|(code, _)| code == 200).then_some(());
        plane
            .wait_until("the extender is ready", EXTENDER_TIMEOUT, |_| is_ready())
            .with_context(|| plane.log_tail(name))?;
        Ok(controller)
    }

    /// Starts a controller like [`Self::start`]. The process sees `name` as its host name, which needs root.
    ///
    /// # Errors
    /// Fails if the controller cannot be started.
    pub fn start_on_host(plane: &ControlPlane, name: &str, extra_flags: &[&str]) -> Result<Self> {
        let program = crate::program("berth-controller");
        Self::start_program(&program, plane, name, Some(name), extra_flags)
    }

    /// Starts a controller like [`Self::start`], with a proxy between the controller and the server.
    ///
    /// # Errors
    /// Fails if the controller cannot be started.
    pub fn start_behind_proxy(
        proxy: &Proxy,
        plane: &ControlPlane,
        name: &str,
        extra_flags: &[&str],
    ) -> Result<Self> {
        let program = crate::program("berth-controller");
        let token = plane.create_token("berth-controller")?;
        let kubeconfig = proxy.write_kubeconfig(plane, "controller-behind", &token)?;
        Self::start_with_kubeconfig(&program, &kubeconfig, plane, name, None, extra_flags)
    }

    /// Starts a controller like [`Self::start`], from a program at another path and with the usual arguments.
    ///
    /// # Errors
    /// Fails if the controller cannot be started.
    pub fn start_program(
        program: &Path,
        plane: &ControlPlane,
        name: &str,
        host: Option<&str>,
        extra_flags: &[&str],
    ) -> Result<Self> {
        Self::start_with_kubeconfig(
            program,
            &write_controller_kubeconfig(plane)?,
            plane,
            name,
            host,
            extra_flags,
        )
    }

    fn start_with_kubeconfig(
        program: &Path,
        kubeconfig: &Path,
        plane: &ControlPlane,
        name: &str,
        host: Option<&str>,
        extra_flags: &[&str],
    ) -> Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let log = plane.folder().join(format!("{name}.log"));
        let log = File::options().create(true).append(true).open(log)?;
        let mut command = Running::command(program, host);
        command.args(["run", "--identity", name]);
        command.arg(format!("--kubeconfig={}", kubeconfig.display()));
        command.arg(format!("--listen=127.0.0.1:{port}"));
        command.args(extra_flags);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        Ok(Self { running: Running::spawn(command)?, port })
    }

    /// Returns the status code and the text of an HTTP response of the controller.
    #[must_use]
    pub fn http_get(&self, path: &str) -> Option<(u16, String)> {
        let address = format!("http://127.0.0.1:{}{path}", self.port);
        let answer =
            Command::new("curl").args(["-s", "-w", "\n%{http_code}", &address]).output().ok()?;
        let text = String::from_utf8(answer.stdout).ok()?;
        let (text, code) = text.rsplit_once('\n')?;
        Some((code.parse().ok()?, text.to_owned()))
    }

    /// Returns a value of the controller's metrics, or zero if the metric is missing.
    #[must_use]
    pub fn metric(&self, name: &str) -> f64 {
        let Some((_, text)) = self.http_get("/metrics") else { return 0.0 };
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|number| number.parse().ok()).unwrap_or_default()
    }

    /// Sends SIGTERM and waits until the process has ended.
    ///
    /// # Errors
    /// Fails if the exit code of the process is not 0.
    pub fn terminate(&mut self) -> Result<()> {
        self.running.send_signal("TERM")?;
        ensure!(
            self.running.process.wait()?.success(),
            "the controller exited with an error after SIGTERM"
        );
        Ok(())
    }
}
