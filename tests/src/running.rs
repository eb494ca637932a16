//! Programs that run in the background during tests, and are killed at the latest when the test program ends.

#![expect(clippy::disallowed_methods, reason = "tests run programs")]

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::mpsc;

use anyhow::{Context as _, Result, ensure};

/// Running program, stopped on drop.
#[derive(Debug)]
pub struct Running {
    pub process: Child,
    _thread: mpsc::Sender<()>,
}

impl Running {
    /// Starts a command, which should be built by [`Self::command`] with `setpriv --pdeathsig KILL`.
    ///
    /// The kernel sends the parent-death signal when the *thread* that started the program ends. Each test has its
    /// own thread, and a program that tests share must not end with the first test. Therefore a separate thread
    /// starts the program and runs until the [`Running`] is dropped. If this process ends, the thread ends too, and
    /// the kernel kills the started program.
    ///
    /// # Errors
    /// Fails if the command cannot be started.
    pub fn spawn(mut command: Command) -> Result<Self> {
        // Ctrl-C must only reach this process, which then ends the started programs in order. If this process ends
        // earlier, the parent-death signal kills the started programs.
        command.process_group(0);
        let (give, take) = mpsc::channel();
        let (thread, end) = mpsc::channel::<()>();
        std::thread::spawn(move || {
            give.send(command.spawn()).unwrap_or_default();
            end.recv().unwrap_or_default();
        });
        let process = take.recv()?.context("setpriv (package util-linux)")?;
        Ok(Self { process, _thread: thread })
    }

    /// Returns a command that ends with the program that starts it. With a host name, the command sees this name as
    /// its host name; this needs root.
    #[must_use]
    pub fn command(program: &Path, host: Option<&str>) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]);
        if let Some(host) = host {
            let named = r#"hostname "$0" && exec "$@""#;
            command.args(["unshare", "--uts", "sh", "-c", named, host]);
        }
        command.arg(program);
        command
    }

    /// Sends a signal, by name.
    ///
    /// # Errors
    /// Fails if the process has ended.
    pub fn send_signal(&self, name: &str) -> Result<()> {
        let id = self.process.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &id]).status()?;
        ensure!(sent.success(), "`kill -s {name} {id}` failed");
        Ok(())
    }

    /// Ends the process.
    pub fn stop(&mut self) {
        self.process.kill().unwrap_or_default();
        self.process.wait().map(drop).unwrap_or_default();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}
