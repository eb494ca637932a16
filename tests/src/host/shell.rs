//! Commands for a host over its virtio-serial port; `berth-shell` of `tests/host/image.sh` runs them on the host.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::CommandOutput;

/// Time that the host may take to answer after the end of a command.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// Serial port of a host, from power on to power off.
#[derive(Debug)]
pub(super) struct Shell {
    port: BufReader<UnixStream>,
    /// Number of the last command. Answers have this number too, so a late answer is not taken for the answer of
    /// the next command.
    last_number: u32,
}

impl Shell {
    /// Waits until the host responds on the port.
    pub(super) fn wait_until_ready(port: UnixStream, timeout: Duration) -> Result<Self> {
        port.set_write_timeout(Some(RESPONSE_TIMEOUT))?;
        let mut shell = Self { port: BufReader::new(port), last_number: 0 };
        let line = shell.read_line(timeout)?;
        ensure!(line == "ready", "the host sent `{line}` instead of `ready`");
        Ok(shell)
    }

    /// Runs a command; the guest ends the command at its time limit.
    pub(super) fn run(&mut self, command: &str, timeout: Duration) -> Result<CommandOutput> {
        self.last_number += 1;
        let seconds = timeout.as_secs().max(1);
        let line = format!("{} {seconds} {}\n", self.last_number, BASE64.encode(command));
        let port = self.port.get_mut();
        port.write_all(line.as_bytes()).context("send a command to the host")?;
        let begin = Instant::now();
        loop {
            let line =
                self.read_line((timeout + RESPONSE_TIMEOUT).saturating_sub(begin.elapsed()))?;
            let mut words = line.splitn(3, ' ');
            if words.next() != Some(&self.last_number.to_string()) {
                continue;
            }
            let code = words.next().unwrap_or_default().parse()?;
            let output = BASE64.decode(words.next().unwrap_or_default())?;
            let output = String::from_utf8_lossy(&output).into_owned();
            // `timeout` exits with these codes after it has ended the command with SIGTERM or SIGKILL.
            let ended = [124, 137].contains(&code) && begin.elapsed().as_secs() >= seconds;
            ensure!(!ended, "timeout after {seconds} s; output: {output}");
            return Ok(CommandOutput { code, output });
        }
    }

    fn read_line(&mut self, timeout: Duration) -> Result<String> {
        // A zero timeout would mean no limit.
        let timeout = timeout.max(Duration::from_millis(1));
        self.port.get_ref().set_read_timeout(Some(timeout))?;
        let mut line = String::new();
        match self.port.read_line(&mut line) {
            Ok(_) if line.ends_with('\n') => Ok(line.trim_end().to_owned()),
            Ok(_) => bail!("the host restarted, panicked or was switched off"),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                bail!("the host sent nothing for {} s", timeout.as_secs())
            }
            Err(error) => Err(error).context("read from the host"),
        }
    }
}
