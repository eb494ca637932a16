//! Programs to measure, and the time and memory of one run.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};
use nix::sys::resource::{UsageWho, getrusage};

/// A program with everything on which its cost depends: path, arguments and environment.
#[derive(Debug)]
pub(crate) struct Program {
    /// Name of the program in reports.
    pub(crate) label: String,
    /// Path, or a name that is searched in `PATH`.
    pub(crate) path: OsString,
    pub(crate) args: Vec<OsString>,
    pub(crate) env: Vec<(&'static str, OsString)>,
    /// Advice for the user if the program is missing.
    pub(crate) missing_hint: &'static str,
}

impl Program {
    /// Returns the first line of the output of `--version`.
    pub(crate) fn version(&self) -> Result<String> {
        let stdout = self.stdout_of(command(&self.path, &self.env).arg("--version"))?;
        Ok(stdout.lines().next().unwrap_or_default().to_owned())
    }

    /// Returns the standard output of one run.
    pub(crate) fn stdout(&self) -> Result<String> {
        self.stdout_of(&mut self.command())
    }

    /// Returns the wall time of one run in milliseconds, from before the spawn until the process has been waited for.
    pub(crate) fn wall_ms(&self) -> Result<f64> {
        let mut command = self.command();
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let start = Instant::now();
        let status = command.status();
        let elapsed = start.elapsed();
        let status = status.map_err(|error| self.run_error(error))?;
        ensure!(status.success(), "{}: {status}", self.label);
        Ok(elapsed.as_secs_f64() * 1e3)
    }

    /// Returns the peak resident memory of one run, in MiB.
    ///
    /// `RUSAGE_CHILDREN` is the maximum over all children that a process has waited for, so each run is the only
    /// child of a new process of this binary. Until the child calls exec, it shares the memory of that process, and
    /// the kernel accounts this memory to the child. So a peak below [`min_measurable_mib`] cannot be measured.
    pub(crate) fn peak_mib(&self) -> Result<f64> {
        let mut helper = command(env::current_exe()?.as_os_str(), &self.env);
        helper.args(["peak", "--"]).arg(&self.path).args(&self.args);
        let kib = self.stdout_of(&mut helper)?;
        let kib: u32 =
            kib.trim().parse().with_context(|| format!("parse the peak memory {kib:?}"))?;
        Ok(f64::from(kib) / 1024.0)
    }

    fn command(&self) -> Command {
        let mut command = command(&self.path, &self.env);
        command.args(&self.args);
        command
    }

    fn stdout_of(&self, command: &mut Command) -> Result<String> {
        let output = command.output().map_err(|error| self.run_error(error))?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}: {}: {}", self.label, output.status, stderr.trim());
        String::from_utf8(output.stdout).with_context(|| format!("output of {}", self.label))
    }

    fn run_error(&self, error: std::io::Error) -> anyhow::Error {
        let path = self.path.display();
        match error.kind() {
            ErrorKind::NotFound => anyhow!("{path}: not found; {}", self.missing_hint),
            _ => anyhow!(error).context(format!("{path}")),
        }
    }
}

/// Returns an error if the controller binary does not exist.
pub(crate) fn ensure_controller_exists(program: &Path) -> Result<()> {
    ensure!(
        program.exists(),
        "{}: build it with `cargo build --profile dist -p berth-controller`",
        program.display()
    );
    Ok(())
}

/// Returns the smallest peak in MiB that [`Program::peak_mib`] can measure: the peak of this binary.
pub(crate) fn min_measurable_mib() -> Result<f64> {
    let program = Program {
        label: "helper process".to_owned(),
        path: env::current_exe()?.into(),
        args: vec!["--version".into()],
        env: vec![],
        missing_hint: "was the benchmark binary rebuilt during the run?",
    };
    program.peak_mib()
}

/// Runs `program` as the only child and prints the peak resident memory of the child in KiB.
pub(crate) fn print_peak(program: &[OsString]) -> Result<()> {
    let [path, args @ ..] = program else { return Err(anyhow!("no program to run")) };
    let status = command(path, &[]).args(args).stdout(Stdio::null()).status()?;
    ensure!(status.success(), "{}: {status}", path.display());
    let kib = getrusage(UsageWho::RUSAGE_CHILDREN)?.max_rss();
    writeln!(std::io::stdout().lock(), "{kib}")?;
    Ok(())
}

/// Returns a command whose cost does not depend on the locale of the caller or on the terminal.
///
/// The command inherits `PATH`, because for a changed `PATH` the standard library uses fork instead of
/// `posix_spawn`.
fn command(path: &OsStr, env: &[(&'static str, OsString)]) -> Command {
    #[expect(clippy::disallowed_methods, reason = "this crate runs other programs")]
    let mut command = Command::new(path);
    command.env("LC_ALL", "C").envs(env.iter().cloned()).stdin(Stdio::null());
    command
}
