//! Process of the web console.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};

use crate::running::Running;

/// Running console on the loopback. The process is stopped on drop.
#[derive(Debug)]
pub struct ConsoleProcess {
    _running: Running,
    /// Link that the console printed when it started, without a slash at its end.
    pub url: String,
}

impl ConsoleProcess {
    /// Starts a console with a kubeconfig, and waits until it accepts connections. `log` is the file of its log.
    ///
    /// # Errors
    /// Fails if the console does not start.
    pub fn start(kubeconfig: &Path, extra_flags: &[&str], log: &Path) -> Result<Self> {
        let mut command = Running::command(&crate::program("berth-controller"), None);
        command.arg("console").arg(format!("--kubeconfig={}", kubeconfig.display()));
        command.arg("--listen=127.0.0.1:0").args(extra_flags);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(log)?);
        let mut running = Running::spawn(command)?;
        let stdout = running.process.stdout.take().context("the console has no output")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let url = line.trim().trim_end_matches('/').to_owned();
        ensure!(url.starts_with("http"), "the console does not start: see {}", log.display());
        Ok(Self { _running: running, url })
    }
}
