//! A program that runs beside the tests and never outlives them.

use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::sync::mpsc;

use anyhow::{Context as _, Result};

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
