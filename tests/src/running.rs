//! A program that runs beside the tests and never outlives them.

#![expect(clippy::disallowed_methods, reason = "tests run programs")]

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::mpsc;

use anyhow::{Context as _, Result, ensure};

/// Ended when dropped.
#[derive(Debug)]
pub struct Running {
    /// The process.
    pub process: Child,
    _thread: mpsc::Sender<()>,
}

impl Running {
    /// Starts a command, which should be one for `setpriv --pdeathsig KILL`.
    ///
    /// That ends a program with the *thread* that started it, and each test has a thread of its own: what tests
    /// share must not go away with the first. So it gets a thread that lasts until the other end of the sender is
    /// dropped. However this program ends, the thread ends, and with it what it started.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn spawn(mut command: Command) -> Result<Self> {
        // Ctrl-C is for this program, which then ends others in good order, or by its own end.
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

    /// Begins a command that ends with the program that starts it; on a host of this name, if there is one, as the
    /// command sees it. That needs root.
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

    /// Sends it a signal, by name.
    ///
    /// # Errors
    /// If it is gone.
    pub fn signal(&self, name: &str) -> Result<()> {
        let id = self.process.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &id]).status()?;
        ensure!(sent.success(), "kill -s {name} {id}");
        Ok(())
    }

    /// Ends it.
    pub fn end(&mut self) {
        self.process.kill().unwrap_or_default();
        self.process.wait().map(drop).unwrap_or_default();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}
